"""Type promotion and broadcasting, against eager's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lowering import agree
from support.thorough import examples

from regraft.compiler.ir.index.index import Size
from regraft.compiler.ir.program import Buffer
from regraft.compiler.lowering.call_arguments import DTYPES
from regraft.compiler.lowering.core import Unlowered, whole
from regraft.compiler.lowering.ops.elementwise import broadcast, promoted

CPU = torch.device("cpu")
NUMBERS = (True, 3, 2.5)


@st.composite
def operands(draw):
    """Metas of tensors with and without dims, and numbers; at least one tensor."""
    dtypes = st.sampled_from(sorted(DTYPES, key=str))
    tensors = st.builds(lambda dtype, dim: torch.empty((2,) * dim, dtype=dtype), dtypes, st.integers(0, 1))
    return [draw(tensors), *draw(st.lists(st.one_of(tensors, st.sampled_from(NUMBERS)), max_size=1))]


def as_lowered(operand):
    if not isinstance(operand, torch.Tensor):
        return operand
    return whole(Buffer("x", operand.dtype, tuple(operand.shape), tuple(operand.stride()), CPU))


@settings(max_examples=examples(80, 200), deadline=None)
@given(operands())
def test_promotion_is_eagers(given_):
    expected = torch.result_type(*given_) if len(given_) == 2 else given_[0].dtype
    assert promoted([as_lowered(o) for o in given_]) == expected
    assert promoted([as_lowered(o) for o in given_[::-1]]) == expected


@given(st.lists(st.integers(0, 3), max_size=4), st.data())
def test_broadcasting_is_eagers(shape, data):
    shapes = [tuple(1 if data.draw(st.booleans()) else size for size in shape[i:]) for i in range(len(shape) + 1)]
    assert broadcast(shapes) == tuple(torch.broadcast_shapes(*shapes))


def test_sizes_that_are_equal_only_when_run_are_refused():
    s, t = (Size(name, 2, None).index() for name in "st")
    assert broadcast([(s, 1), (1, s)]) == (s, s)
    with pytest.raises(Unlowered, match="equal only when run"):
        broadcast([(s,), (t,)])


def test_numbers_round_to_the_tensors_dtype_where_eager_rounds_them():
    x = torch.full((3,), 0.1, dtype=torch.bfloat16)
    agree(lambda x: (x == 0.1, x < 0.1, torch.maximum(x, torch.tensor(0.1))), x, extern=set(), exact=True)
    agree(lambda x: (x + 0.1, x * 0.1, x / 3), x, exact=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_mixed_operands(dynamic):
    a, b = torch.randn(4, 1, 3), torch.arange(5).reshape(5, 1)
    agree(lambda a, b, c: (a + b, a * c, b + c, b / b.sum(), c & (b > 2)), a, b, torch.tensor(True), dynamic=dynamic)
