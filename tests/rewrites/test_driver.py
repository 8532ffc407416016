"""Whole runs: what is applied, what is recorded, and that the program stays right whatever happens."""

import logging
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine import X, applied, calls, capture, ops, rule
from torch import fx

from regraft.compiler.normal import NORMAL_FORM
from regraft.rewrites import backup
from regraft.rewrites.driver import Settings, rewrite
from regraft.rewrites.editor import RewriteError
from regraft.rewrites.faults import Faults
from regraft.rewrites.mirror import Mirror
from regraft.rewrites.pattern import choose, optional
from regraft.rewrites.profit import Decision, Never
from regraft.rewrites.reason import Reason
from regraft.rewrites.record import Evidence, GraphRecord
from regraft.rewrites.respell import respelling
from regraft.rewrites.rule import Candidate

RELU_EXP = lambda x: torch.relu(torch.exp(x))  # noqa: E731
CLAMP_EXP = lambda x: torch.exp(x).clamp(min=0)  # noqa: E731


def relu_exp(replacement=CLAMP_EXP, **declaration):
    return rule(RELU_EXP, replacement, "relu_exp", **declaration)


def text(module: fx.GraphModule) -> str:
    return "\n".join(n.format_node() or "" for n in module.graph.nodes)


def test_a_match_in_the_record():
    module = capture(lambda a: torch.relu(torch.exp(a)) + a, X)
    calls(module)[1].meta["nn_module_stack"] = {"m": ("model.layer.3", torch.nn.ReLU)}
    record = applied(module, relu_exp(family="f"))
    (found,) = record.applied
    assert (found.rule, found.family, found.stage, found.candidate) == ("relu_exp", "f", "forward", "replacement")
    assert (found.nodes, found.module, found.site.line) == (("exp", "relu"), "model.layer.3", 2)
    assert not record.near_misses and not record.fallbacks and record.seconds["rewrite-forward"] > 0
    assert ops(module) == ["exp", "clamp", "add"] and torch.equal(module(X), torch.relu(torch.exp(X)) + X)


def test_provenance_survives():
    module = capture(lambda a: torch.relu(torch.exp(a)) + a, X)
    applied(module, relu_exp())
    exp, clamp, add = calls(module)
    assert exp.meta["stack_trace"] == clamp.meta["stack_trace"] and "line 2" in clamp.meta["stack_trace"]
    assert exp.meta["regraft_rule"] == clamp.meta["regraft_rule"] == "relu_exp"
    assert "regraft_rule" not in add.meta and "line 3" in add.meta["stack_trace"]


def test_only_rules_of_the_stage_run():
    module = capture(RELU_EXP, X)
    assert not applied(module, relu_exp(stage="lowered")).applied
    assert len(applied(module, relu_exp(stage="lowered"), stage="lowered").applied) == 1


def test_nothing_changes_where_nothing_matches():
    function = lambda a: torch.tanh(torch.exp(a) * 0.5) / 3  # noqa: E731
    module, untouched = capture(function, X), capture(function, X)
    record = applied(module, relu_exp(), normal_form=NORMAL_FORM)
    assert text(module) == text(untouched) and not record.applied


def test_no_normal_form_leaks_into_what_no_rule_matched():
    def function(a):
        return torch.relu(torch.exp(a)), (a / 8).mT / 3 - 2

    module = capture(function, X)
    assert len(applied(module, relu_exp(), normal_form=NORMAL_FORM).applied) == 1
    assert ops(module)[-4:] == ops(capture(function, X))[-4:]
    for ours, eager in zip(module(X), function(X), strict=True):
        assert torch.equal(ours, eager)


def test_earlier_rules_come_first():
    first, second = relu_exp(), rule(RELU_EXP, lambda x: torch.exp(x) * 1, "second")
    for order in ([first, second], [second, first]):
        assert [m.rule for m in applied(capture(RELU_EXP, X), order).applied] == [order[0].name]


def test_rules_for_some_dtypes_come_before_larger_matches():
    """A match that is rooted later is found first otherwise, whatever the order of the rules."""
    whole, exp = relu_exp(), (lambda x: torch.exp(x), lambda x: torch.sinh(x))
    part, part_of_floats = rule(*exp, "part"), rule(*exp, "part_of_floats", dtypes=(torch.float32,))
    for inner, first in ((part, whole), (part_of_floats, part_of_floats)):
        assert applied(capture(RELU_EXP, X), [whole, inner]).applied[0].rule == first.name
    other = rule(*exp, "part_of_bytes", dtypes=(torch.int8,))
    assert applied(capture(RELU_EXP, X), [other, whole]).applied[0].rule == whole.name


