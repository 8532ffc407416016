"""The measuring oracle: choices, what it remembers, and that it can be asked anywhere in a compilation."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import time
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import regraft
from regraft.compiler.autotune import autotuner
from regraft.compiler.autotune import inputs as synthesis
from regraft.compiler.autotune.autotuner import MIN_GAIN, Measured, choose, decision_key
from regraft.compiler.autotune.benchmark import TrialOutcome
from regraft.compiler.autotune.decision_cache import DecisionCache, decision_cache
from regraft.rewrites.profit import Oracle, Question


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    return tmp_path


def fake(*shape, mode=None, **kwargs) -> torch.Tensor:
    with mode or FakeTensorMode():
        return torch.empty(shape, **kwargs)


def sleeper(seconds, result=lambda *args: args[0] * 2, log=None):
    def run(*args):
        if log is not None:
            log.append(args)
        time.sleep(seconds)
        return result(*args)

    return run


def ask(inputs=None, *, rule="linear", key="k", training=False, original=None, **candidates) -> Question:
    original = original or sleeper(0.02)
    candidates = candidates or {"fast": sleeper(0.0), "slow": sleeper(0.03)}
    return Question(rule, key, inputs or [fake(4, 4)], original, candidates, training)


def oracle(**kwargs) -> Measured:
    return Measured(program_seconds=0.0, **kwargs)


without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


# Choosing


def test_is_an_oracle():
    answering: Oracle = Measured()
    assert answering.decide(ask()).chosen == "fast"


def test_fastest_candidate_wins_with_evidence():
    decision = oracle().decide(ask(middle=sleeper(0.01), fast=sleeper(0.0), slow=sleeper(0.03)))
    assert decision.chosen == "fast"
    assert decision.evidence.source == "measured"
    assert set(decision.evidence.times) == {"original", "middle", "fast", "slow"}
    assert decision.evidence.gain("fast") > 1


def test_slower_candidates_are_declined():
    decision = oracle().decide(ask(original=sleeper(0.0), slow=sleeper(0.02)))
    assert decision.chosen is None
    assert "slow, the fastest candidate, takes " in decision.evidence.note


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.99, "saves 1.0%"), (1.0, "saves 0.0%"), (1.31, "is 31.0% slower"), (11.2, "takes 11.2 times as long")],
)
def test_what_is_declined_is_told_as_it_is(seconds, told):
    note = choose(TrialOutcome({"original": 1.0, "a": seconds}), ask(a=abs)).evidence.note
    assert note == f"a, the fastest candidate, {told}; a rewrite must save at least 3%"


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({"a": 1 - MIN_GAIN - 0.001}, "a"),
        ({"a": 1 - MIN_GAIN + 0.001}, None),
        ({"a": 0.5, "b": 0.4}, "b"),
        ({"b": 0.5, "a": 0.5}, "a"),
        ({}, None),
    ],
)
def test_choice_follows_from_times(times, chosen):
    question = ask(a=abs, b=abs)
    assert choose(TrialOutcome({"original": 1.0, **times}), question).chosen == chosen


def test_candidates_have_to_be_as_precise_as_asked():
    trial = TrialOutcome({"original": 1.0, "coarse": 0.1, "fine": 0.5}, errors={"coarse": 5e-4, "fine": 1e-6})
    question = Question("r", "k", [fake(1)], abs, {"coarse": abs, "fine": abs}, precision=1e-4)
    decision = choose(trial, question)
    assert decision.chosen == "fine"
    assert "coarse is less precise" in decision.evidence.note
    assert choose(trial, dataclasses.replace(question, precision=None)).chosen == "coarse"


def test_raising_and_wrong_candidates_are_reported():
    def broken(x):
        raise RuntimeError("unsupported dtype")

    answering = oracle()
    decision = answering.decide(ask(broken=broken, wrong=lambda x: x * 3, right=sleeper(0.0)))
    assert decision.chosen == "right"
    assert "broken raised RuntimeError: unsupported dtype" in decision.evidence.note
    assert "wrong disagrees with the original: relative error" in decision.evidence.note
    assert answering.stats.disagreements == 1


def test_only_wrong_candidates_leave_the_original():
    decision = oracle().decide(ask(wrong=lambda x: x * 3))
    assert decision.chosen is None and "disagrees" in decision.evidence.note


def must_not_run(*args):
    raise AssertionError("an original that is excluded must not run")


def test_excluded_originals_do_not_run():
    def broken(x):
        raise RuntimeError("no kernel")

    asked = functools.partial(replace, original=must_not_run, excluded="too large")
    both = asked(ask(broken=broken, slow=sleeper(0.02), fast=sleeper(0.0), wrong=sleeper(0.0, lambda x: x * 3)))
    decision = oracle().decide(both)
    assert decision.chosen == "fast"
    assert set(decision.evidence.times) == {"slow", "fast"}
    for why in ("too large", "broken raised", "wrong disagrees with slow"):
        assert why in decision.evidence.note
    assert oracle().decide(asked(ask(key="all", broken=broken))).chosen is None
    unmeasured = oracle(budget_seconds=0.0).decide(replace(both, key="late"))
    assert (unmeasured.chosen, unmeasured.evidence.times) == ("broken", {})
    assert "too large; budget spent" in unmeasured.evidence.note


def test_decisions_without_the_original_are_kept_apart():
    answering, question = oracle(), ask(original=sleeper(0.0), slow=sleeper(0.02))
    assert answering.decide(question).chosen is None
    assert answering.decide(replace(question, excluded="too large")).chosen == "slow"
    assert answering.decide(question).chosen is None


def test_no_candidates():
    question = Question("rule", "k", [fake(2)], sleeper(0.0), {})
    assert oracle().decide(question).chosen is None


def test_training_measures_backward():
    class SlowBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            time.sleep(0.02)
            return grad * 2

    x = fake(4, requires_grad=True)
    candidates = {"original": SlowBackward.apply, "plain": lambda x: x * 2}
    question = ask([x], training=True, original=candidates["original"], plain=candidates["plain"])
    assert oracle().decide(question).chosen == "plain"
    log = []
    oracle().decide(ask([x], key="inference", original=sleeper(0, log=log), plain=sleeper(0)))
    assert not any(args[0].requires_grad for args in log)


def test_training_without_gradients_is_noted():
    decision = oracle().decide(ask(training=True))
    assert decision.chosen == "fast" and "no input requires a gradient" in decision.evidence.note


# Inputs


def test_symbolic_sizes_are_measured_at_their_hints():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    x = mode.from_tensor(torch.empty(6, 5), symbolic_context=context)
    log = []
    decision = oracle().decide(ask([x, x.shape[1]], original=sleeper(0.02, log=log), fast=sleeper(0.0)))
    assert decision.chosen == "fast"
    assert "symbolic sizes" in decision.evidence.note
    assert {(tuple(x.shape), size) for x, size in log} == {((6, 5), 5)}
    assert not mode.shape_env.guards


def test_strides_reach_the_programs():
    with FakeTensorMode():
        x = torch.empty(2, 1, 4).expand(2, 3, 4).transpose(0, 2)
    log = []
    oracle().decide(ask([x], original=sleeper(0.0, log=log), fast=sleeper(0.0)))
    assert {args[0].stride() for args in log} == {(1, 0, 4)}


# Refusals: never an exception


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (lambda: ask(original=lambda x: 1 / 0, fast=sleeper(0.0)), "ZeroDivisionError"),
        (lambda: ask([torch.empty(3, device="meta")]), "meta device"),
        (lambda: ask([torch.eye(2).to_sparse()]), "strided"),
        (lambda: ask(original=3, fast=abs), "TypeError"),
        (lambda: Question("rule", "k", None, abs, {"a": abs}), "TypeError"),
        pytest.param(lambda: ask([fake(2, device="cuda")]), "CUDA|NVIDIA", marks=without_cuda),
    ],
)
def test_failures_are_declined_with_a_reason(question, why):
    answering = oracle()
    decision = answering.decide(question())
    assert decision.chosen is None
    assert decision.evidence.note.startswith("not measured") and re.search(why, decision.evidence.note)
    assert answering.stats.failed == 1


def test_preparing_happens_where_something_is_measured_and_is_not_counted():
    prepared = []

    def prepare():
        time.sleep(0.3)
        prepared.append(True)

    measured = oracle()
    question = dataclasses.replace(ask(fast=sleeper(0.001)), prepare=prepare)
    measured.decide(question)
    measured.decide(question)
    assert prepared == [True]
    assert measured.stats.seconds < 0.3


def test_failures_are_remembered_in_one_compilation_only():
    log = []

    def failing(x):
        log.append(x)
        raise RuntimeError("no")

    answering, question = oracle(), ask(original=failing)
    first, second = answering.decide(question), answering.decide(question)
    assert first == second and len(log) == 1
    oracle().decide(question)
    assert len(log) == 2


def test_memory_is_guarded(monkeypatch):
    monkeypatch.setattr(synthesis, "free_memory", lambda device: 100)
    decision = oracle().decide(ask([fake(1000)]))
    assert decision.chosen is None and "MiB" in decision.evidence.note


def _on_a_gpu(x):
    raise torch.OutOfMemoryError("out of memory")


def _on_a_cpu(x):
    return torch.empty(1 << 60, dtype=torch.int8)


def _in_python(x):
    raise MemoryError


@pytest.mark.parametrize("greedy", [_on_a_gpu, _on_a_cpu, _in_python])
def test_out_of_memory_is_not_written_down(greedy):
    question = ask(original=sleeper(0.0), greedy=greedy)
    oracle().decide(question)
    assert oracle().decide(question).evidence.source == "measured"


# Memory


def test_second_time_is_answered_from_memory():
    log = []
    answering, question = oracle(), ask(original=sleeper(0.02, log=log), fast=sleeper(0.0))
    first, runs = answering.decide(question), len(log)
    second = answering.decide(question)
    assert len(log) == runs
    assert (first.evidence.source, second.evidence.source) == ("measured", "cache")
    assert second.chosen == first.chosen and second.evidence.times == first.evidence.times
    assert (answering.stats.measured, answering.stats.cache_hits) == (1, 1)
    assert answering.stats.seconds > 0


def test_other_instances_read_from_disk(tmp_path):
    question = ask()
    oracle(cache=DecisionCache(tmp_path)).decide(question)
    other = DecisionCache(tmp_path)
    decision = oracle(cache=other).decide(question)
    assert decision.chosen == "fast" and decision.evidence.source == "cache"
    assert other.stats.disk_hits == 1


def test_declined_is_remembered_too(tmp_path):
    question = ask(original=sleeper(0.0), slow=sleeper(0.01))
    oracle(cache=DecisionCache(tmp_path)).decide(question)
    decision = oracle(cache=DecisionCache(tmp_path)).decide(question)
    assert decision.chosen is None and decision.evidence.source == "cache" and "must save" in decision.evidence.note


def test_entry_tells_what_it_answers(directory):
    oracle().decide(ask(key="tags: scale"))
    (path,) = directory.rglob("*.json")
    value = json.loads(path.read_text())["value"]
    assert value["rule"] == "linear" and value["question"] == "tags: scale"
    assert value["inputs"] == ["float32[4, 4] stride [4, 1] cpu #0"]
    assert value["chosen"] == "fast" and set(value["evidence"]["times"]) == {"original", "fast", "slow"}


def test_directory_is_read_at_each_question(tmp_path, monkeypatch):
    answering, question = oracle(), ask()
    answering.decide(question)
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path / "other"))
    assert answering.decide(question).evidence.source == "measured"
    assert len(list((tmp_path / "other").rglob("*.json"))) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(chosen="gone"),
        lambda value: value.pop("evidence"),
        lambda value: value.update(evidence={"times": {"original": "fast"}}),
        lambda value: value.update(evidence=3),
    ],
)
def test_entries_that_make_no_sense_are_measured_again(change):
    question = ask()
    oracle().decide(question)
    store = decision_cache(autotuner.cache_dir())
    value = store.get(decision_key(question))
    change(value)
    store.put(decision_key(question), value)
    assert oracle().decide(question).evidence.source == "measured"


def variants():
    mode = FakeTensorMode()
    x = fake(4, 4, mode=mode)
    yield ask([x])
    yield ask([x], rule="other")
    yield ask([x], key="other")
    yield ask([x], training=True)
    yield dataclasses.replace(ask([x]), cold=True)
    yield ask([x], other=abs)
    yield ask([x, 1])
    yield ask([x, 1.0])
    yield ask([x, 2])
    yield ask([x, x])
    yield ask([x, fake(4, 4, mode=mode)])
    yield ask([fake(4, 5, mode=mode)])
    yield ask([fake(4, 4, mode=mode, dtype=torch.bfloat16)])
    yield ask([fake(4, 4, mode=mode, requires_grad=True)])
    with mode:
        yield ask([torch.empty(5, 4).t()[:, :4]])


def test_keys_tell_questions_apart_and_nothing_else(monkeypatch):
    keys = [decision_key(question) for question in variants()]
    assert len(set(keys)) == len(keys)
    assert keys == [decision_key(question) for question in variants()]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert decision_key(next(variants())) not in keys
    monkeypatch.undo()
    monkeypatch.setattr(autotuner, "cpu_model", lambda: "another CPU")
    assert decision_key(next(variants())) not in keys


def test_keys_depend_on_settings():
    before = decision_key(next(variants()))
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert decision_key(next(variants())) != before
    finally:
        torch.set_float32_matmul_precision(precision)


# Budget


def test_spent_budget_takes_the_nearest_shape():
    answering = oracle()
    small = ask([fake(4, 4)], original=sleeper(0.02), fast=sleeper(0.0))
    large = ask([fake(64, 64)], original=sleeper(0.0), fast=sleeper(0.02))
    assert [answering.decide(question).chosen for question in (small, large)] == ["fast", None]
    answering._budget = 0.0
    near_small, near_large = ask([fake(5, 4)], fast=sleeper(0.0)), ask([fake(64, 48)], fast=sleeper(0.0))
    decisions = [answering.decide(question) for question in (near_small, near_large)]
    assert [decision.chosen for decision in decisions] == ["fast", None]
    assert "budget spent: decided as for the nearest measured sizes, [4, 4]" in decisions[0].evidence.note
    assert decisions[0].evidence.times == {}
    assert answering.stats.borrowed == 2 and answering.stats.measured == 2


def test_spent_budget_without_relatives_declines():
    answering = oracle()
    answering.decide(ask())
    answering._budget = 0.0
    for stranger in (ask(rule="other"), ask([fake(4, 4, 4)]), ask([fake(2, 2)], another=sleeper(0.0))):
        decision = answering.decide(stranger)
        assert decision.chosen is None and "budget spent" in decision.evidence.note


def test_spent_budget_still_reads_the_cache_and_borrows_from_it():
    oracle().decide(ask())
    answering = oracle(budget_seconds=0.0)
    assert answering.decide(ask()).evidence.source == "cache"
    assert answering.decide(ask([fake(4, 5)])).chosen == "fast"


def test_default_dtype_is_neither_used_nor_changed():
    try:
        torch.set_default_dtype(torch.float64)
        log = []
        assert oracle().decide(ask([fake(3, dtype=torch.float32)], original=sleeper(0, log=log))).evidence.times
        assert {args[0].dtype for args in log} == {torch.float32}
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dynamic", [False, True])
def test_known_operands_are_measured_as_they_are(dynamic, tmp_path, monkeypatch):
    """A candidate may rely on what an operand is: here that the mask is causal, so that the kernel needs none."""
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))

    def causal(q, k, v):
        places = torch.arange(q.shape[-2])
        mask = torch.where(places[:, None] >= places, 0.0, float("-inf"))
        return torch.softmax(q @ k.mT / 4 + mask, -1) @ v

    torch.compiler.reset()
    inputs = [torch.randn(2, 4, 200, 16) for _ in range(3)]
    with regraft.coverage() as coverage, torch.no_grad():
        torch.compile(causal, backend="regraft", dynamic=dynamic)(*inputs)
    (found,) = [m for g in coverage.graphs for m in (*g.applied, *g.declined) if m.rule == "sdpa"]
    assert "disagrees" not in found.evidence.note and "flash" in found.evidence.note + "".join(found.evidence.times)
