"""Weights of few bits as look-ups: the table holds what the formula makes of every byte, or there is none."""

from __future__ import annotations

import pytest
import torch

from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.value import Const, Load, Op, Value
from regraft.compiler.templates.gemm.looked_up import looked_up

F32, U8, I8 = torch.float32, torch.uint8, torch.int8
PLACE = Var("m", 64)
BYTE, SIGNED = (Load("<b>", (PLACE.index(),), dtype) for dtype in (U8, I8))


def number(value: float, dtype: torch.dtype = F32) -> Value:
    return Const(value, dtype)


def op(name: str, *args: Value, dtype: torch.dtype = F32) -> Value:
    return Op(name, args, dtype)


LOW = op("bitwise_and", BYTE, number(15, U8), dtype=U8)
HIGH = op("rshift", BYTE, number(4, U8), dtype=U8)


@pytest.mark.parametrize("shift", [0, 4])
def test_halves_of_bytes(shift: int) -> None:
    half = HIGH if shift else LOW
    found = looked_up(op("mul", op("sub", op("cast", half), number(8.0)), number(0.5)))
    assert found is not None and found.byte == BYTE and found.shift <= shift
    bits = torch.tensor(found.table, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    byte = torch.arange(256)
    expected = ((byte >> 4 if shift else byte & 15) - 8) * 0.5
    assert torch.equal(bits[byte >> found.shift & 31].float(), expected.float())


def test_five_bits_from_any_place_on() -> None:
    pair = op("bitwise_and", op("rshift", BYTE, number(2, U8), dtype=U8), number(3, U8), dtype=U8)
    found = looked_up(op("cast", pair))
    assert found is not None and found.shift in (0, 1, 2)


@pytest.mark.parametrize(
    "value",
    [
        op("cast", BYTE),  # eight bits
        op("cast", SIGNED),
        op("mul", op("cast", LOW), number(0.1)),  # more digits than bfloat16 has
        op("mul", op("cast", LOW), number(float("inf"))),
        op("mul", op("cast", LOW), Load("<s>", (PLACE.index(),), F32)),  # another number for each word
    ],
)
def test_what_is_none(value: Value) -> None:
    assert looked_up(value) is None
