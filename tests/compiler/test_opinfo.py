"""A few operators of torch's database from every family of lowerings; `benchmarks/opinfo.py` runs them all."""

import pytest
import torch
from support.opinfo import Case, cases, check, operators
from support.opinfo_errors import Refused, check_refusals, refusals
from support.opinfo_layouts import check_layouts, layout_cases
from support.thorough import THOROUGH
from support.versions import not_in_old_torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

# Family of lowerings -> operators.
FAMILIES = {
    "pointwise": ["add", "pow", "where"],
    "activations": ["nn.functional.gelu", "nn.functional.hardswish"],
    "views": ["as_strided_copy", "diagonal_copy", "unfold"],
    "creation": ["new_full", "linspace"],
    "reductions": ["sum", "argmax", "var", "amin"],
    "scans": ["cumsum", "cummax", "logcumsumexp"],
    "softmax": ["log_softmax"],
    "norms": ["nn.functional.layer_norm", "nn.functional.batch_norm"],
    "losses": ["nn.functional.cross_entropy", "nn.functional.smooth_l1_loss"],
    "indexing": ["index_select", "gather", "nn.functional.embedding"],
    "scatter": ["scatter_reduce.amax", "index_add", "index_put"],
    "joining": ["cat", "nn.functional.pad.reflect", "roll"],
    "pooling": ["nn.functional.max_pool2d", "nn.functional.avg_pool2d"],
    "resampling": ["nn.functional.interpolate.bilinear"],
    "random": ["nn.functional.dropout", "bernoulli"],
    "calls": ["matmul", "sort", "nn.functional.conv2d"],
}
HOWS = ("plain", "gradient", "dynamic", "in place", "philox")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_give_what_eager_gives(family):
    known, names = operators(), FAMILIES[family] if THOROUGH else FAMILIES[family][::2]
    first = [c for name in names for c in cases(known[name], 1, [torch.float32], HOWS)]
    others = [
        c for name in names for c in cases(known[name], 1, [torch.bfloat16, torch.int64, torch.bool], ["strided"])
    ]
    outcomes = check([*first, *others])
    assert not [o for o in outcomes if o.outcome in ("wrong", "error")]
    assert sum(o.outcome == "ok" for o in outcomes) >= 2 * len(names)
    assert sum(o.kernels for o in outcomes) > 0


def sampled(function, *args):
    """A case of a function that is not in the database."""
    op = OpInfo("mine", op=function, dtypes=[torch.float32], sample_inputs_func=lambda *_, **__: [])
    return Case(op, torch.float32, "plain", 0, SampleInput(args[0], args=args[1:]))


def test_what_eager_refuses_is_no_case():
    (outcome,) = check([sampled(torch.matmul, torch.randn(2, 3), torch.randn(2, 3))])
    assert (outcome.outcome, outcome.message) == ("skipped", "eager raises RuntimeError")


def test_what_tracing_changes_is_not_held_against_kernels():
    calls = []

    def changing(x):
        calls.append(x)
        return x + (0.0 if len(calls) == 1 else 1.0)

    (outcome,) = check([sampled(changing, torch.randn(4))])
    assert outcome.outcome == "ok" and len(calls) > 1


def test_a_wrong_kernel_is_seen(monkeypatch):
    from regraft.compiler.codegen import cpp

    def nothing(kernels, build=cpp.build):
        return [lambda *args: None for _ in build(kernels)]

    monkeypatch.setattr(cpp, "build", nothing)
    (outcome,) = check([sampled(torch.exp, torch.randn(4) + 20)])
    assert outcome.outcome == "wrong" and outcome.message.startswith("result 0: Tensor-likes are not close")


def test_a_kernel_that_does_not_compile_is_an_error(monkeypatch):
    from regraft.compiler.codegen import cpp

    def refuse(kernels):
        raise cpp.CompileFailed("no")

    monkeypatch.setattr(cpp, "build", refuse)
    (outcome,) = check([sampled(torch.exp, torch.randn(4))])
    assert outcome.outcome == "error" and "CompileFailed" in outcome.message


def test_kernels_of_gpus_are_interpreted():
    known = operators()
    every = [c for n in ("cumsum", "scatter_add") for c in cases(known[n], 1, hows=["plain"], device="interpreter")]
    outcomes = check(every)
    assert {o.outcome for o in outcomes} == {"ok"} and sum(o.kernels for o in outcomes) >= len(outcomes)


@pytest.mark.parametrize(("calls", "how"), [(1, "skipped"), (5, "crash")])
def test_a_device_that_is_lost_ends_the_check(monkeypatch, calls, how):
    """Whatever runs after it would fail as well: eager's fault where no kernel has run yet, else ours."""
    every = [sampled(torch.exp, torch.randn(4)) for _ in range(4)]
    for case in every:
        case.device = "cuda"
    left = iter(range(calls))

    def synchronize(device):
        if next(left, None) is None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    outcomes = check(every)
    assert outcomes[-1].outcome == how and "illegal memory access" in outcomes[-1].message
    assert len(outcomes) == (1 if how == "skipped" else 2)


REFUSING = ["nn.functional.adaptive_max_pool2d", "gather", "nn.functional.gelu", "abs", "index_select"]


def test_what_eager_refuses_is_refused():
    known = operators()
    drawn = [case for name in REFUSING for case in refusals(known[name], most=6) if case.way != "dynamic errors"]
    outcomes = check_refusals(drawn)
    assert not [o for o in outcomes if o.outcome == "wrong"]
    assert sum(o.outcome == "ok" for o in outcomes) > 2 * len(REFUSING)


def test_what_eager_takes_is_no_refusal():
    op = OpInfo("mine", op=torch.relu, dtypes=[torch.float32], sample_inputs_func=lambda *_, **__: [])
    (outcome,) = check_refusals([Refused(op, "errors", 0, SampleInput(torch.ones(2)), torch.float32, "cpu")])
    assert outcome.outcome == "skipped"


LAID_OUT = [
    "add", "copysign", "floor_divide", "where", "roll", "split", "einsum", "nn.functional.batch_norm",
    "nn.functional.glu", "nn.functional.channel_shuffle", "nn.functional.max_unpool2d",
    "nn.functional.pad.reflect", "nn.functional.prelu", "nn.functional.nll_loss", "nn.functional.huber_loss",
    "nn.functional.hardswish", "nn.functional.conv2d",
]  # fmt: skip


@not_in_old_torch("lays gradients out contiguously, in AOTAutograd")
def test_results_and_gradients_lie_as_in_eager():
    known, names = operators(), LAID_OUT if THOROUGH else LAID_OUT[::2]
    outcomes = check_layouts([case for name in names for case in layout_cases(known[name])])
    assert not [o for o in outcomes if o.outcome == "wrong"]
    assert sum(o.outcome == "ok" for o in outcomes) > 2 * len(names)