def test_every_place_is_found():
    module = capture(lambda a: torch.relu(torch.exp(torch.relu(torch.exp(torch.relu(torch.exp(a)))))), X)
    assert len(applied(module, relu_exp()).applied) == 3
    assert torch.equal(module(X), RELU_EXP(RELU_EXP(RELU_EXP(X))))


def test_rules_feed_each_other_to_a_fixpoint():
    twice = rule(lambda x: torch.relu(torch.relu(x)), lambda x: torch.relu(x), "twice")
    module = capture(lambda a: torch.relu(torch.relu(torch.relu(torch.relu(torch.relu(a))))), X)
    assert len(applied(module, twice).applied) == 4 and ops(module) == ["relu"]
    sines = rule(lambda x: torch.exp(x), lambda x: torch.relu(torch.relu(x)), "sines")
    module = capture(lambda a: torch.exp(a), X)
    assert [m.rule for m in applied(module, [twice, sines]).applied] == ["sines", "twice"] and ops(module) == ["relu"]


def test_a_rule_leaves_what_it_put_in():
    doubling = rule(lambda x: torch.relu(x), lambda x: torch.relu(torch.relu(x)), "doubling")
    module = capture(lambda a: torch.relu(a), X)
    record = applied(module, doubling)
    assert len(record.applied) == 1 and ops(module) == ["relu", "relu"]


def test_rules_in_a_circle_are_named_and_stopped():
    there = rule(lambda x: torch.relu(x), lambda x: x.clamp(min=0), "there")
    back = rule(lambda x: x.clamp(0), lambda x: torch.relu(x), "back")
    module = capture(lambda a: torch.relu(a) + torch.exp(a), X)
    record = applied(module, [there, back])
    (loop,) = record.fallbacks
    assert loop.code == "rule-loops" and "there" in loop.message and "back" in loop.message
    assert len(record.applied) < 10 and torch.equal(module(X), torch.relu(X) + torch.exp(X))


def test_a_replacement_that_cannot_be_committed_costs_its_rule_alone(monkeypatch):
    """What its operators say of their results is inferred once more where they are put into the program."""
    emit = Mirror.commit

    def commit(self, dead_draws, at):
        def told(name):
            at(name)
            if name == "moody":
                raise AssertionError("not here")

        return emit(self, dead_draws, told)

    monkeypatch.setattr(Mirror, "commit", commit)
    good = rule(lambda x: torch.relu(x), lambda x: torch.clamp_min(x, 0), name="good")
    bad = rule(lambda x: torch.exp(x), lambda x: torch.expm1(x) + 1, name="moody")
    module, record = capture(lambda x: torch.relu(x) + torch.exp(x), X), GraphRecord("test")
    assert rewrite(module, [good, bad], Settings(), record) is True
    assert [match.rule for match in record.applied] == ["good"]
    (fault,) = record.fallbacks
    assert fault.rule == "moody" and fault.code == "rule-failed" and "not here" in fault.message


def test_a_growing_rule_is_named_and_stopped():
    growing = rule(
        lambda x: torch.relu(torch.relu(x)), lambda x: torch.relu(torch.relu(torch.relu(x))), "growing"
    )  # fmt: skip
    module = capture(lambda a: torch.relu(torch.relu(torch.relu(torch.relu(a)))), X)
    record = applied(module, growing)
    (loop,) = record.fallbacks
    assert loop.code == "rule-loops" and loop.message.startswith("rule growing applied more often")
    assert torch.equal(module(X), torch.relu(X))


def test_a_respelling_that_loops_is_named():
    @respelling("aten.relu")
    def there(node, edit):
        return edit.call(torch.ops.aten.clamp.default, node.args[0], 0)

    @respelling("aten.clamp")
    def back(node, edit):
        return edit.call(torch.ops.aten.relu.default, node.args[0])

    module = capture(lambda a: torch.relu(a), X)
    record = applied(module, relu_exp(), normal_form=[there, back])
    assert {f.code for f in record.fallbacks} == {"respelling-loops"} and ops(module) == ["relu"]


def test_alternatives_become_tags():
    def pattern(x, y):
        scaled = optional("scale", torch.exp(x), lambda v: v * 0.5)
        return choose("end", add=lambda: scaled + y, max=lambda: torch.maximum(scaled, y))

    one = rule(pattern, lambda x, y, *, end: x, derived={"end": lambda match, policy: dict(match.tags)["end"]})
    module = capture(lambda a, b: (torch.exp(a) * 0.5 + b, torch.maximum(b, torch.exp(b))), X, X)
    assert sorted(m.tags for m in applied(module, one).applied) == [("end:add", "scale"), ("end:max",)]


