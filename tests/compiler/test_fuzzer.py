"""The fuzzer of whole programs finds planted faults and makes them small; programs that it once found agree."""

import ast
import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.caches import cache_in
from support.fuzzer import compare, operators, service, twists
from support.fuzzer.grammar import Writer, draw
from support.fuzzer.program import load, widened
from support.fuzzer.runner import Seen, _observed, _others, _reads_out_of_bounds, check, placed
from support.fuzzer.shrink import _smaller, shrink
from support.fuzzer.twists import Call
from support.fuzzer.values import Inputs
from support.versions import OLD_TORCH

from regraft.compiler.lowering.core import LOWERINGS
from regraft.compiler.runtime.graph_cache.entry import CachedProgram

CORPUS = sorted((Path(__file__).parent.parent / "corpus").glob("*.py"))
PLANTED = """
import torch
from support.versions import OLD_TORCH

HOW = {"dynamic": True, "grad": False, "mode": "", "autocast": "", "capture": False, "options": {}}
CALLS = 1

def given(call):
    torch.manual_seed(call)
    a = (3, 4, 5)[call]
    return [torch.randn(a, 4), 2]

def program(x0, n0):
    v0 = x0 * n0
    v1 = v0.sum(0)
    if n0 > 0:
        v2 = v0.relu()
    return v1, v2
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with cache_in(tmp_path / "cache"):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_programs_of_the_corpus_agree(file):
    verdict = check(file.read_text(encoding="utf-8"))
    known = ("agree", "torch") if OLD_TORCH and file.stem == "hooks" else ("agree",)  # its hooks of views raise
    assert verdict.outcome in known, verdict.failure


def test_programs_are_the_same_for_the_same_seed():
    texts = [draw(seed) for seed in range(5)]
    assert texts == [draw(seed) for seed in range(5)]
    assert len(set(texts)) == 5
    assert all(ast.parse(text) for text in texts)


OPERANDS = (
    "torch.randn(3, 4)", "torch.randn(4, 4)", "torch.randn(2, 3, 4)", "torch.randn(6)", "torch.randn(())",
    "torch.randint(-5, 6, (3, 4))", "torch.randint(0, 6, (6,))", "torch.ones(3, 4).bool()", "torch.ones(3).bool()",
    "torch.randn(2, 2, dtype=torch.complex64)", "torch.randn(4, dtype=torch.complex64)",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", [k for k in vars(operators) if k.isupper() and "\n" in vars(operators)[k]])
def test_eager_takes_every_line_of_the_operators(group):
    refused = [line for line in vars(operators)[group].split("\n") if line and not any(map(taken(line), range(60)))]
    assert not refused


def taken(line):
    def by(seed):
        inputs = Inputs(random.Random(seed), lively=True)
        writer = Writer(inputs.source, inputs, module=False)
        for text in OPERANDS:
            writer.give(inputs.tensor(text))
        text = writer.filled(line)
        return text is not None and (writer.run(text) or writer.run(f"value = {text}"))

    return by


def test_a_planted_fault_is_found_and_made_small(monkeypatch):
    monkeypatch.setitem(LOWERINGS, "aten.relu", LOWERINGS["aten.neg"])
    verdict = check(PLANTED)
    assert verdict.outcome == "wrong"
    assert verdict.failure.kind == "values"
    small = shrink(PLANTED, "values", check, 20.0)
    assert "relu" in small
    assert "sum" not in small
    assert len(small) < len(PLANTED)


def test_a_planted_fault_in_half_precision_is_found(monkeypatch):
    monkeypatch.setitem(LOWERINGS, "aten.relu", LOWERINGS["aten.neg"])
    assert check(PLANTED.replace("torch.randn(a, 4)", "torch.randn(a, 4).bfloat16()")).outcome == "wrong"


def test_what_torch_does_without_us_is_not_ours():
    text = PLANTED.replace("v0.sum(0)", "v0 + torch.compiler.is_compiling()")
    assert check(text).outcome == "torch"


def test_what_is_wrong_beside_what_torch_does_is_ours(monkeypatch):
    text = PLANTED.replace("v0.sum(0)", "v0 + torch.compiler.is_compiling()").replace("v1, v2", "v2, v1")
    monkeypatch.setitem(LOWERINGS, "aten.relu", LOWERINGS["aten.neg"])
    verdict = check(text)
    assert verdict.outcome == "wrong"
    assert verdict.failure.message.startswith("outputs[0]")


TRAINED = """
import torch
from torch import nn

