"""Every operator of ATen that takes a Python number takes a symbolic one, as eager does, on both code generators."""

import pytest
import torch
from support.lowering import compare, fresh
from support.scalar_operators import ScalarCall, overloads, samples
from support.symbols import compiled, traced
from support.thorough import one_row_in

# Tracing refuses the first; the shapes of the second's operands are not what its kernel takes.
LEFT_OUT = ("allclose.default", "_pdist_backward.default")
# Eager refuses negative powers of integers, and a CELU's alpha of 0; torch's decompositions of the others do not trace.
KEPT = {
    "aten.celu.default",
    "aten._foreach_pow.Scalar", "aten._foreach_pow.ScalarList", "aten._foreach_powsum.Scalar",
    "aten.isin.Scalar_Tensor",
    "aten.isin.Tensor_Scalar", "aten.linalg__powsum.default", "aten.linspace.Scalar_Tensor",
    "aten.linspace.Tensor_Scalar", "aten.pow.Tensor_Scalar",
}  # fmt: skip
CALLS = {"library", "algorithm", "special", "data-dependent"}


def together(calls: list[ScalarCall], kind: str):
    """One function of all their tensors and a number."""

    def function(*args):
        tensors, k = iter(args[:-1]), args[-1]
        return tuple(call([next(tensors) for _ in call.tensors()], k, kind) for call in calls)

    return function, [tensor for call in calls for tensor in call.tensors()]


def is_symbolic(call: ScalarCall, kind: str) -> bool:
    """Whether tracing keeps its numbers symbolic: it makes constants of some."""
    function, tensors = together([call], kind)
    return traced(function, (*tensors, 2), dynamic=False).takes((*tensors, 3))


@one_row_in(2)
@pytest.mark.parametrize(
    ("dtype", "kind", "part", "device"),
    [
        (torch.float32, "float", slice(None), "cpu"),
        (torch.bfloat16, "float", slice(0, None, 6), "cpu"),
        (torch.int64, "float", slice(1, None, 6), "cpu"),
        (torch.int64, "int", slice(2, None, 6), "cpu"),
        (torch.float32, "int", slice(3, None, 6), "cpu"),
        (torch.float32, "float", slice(0, None, 10), "interpreter"),
        (torch.bfloat16, "float", slice(2, None, 12), "interpreter"),
    ],
)
def test_operators_take_symbolic_numbers(dtype, kind, part, device):
    if device != "cpu":
        pytest.importorskip("triton")
    calls = [call for call in samples(dtype, kind) if call.name not in LEFT_OUT][part]
    calls = [call for call in calls if is_symbolic(call, kind)]
    assert len(calls) > 4
    function, tensors = together(calls, kind)
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    program = compiled(function, (*tensors, 2), device, dynamic=False)
    for k in (2, 3):
        assert program.takes((*tensors, k))
        for call, ours, theirs in zip(
            calls, program.run(*fresh((*tensors, k))), function(*fresh((*tensors, k))), strict=True
        ):
            compare(ours, theirs, msg=lambda text, name=call.name: f"{name}: {text}", **tolerance)
    assert {name for name, code in program.kept if code not in CALLS} <= KEPT


def test_the_table_covers_what_eager_takes():
    names, taken = dict(overloads()), {call.name for call in samples(torch.float32, "float")}
    assert len(names) > 150 and len(taken) > 0.7 * len(names)
    assert {"add.Tensor", "elu.default", "celu.default", "norm.Scalar", "linspace.Tensor_Scalar"} <= taken