def test_parts_left_out_are_none_and_derived_values_come_by_keyword():
    seen = []

    def replacement(x, y, *, policy):
        seen.append((y, policy))
        return torch.exp(x).clamp(min=0)

    one = rule(
        lambda x, y: optional("bias", torch.relu(torch.exp(x)), lambda v: v + y), replacement,
        derived={"policy": lambda match, policy: policy["nan"]},
    )  # fmt: skip
    applied(capture(RELU_EXP, X), one, policy=(("nan", "safe"),))
    assert seen == [(None, "safe")]


def test_several_outputs_are_replaced_together():
    both = rule(
        lambda x, w, v: (torch.relu(x @ w), torch.tanh(x @ v)),
        lambda x, w, v: (lambda y: (y[:, :2].relu(), y[:, 2:].tanh()))(x @ torch.cat([w, v], 1)),
    )  # fmt: skip
    w, v = torch.randn(4, 2), torch.randn(4, 3)

    def function(a, b, c):
        t = torch.tanh(a @ c)
        return torch.exp(torch.relu(a @ b)), t * 2

    module = capture(function, X, w, v)
    assert len(applied(module, both).applied) == 1 and ops(module).count("matmul") == 1
    for ours, eager in zip(module(X, w, v), function(X, w, v), strict=True):
        torch.testing.assert_close(ours, eager)


def test_identity_is_a_replacement():
    identity = rule(lambda x: x + 0, lambda x: x)
    module = capture(lambda a: torch.exp(torch.exp(a) + 0), X)
    assert len(applied(module, identity).applied) == 1 and ops(module) == ["exp", "exp"]


def test_results_that_were_fresh_memory_stay_so():
    identity = rule(lambda x: x + 0, lambda x: x)
    module = capture(lambda a: a + 0, X)
    assert len(applied(module, identity).applied) == 1
    x = X.clone()
    module(x).zero_()
    assert torch.equal(x, X)

    def writes(a):
        kept = a + 0
        a.add_(1)
        return torch.exp(kept)

    module = capture(writes, X)
    applied(module, identity)
    assert torch.equal(module(X.clone()), torch.exp(X))


# -- decisions


class Chooses:
    def __init__(self, name):
        self.name, self.questions = name, []

    def decide(self, question):
        self.questions.append(question)
        return Decision(self.name, Evidence({"original": 2.0, "fast": 1.0}, "measured"))


CANDIDATES = [Candidate("slow", CLAMP_EXP), Candidate("fast", lambda x: torch.exp(x) * 1)]


def test_the_oracle_chooses():
    oracle = Chooses("fast")
    module = capture(RELU_EXP, X)
    (found,) = applied(module, relu_exp(CANDIDATES), oracle=oracle).applied
    assert (found.candidate, found.evidence.gain("fast")) == ("fast", 2.0) and ops(module) == ["exp", "mul"]
    (question,) = oracle.questions
    assert list(question.candidates) == ["slow", "fast"]
    for program in (question.original, *question.candidates.values()):
        assert torch.equal(program(X), RELU_EXP(X))


def test_what_is_declined_is_counted_once_and_kept():
    module = capture(RELU_EXP, X)
    record = applied(module, relu_exp(), oracle=Never())
    assert len(record.declined) == 1 and not record.applied and not record.near_misses
    assert ops(module) == ["exp", "relu"]


def test_profitable_rules_are_not_measured():
    oracle = Chooses(None)
    assert len(applied(capture(RELU_EXP, X), relu_exp(profitable=True), oracle=oracle).applied) == 1
    assert not oracle.questions
    assert len(applied(capture(RELU_EXP, X), relu_exp(profitable=True), oracle=Never()).declined) == 1


def test_candidates_that_cannot_be_used():
    no = Reason("kernel-unavailable", "not here")
    never = Candidate("never", CLAMP_EXP, lambda match, policy: no)
    (found,) = applied(capture(RELU_EXP, X), relu_exp([never, *CANDIDATES])).applied
    assert found.candidate == "slow"
    record = applied(capture(RELU_EXP, X), relu_exp([never]))
    assert not record.applied and [m.code for m in record.near_misses] == ["kernel-unavailable"]


# -- what goes wrong

WRONG = {
    "dtype": (
        lambda x: torch.exp(x).double(),
        r"relu_exp replaced aten.relu torch.float32\[3, 4\] on cpu by .*float64",
    ),
    "shape": (lambda x: torch.exp(x).sum(0), r"relu_exp replaced .*\[3, 4\].* by .*\[4\]"),
    "count": (lambda x: (torch.exp(x), x), "relu_exp: the replacement returns 2 values, the pattern 1"),
    "number": (lambda x: 3, "relu_exp: the replacement returns 3, which is no tensor"),
}