HOW = {"grad": True}

def given(call):
    torch.manual_seed(call)
    return [torch.randn(3, 4, requires_grad=True), torch.randn(3, 4), 2]

class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x0, x1, n0):
        x1.mul_(n0)
        return self.norm(self.layer(x0)) * x1, x1
"""


def test_programs_are_recalled_from_disk_in_calls_that_differ():
    calls = [(0,), (1, "without gradients"), (0, "doubles"), (1, "weights frozen"), (0, "frozen", "turned")]
    verdict = check(TRAINED + f"\nTURNS = {[calls, calls[::-1]]}\n", twisted=0)
    assert verdict.outcome == "refused", verdict  # doubles beside single precision
    assert verdict.counts["recalled"] == 4, verdict


def test_a_fault_in_recalled_programs_is_found(monkeypatch):
    real = CachedProgram.runner

    def wrong(self, *given):
        call = real(self, *given)
        return lambda *inputs: [-x for x in call(*inputs)]

    monkeypatch.setattr(CachedProgram, "runner", wrong)
    verdict = check(PLANTED + "\nTURNS = [[(0,), (1,)], [(1,), (0,)]]\n", twisted=0)
    assert verdict.outcome == "wrong" and verdict.failure.kind == "values" and verdict.failure.call == 2


def settings():
    return (
        torch.get_default_dtype(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
    )  # fmt: skip


def test_what_a_call_changes_is_set_back():
    loaded, before = load(TRAINED), settings()
    model = loaded.make()
    held = [(x, x.data_ptr(), x.dtype, x.requires_grad, x.clone()) for x in model.parameters()]
    refused: list[str] = []
    for name in (*twists.INPUTS, *twists.MODES, *twists.SETTINGS, *twists.MODELS):
        call = Call(0, (name,))
        refused += [name] * (_observed(loaded, model, model, call).error is not None)
        assert settings() == before and model.training, name
        now = list(model.parameters())
        assert all(x is y and x.data_ptr() == at for x, (y, at, *_) in zip(now, held, strict=True)), name
        assert all((x.dtype, x.requires_grad) == tuple(kept[2:4]) for x, kept in zip(now, held, strict=True)), name
        assert all(torch.equal(x, kept[4]) and not x._backward_hooks for x, kept in zip(now, held, strict=True)), name
    assert refused == ["doubles", "halves", "grown", "weights in doubles"]


def seen(*outputs, inputs=(), error=None):
    return Seen(list(outputs), None, list(inputs), error=error)


def kind(ours, theirs, *others):
    found = compare.difference(ours, theirs, lambda: others)
    return None if found is None else found.kind


def test_kinds_of_differences():
    x, double = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0], dtype=torch.float64)
    steady = [("double", seen(double)), ("perturbed", seen(x + 1e-7))]
    assert kind(seen(x + 1e-7), seen(x)) is None
    assert kind(seen(x + 1), seen(x), *steady) == "values"
    assert kind(seen(x.double()), seen(x)) == "dtype"
    assert kind(seen(x[:1]), seen(x), *steady) == "shape"
    square = torch.ones(2, 2)
    assert kind(seen(square.t()), seen(square)) == "strides"
    assert kind(seen(x, inputs=[x]), seen(x.clone(), inputs=[x])) == "alias"
    assert kind(seen(x, error=ValueError()), seen(x)) == "raises ValueError"
    assert kind(seen(x), seen(x, error=ValueError())) == "silent"
    assert kind(seen(x, error=ValueError()), seen(x, error=IndexError())) == "error type"
    spoilt = seen(x, error=RuntimeError("modified by an inplace operation"))  # a backward that ours goes through with
    assert kind(seen(x), spoilt) is None and kind(seen(x, error=TypeError()), spoilt) is None


def test_what_eager_itself_may_give_is_right():
    x = torch.tensor([1.0, 2.0])
    moved = [("double", seen(torch.tensor([1.0, 3.0], dtype=torch.float64))), ("perturbed", seen(x))]
    assert kind(seen(torch.tensor([1.0, 3.0])), seen(x), *moved) is None
    counted = [("double", seen(torch.tensor([1, 3])))]
    assert kind(seen(torch.tensor([1, 4])), seen(torch.tensor([1, 2])), *counted) is None


UNWRITTEN = """
import torch

