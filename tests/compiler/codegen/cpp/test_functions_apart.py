"""Functions of what rows are folded to: in loops of their own, where they would be alone or take lanes from rows."""

import pytest
import torch
import torch.nn.functional as F
from support.kernels import compiled_agrees, one_unit
from support.lowering import lowered

from regraft.compiler.codegen.cpp.functions_apart import functions_apart
from regraft.compiler.codegen.cpp.kernel_text import planned, prepared
from regraft.compiler.codegen.cpp.plan import LoopPlan
from regraft.compiler.codegen.cpp.target import target
from regraft.compiler.ir.accesses import roots, statements
from regraft.compiler.ir.dependence import Dependence
from regraft.compiler.ir.interpreter import run_kernel
from regraft.compiler.ir.kernel import Loop
from regraft.compiler.ir.lanes import Lanes
from regraft.compiler.ir.value import Op, walk
from regraft.compiler.ir.verify import verify_kernel
from regraft.compiler.ir.verify_lanes import lane_findings
from regraft.compiler.schedule import schedule

R = torch.randn
WIDE = target("avx512")
CLASSES = torch.arange(320) * 7 % 40


def picked(x, t):
    """Class probabilities of rows, squared."""
    return (x.log_softmax(-1).gather(1, t[:, None])[:, 0].exp() - 1).square()


APART = {
    "one row each": (lambda x, y: torch.sigmoid((x * y).sum(-1)), [R(320, 80), R(320, 80)]),
    "all pairs": (lambda x, y: (-(x[:, None] - y).square().sum(-1)).exp(), [R(30, 24), R(60, 24)]),
    "pairs, folded": (lambda x, y: (-(x[:, None] - y).square().sum(-1)).exp().sum(-1), [R(9, 24), R(60, 24)]),
    "two folds": (lambda x: torch.tanh(x.amax(-1)) * x.sum(-1).exp(), [R(320, 80)]),
    "a whole number": (lambda x: x.argmax(-1).float().sin() + x.sum(-1), [R(320, 80)]),
    "elements at an index": (picked, [R(320, 40), CLASSES]),
    "added at an index": (
        lambda x, t: x.new_zeros(40).index_add(0, t, x.sum(-1).exp()), [R(320, 80) / 80, CLASSES]
    ),
    "loss": (lambda x, y: -F.logsigmoid((x * y).sum(-1)).mean(), [R(320, 80), R(320, 80)]),
}  # fmt: skip


def kernels_of(function, *inputs):
    return [prepared(kernel, WIDE) for kernel in schedule(lowered(function, *inputs).program).kernels]


def apart(kernel):
    return functions_apart(kernel, LoopPlan(kernel, WIDE, Dependence()), 16)


@pytest.mark.parametrize("name", APART)
@one_unit()
def test_programs(name):
    function, inputs = APART[name]
    compiled_agrees(function, *inputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["one row each", "all pairs", "pairs, folded", "elements at an index"])
def test_functions_are_in_lanes(name):
    """No loop without lanes computes a function, and no lanes are those of 64 bits where rows have none."""
    for kernel in kernels_of(*[APART[name][0], *APART[name][1]]):
        made = planned(kernel, WIDE)
        assert verify_kernel(made) == [] and list(lane_findings(made)) == []
        assert made.scratch
        for loop in (s for s in statements(made.body) if isinstance(s, Loop) and s.lanes is None):
            own = [v for s in loop.body for v in walk(roots(s))]
            assert not any(isinstance(v, Op) and v.name in ("exp", "log", "sigmoid") for v in own)
        assert max(s.lanes.lanes for s in statements(made.body) if isinstance(getattr(s, "lanes", None), Lanes)) == 16


def test_the_interpreter_runs_what_is_apart():
    function, (x, y) = APART["all pairs"]
    (kernel,) = kernels_of(function, x, y)
    made = apart(kernel)
    assert made is not kernel
    *given, result = (p.buffer.name for p in made.params)
    inputs = {f"arg{k}_1": t.flatten() for k, t in enumerate((x, y))}
    found = run_kernel(made, {**{name: inputs[name] for name in given}, result: torch.empty(30 * 60)}) or {}
    torch.testing.assert_close(found[result].view(30, 60), function(x, y))


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: x.norm(dim=-1), [R(320, 80)]),  # no function
        (lambda x: x.sum(0).exp(), [R(80, 320)]),  # lanes lie across rows
        (lambda x: x - x.sum(-1, keepdim=True).exp(), [R(320, 80)]),  # each row is read once more
        (lambda x: x.sum(-1).exp(), [R(331, 80)]),  # no whole number of blocks
        (lambda x: x.sum(-1).exp(), [R(4, 80000)]),  # long rows
        (lambda x: x + 1, [R(320, 80)]),
    ],
)
def test_what_stays_as_it_is(function, inputs):
    assert all(apart(kernel) is kernel for kernel in kernels_of(function, *inputs))
