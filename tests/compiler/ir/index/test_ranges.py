"""Ranges of integer values hold for all that their operands may be, sums at the ends of a dtype included."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.index.ranges import value_bounds
from regraft.compiler.ir.value import Const, Load, Op, Value
from regraft.compiler.lowering.arithmetic import op

ENDS = [-(2**31), -(2**31) + 1, -7, -1, 0, 1, 3, 511, 2**31 - 2, 2**31 - 1]
NUMBERS = st.sampled_from(ENDS)
UNKNOWN = Load("numbers", (Var("i", 8),), torch.int32)
FUNCTIONS = {
    "maximum": torch.maximum, "minimum": torch.minimum, "add": torch.add, "sub": torch.sub,
    "bitwise_and": torch.bitwise_and, "rshift": torch.bitwise_right_shift,
}  # fmt: skip


KINDS = [torch.int8, torch.uint8, torch.int16, torch.int64, torch.bool]


def converted(value: Value, dtype: torch.dtype) -> Value:
    return Op("cast", (Op("cast", (value,), dtype),), torch.int32)


def values(depth: int) -> st.SearchStrategy[Value]:
    leaves = st.one_of(st.just(UNKNOWN), NUMBERS.map(lambda n: Const(n, torch.int32)))
    if not depth:
        return leaves
    there_and_back = st.builds(converted, values(depth - 1), st.sampled_from(KINDS))
    return (
        st.builds(op, st.sampled_from(sorted(set(FUNCTIONS) - {"rshift"})), values(depth - 1), values(depth - 1))
        | st.builds(op, st.just("rshift"), values(depth - 1), st.integers(0, 31).map(lambda n: Const(n, torch.int32)))
        | there_and_back
        | leaves
    )


def evaluated(value: Value, numbers: torch.Tensor) -> torch.Tensor:
    if isinstance(value, Const):
        return torch.full_like(numbers, value.number)
    if not isinstance(value, Op):
        return numbers
    if value.name == "cast":
        return evaluated(value.args[0], numbers).to(value.dtype)
    return FUNCTIONS[value.name](*(evaluated(x, numbers) for x in value.args))


@given(values(4))
def test_values_are_in_their_ranges(value: Value) -> None:
    low, high = value_bounds(value)
    found = evaluated(value, torch.tensor(ENDS, dtype=torch.int32)).tolist()
    assert low is None or low <= min(found)
    assert high is None or high >= max(found)


def test_bits_have_ends() -> None:
    byte = Load("bytes", (Var("i", 8),), torch.uint8)
    assert value_bounds(op("bitwise_and", UNKNOWN, Const(15, torch.int32))) == (0, 15)
    assert value_bounds(op("rshift", byte, Const(4, torch.uint8))) == (0, 15)
    assert value_bounds(op("rshift", UNKNOWN, Const(4, torch.int32))) == (None, None)


def test_a_step_from_a_number_with_ends_has_ends() -> None:
    inside = op("minimum", op("maximum", UNKNOWN, Const(0, torch.int32)), Const(512, torch.int32))
    assert value_bounds(op("add", inside, Const(3, torch.int32))) == (3, 515)
    assert value_bounds(op("sub", inside, Const(3, torch.int32))) == (-3, 509)
    assert value_bounds(op("add", inside, Const(2**31 - 2, torch.int32))) == (None, None)
    assert value_bounds(op("add", UNKNOWN, Const(3, torch.int32))) == (None, None)