CALLS = 1

def given(call):
    return [torch.ones(4, 6)]

def program(x0):
    v0 = x0 * 2
    return v0.resize_as_(torch.cat([x0, x0]))
"""


@pytest.mark.parametrize(("garbage", "first", "found"), [(0.0, 24, None), (1e30, 23, "values")])
def test_memory_that_nothing_has_written_may_hold_anything(garbage, first, found):
    loaded = load(UNWRITTEN, "cpu")
    program = loaded.module.program
    theirs = _observed(loaded, program, program, Call(0))
    theirs.outputs[0].view(-1)[24:] = garbage
    output = theirs.outputs[0].clone()
    output.view(-1)[first:] = 77.0
    assert kind(replace(theirs, outputs=[output]), theirs, *list(_others(loaded, Call(0)))) == found


def test_complex_numbers_are_held_against_doubles():
    x = torch.tensor([1.0 + 2.0j, 3.0 - 1.0j])
    steady = [("double", seen(x.to(torch.complex128))), ("perturbed", seen(x + 1e-7))]
    assert kind(seen(x + 1e-7j), seen(x), *steady) is None
    assert kind(seen(x + 1e-3j), seen(x), *steady) == "values"
    (moved,) = placed([x], "cpu", torch.float64)
    assert moved.dtype == torch.complex128


def test_constants_are_rounded_too():
    x = torch.tensor([0.5], dtype=torch.float64)
    coarse = replace(seen(x), eps=1e-7)
    assert kind(seen(x + 1e-8), seen(x), ("perturbed", coarse)) is None
    assert kind(seen(x + 1e-8), seen(x), ("perturbed", seen(x))) == "values"


def test_zeros_say_nothing_about_precision():
    x = torch.zeros(100)
    x[:4] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    off = torch.zeros(100)
    off[:3] = 1e-2
    runs = [("double", seen((x + off).double()))]
    off[3] = 2e-2  # where eager happened to be right
    assert kind(seen(x + off), seen(x), *runs) is None
    assert kind(seen(x + 10 * off), seen(x), *runs) == "values"


def test_terms_that_cancel_may_leave_a_rounding_of_what_is_around():
    zeros, large = torch.zeros(4), torch.tensor([50.0, -80.0])

    def both(first, dtype=torch.float32):
        return Seen(outputs=[first.to(dtype), large.to(dtype)])

    runs = [("double", both(zeros, torch.float64)), ("perturbed", both(zeros))]
    assert kind(both(zeros + 2e-5), both(zeros), *runs) is None
    assert kind(both(zeros + 2e-3), both(zeros), *runs) == "values"
    moved = [*runs, ("perturbed", both(zeros + 1e-9))]  # eager is not at 0: as precise as it
    assert kind(both(zeros + 2e-5), both(zeros), *moved) == "values"


def test_terms_that_cancel_in_double_precision_are_as_far_off_as_eagers_worst():
    zeros, off = torch.zeros(4), torch.tensor([0.0, 0.0, 0.0, 0.1])
    runs = [("double", seen(zeros.double() + 1e-15, torch.ones(1))), ("perturbed", seen(off, torch.ones(1)))]
    one = torch.ones(1)
    assert kind(seen(zeros + 0.2, one), seen(zeros, one), *runs) is None
    assert kind(seen(zeros + 0.5, one), seen(zeros, one), *runs) == "values"


def test_zeros_in_place_of_no_gradient_come_last():
    x = torch.ones(2)
    ours, theirs = (replace(seen(x), gradients=[gradient]) for gradient in (torch.zeros(2), None))
    runs = [("double", theirs), ("perturbed", theirs)]
    assert kind(ours, theirs) == "zeros" and kind(replace(ours, outputs=[x + 1]), theirs, *runs) == "values"
    assert kind(replace(ours, gradients=[x]), theirs) == "type"


MASKED = """
import torch

CALLS = 1

def given(call):
    return [torch.zeros(1, 4).to(torch.float16)]

def program(x0):
    v0 = x0.masked_fill(x0 == 0, torch.finfo(x0.dtype).min)
    return (v0 - v0.logsumexp(-1, keepdim=True)).exp()
"""
BITS = """
import torch

CALLS = 1

def given(call):
    return [torch.tensor([0.3, 1.0])]