@pytest.mark.parametrize(("replacement", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_replacement_is_an_error_under_verification(replacement, message):
    with pytest.raises(RewriteError, match=message):
        applied(capture(RELU_EXP, X), relu_exp(replacement))


@pytest.mark.parametrize("replacement", [w[0] for w in WRONG.values()], ids=WRONG)
def test_without_verification_the_program_stays_as_it_was(replacement, caplog):
    def function(a):
        a.add_(1)
        return torch.relu(torch.exp(a)), torch.exp(torch.relu(torch.exp(a)).mul_(2))

    module, untouched = capture(function, X), capture(function, X)
    record = GraphRecord("test")
    with caplog.at_level(logging.WARNING, "regraft"):
        assert rewrite(module, [relu_exp(replacement)], Settings(), record) is False
    headline, outcome, place = caplog.records[-1].getMessage().splitlines()
    assert "failed on test" in headline and "it is left out of this graph" in outcome and "traceback" in place
    assert not record.applied and [f.code for f in record.fallbacks] == ["rule-failed"]
    assert record.fallbacks[0].stage == "rewrite-forward"
    assert text(module) == text(untouched) and module.code == untouched.code
    for old, new in zip(untouched.graph.nodes, module.graph.nodes, strict=True):
        assert old.meta.get("stack_trace") == new.meta.get("stack_trace")
    x, y = X.clone(), X.clone()
    for ours, eager in zip(module(x), function(y), strict=True):
        assert torch.equal(ours, eager)
    assert torch.equal(x, y)


def test_a_commit_that_fails_midway_is_undone(monkeypatch):
    def commit(mirror, dead):
        mirror.real.erase_node(next(n for n in reversed(mirror.real.nodes) if n.op == "output"))
        raise RuntimeError("midway")

    monkeypatch.setattr(Mirror, "commit", commit)
    module, untouched = capture(RELU_EXP, X), capture(RELU_EXP, X)
    record = GraphRecord("test")
    assert rewrite(module, [relu_exp()], Settings(), record) is False
    assert [f.code for f in record.fallbacks] == ["rewrite-failed"] and text(module) == text(untouched)
    assert torch.equal(module(X), untouched(X))


def test_a_graph_that_stays_as_it_is_is_not_copied(monkeypatch):
    def copied(_):
        raise AssertionError("a copy for nothing")

    monkeypatch.setattr(backup, "copied", copied)
    record = GraphRecord("test")
    assert rewrite(capture(lambda a: torch.exp(a), X), [relu_exp()], Settings(), record) is False
    assert not record.fallbacks


def test_a_failure_takes_back_only_its_own_graphs_matches():
    record = GraphRecord("test")
    rewrite(capture(RELU_EXP, X), [relu_exp()], Settings(), record)
    rewrite(capture(RELU_EXP, X), [relu_exp(WRONG["dtype"][0])], Settings(), record)
    assert len(record.applied) == 1 and len(record.fallbacks) == 1


def test_a_guard_that_gives_no_reason_is_a_fallback():
    module = capture(RELU_EXP, X)
    record = applied(module, relu_exp(guards=[lambda x: True]), verify="off")
    assert "TypeError: guard <lambda> gave True" in record.fallbacks[0].message


def broken(*_, **__):
    raise KeyError("of the author")


def looks(x):
    return broken(x)


BROKEN = {
    "guard looks()": {"guards": [looks]},
    "candidate replacement": {"replacement": lambda x: broken(x)},
    "condition of candidate c": {"replacement": [Candidate("c", torch.exp, lambda match, policy: broken(match))]},
    "derived value d": {"replacement": lambda x, *, d: x, "derived": {"d": lambda match, policy: broken(match)}},
}


@pytest.mark.parametrize(("part", "declaration"), BROKEN.items(), ids=BROKEN)
def test_a_broken_rule_costs_that_rule_alone(part, declaration):
    good = rule(lambda x: torch.relu(torch.sin(x)), torch.tanh, "good")
    bad = relu_exp(**({"replacement": torch.exp} | declaration))
    module = capture(lambda a: (torch.relu(torch.sin(a)), torch.relu(torch.exp(a))), X)
    record = applied(module, [bad, good], verify="off")
    assert [m.rule for m in record.applied] == ["good"] and torch.equal(module(X)[0], torch.tanh(X))
    (fallback,) = record.fallbacks
    assert fallback.code == "rule-failed" and fallback.fault
    assert f"rule relu_exp, {part}, failed: KeyError: 'of the author'" in fallback.message
    assert not any(miss.rule == "relu_exp" for miss in record.near_misses)
    with pytest.raises(KeyError, match=rf"rule relu_exp, {re.escape(part)}, failed: of the author"):
        applied(capture(RELU_EXP, X), [bad, good], verify="off", faults=Faults(GraphRecord("strict"), strict=True))


def test_a_replacement_that_fails_on_fake_tensors_leaves_no_log_of_torch(caplog):
    record = applied(capture(RELU_EXP, X), relu_exp(lambda x: x @ torch.ones(3, 3)), verify="off")
    assert [f.code for f in record.fallbacks] == ["rule-failed"]
    assert not [entry for entry in caplog.records if "fake_tensor" in entry.name]


# -- near misses


def test_a_near_miss_tells_rule_point_expectation_and_place():
    module = capture(lambda a: (torch.relu(torch.exp(torch.sin(a)) * 0.3), torch.cos(a)), X)
    one = rule(lambda x: torch.relu(torch.exp(torch.cos(x)) * 0.3), lambda x: x, "near")
    (miss,) = applied(module, one).near_misses
    assert (miss.rule, miss.code, miss.depth, miss.size) == ("near", "pattern-differs", 3, 4)
    assert (miss.expected, miss.found) == ("cos", "sin: float32[3, 4]")
    assert (miss.site.line, miss.root.line) == (1, 4)


def test_an_operator_that_is_missing_altogether():
    record = applied(capture(lambda a: torch.relu(a), X), relu_exp())
    (miss,) = record.near_misses
    assert (miss.code, miss.expected, miss.depth, miss.size) == ("operators-missing", "exp", 0, 2)
    assert not applied(capture(lambda a: torch.relu(a), X), relu_exp(), near_miss_depth=2).near_misses


def test_what_was_applied_is_no_near_miss():
    """All of its operators are gone from the graph by then."""
    assert not applied(capture(RELU_EXP, X), relu_exp()).near_misses


def test_shallow_near_misses_are_left_out():
    one = rule(lambda x: torch.relu(torch.exp(torch.sin(x))), lambda x: x)
    function = lambda a: (torch.relu(torch.sin(a)), torch.exp(a))  # noqa: E731
    assert [m.depth for m in applied(capture(function, X), one, near_miss_depth=0).near_misses] == [1]
    assert not applied(capture(function, X), one, near_miss_depth=2).near_misses


# -- random programs

STEPS = {
    "relu_exp": lambda v, x: torch.relu(torch.exp(v * 0.1)),
    "scale": lambda v, x: v * 0.5,
    "add": lambda v, x: v + x.sum(0),
    "half": lambda v, x: v / 2 - 0.25,
    "tanh": lambda v, x: torch.tanh(v),
    "matmul": lambda v, x: v @ (x.mT @ x),
    "views": lambda v, x: v.reshape(2, 6).mT.reshape(4, 3).permute(1, 0),
    "square": lambda v, x: v * v,
    "inplace": lambda v, x: (v + 1).mul_(0.5),
}


def program(names):
    def run(x):
        value = x
        for name in names:
            value = STEPS[name](value, x)
        return value, x * 2

    return run


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=7))
def test_planted_matches_are_found_and_values_stay(names):
    run = program(names)
    module = capture(run, X)
    record = applied(module, relu_exp(), normal_form=NORMAL_FORM, near_miss_depth=2)
    assert len(record.applied) == names.count("relu_exp") and not record.fallbacks
    for ours, eager in zip(module(X), run(X), strict=True):
        torch.testing.assert_close(ours, eager)
    if "relu_exp" not in names:
        assert torch.equal(module(X)[0], run(X)[0]), "what no rule matched keeps every bit"


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=7))
def test_without_rules_nothing_changes(names):
    module, untouched = capture(program(names), X), capture(program(names), X)
    assert rewrite(module, [], Settings(normal_form=NORMAL_FORM), GraphRecord("test")) is False
    assert text(module) == text(untouched)


def test_circumstances_are_told_only_where_a_rule_is_explained():
    def elsewhere(x):
        return Reason("device-unsupported", "not here", (x,))

    def pattern(x):
        return torch.relu(torch.exp(x))

    refused = rule(pattern, lambda x: torch.exp(x), "refused", guards=[elsewhere])
    module = capture(lambda a: torch.relu(torch.exp(a)), X)
    assert not applied(module, refused, near_miss_depth=2).near_misses
    assert [m.code for m in applied(module, refused, near_miss_depth=0).near_misses] == ["device-unsupported"]