def program(x0):
    return x0.exp().view(torch.int32), (x0.exp() * 1e9).cos(), x0.log()
"""


def test_masks_are_the_same_in_double_precision():
    """Half precision cannot tell the lowest number from another one 1.4 above it."""
    loaded = load(MASKED, "cpu")
    (_, double), *_ = _others(loaded, Call(0))
    torch.testing.assert_close(double.outputs[0], torch.full((1, 4), 0.25, dtype=torch.float64))


def test_functions_may_give_the_neighbour_of_their_result():
    loaded = load(BITS, "cpu")
    program = loaded.module.program
    theirs = _observed(loaded, program, program, Call(0))
    off = [theirs.outputs[0] + 1, theirs.outputs[1] * 0.5, theirs.outputs[2]]
    others = list(_others(loaded, Call(0)))
    assert kind(replace(theirs, outputs=off), theirs, *others) is None
    off[2] = off[2] + 1e-3  # of 1.0 the logarithm is exact
    assert kind(replace(theirs, outputs=off), theirs, *others) == "values"


def test_a_size_that_moves_says_nothing():
    x = torch.ones(3)
    runs = [("double", seen(x.double())), ("perturbed", seen(torch.ones(2)))]
    assert kind(seen(torch.ones(2)), seen(x), *runs) == "unstable"
    assert kind(seen(torch.ones(2)), seen(x), *runs[:1]) == "shape"


def test_inputs_as_views_of_flat_memory():
    x = torch.randn(4, 6)
    one, two, part = placed([x, x, x[1:]], "cpu", views=True)
    assert one is not two and one._base is not None and part._base is one._base and one.equal(x)


SHORT = """
import torch

def given(call):
    torch.manual_seed(call)
    x0 = torch.randn(3)
    return [x0, torch.tensor([7])]

def program(x0, x1):
    v0 = x0 * 2
    return x0[x1]
"""


def test_programs_that_read_out_of_bounds_are_refused_before_a_device_fails():
    assert _reads_out_of_bounds(SHORT)
    assert not _reads_out_of_bounds(SHORT.replace("7", "2"))


def test_seeds_stay_in_smaller_programs():
    assert all("manual_seed" in made for made in _smaller(SHORT))


def test_inputs_in_double_precision_share_what_they_shared():
    x = torch.randn(4, 6).t()
    one, other, number = placed([x, x[1:], 3], "cpu", torch.float64)
    assert one.stride() == x.stride()
    assert one.dtype == torch.float64
    assert other.untyped_storage()._cdata == one.untyped_storage()._cdata
    assert number == 3
    assert widened("x.half() + torch.float32") == "x.double() + torch.float64"


WORKER = """
import json, os, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    if int(line) == 2:
        os.abort()
    print(json.dumps({"seed": int(line), "outcome": "agree"}), flush=True)
"""


def test_a_run_ends_where_workers_do_not_start(monkeypatch, tmp_path):
    monkeypatch.setattr(service, "START", 20.0)
    lines = f"import pathlib, sys\nfile = pathlib.Path({str(tmp_path / 'once')!r})\n"
    once = lines + "if not file.exists():\n    file.touch()\n    sys.exit(1)\n" + WORKER
    run = service.Service([sys.executable, "-c", once], 1, time.monotonic() + 60)
    assert [made["seed"] for made in run.run(range(2))] == [0, 1]
    never = service.Service([sys.executable, "-c", "raise SystemExit(1)"], 1, time.monotonic() + 60)
    assert not list(never.run(range(2)))


def test_a_crash_names_its_program_and_a_run_goes_on(tmp_path):
    run = service.Service([sys.executable, "-c", WORKER], 1, time.monotonic() + 60)
    found = {made["seed"]: made for made in run.run(range(5))}
    outcomes = {seed: made["outcome"] for seed, made in found.items()}
    assert outcomes == {0: "agree", 1: "agree", 2: "crash", 3: "agree", 4: "agree"}
    assert "signal 6" in found[2]["failure"]["message"]
    state = tmp_path / "state.jsonl"
    state.write_text("".join(json.dumps(made) + "\n" for made in found.values()) + '{"seed"')
    assert service.read(state) == found
    told = service.summary(found)
    assert told["outcomes"] == {"agree": 4, "crash": 1}
    (group,) = told["not right"].values()
    assert group == {"programs": 1, "seeds": [2]}
