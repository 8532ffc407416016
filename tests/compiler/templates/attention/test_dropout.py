"""What dropout leaves of weights, read off formulas."""

from __future__ import annotations

import pytest
import torch

from regraft.compiler.ir.value import Const, Load, Op, Value
from regraft.compiler.templates.attention.dropout import dropped

F32 = torch.float32
WEIGHT, OTHER = Load("p", (0,), F32), Load("x", (0,), F32)
KEEP, MORE = Load("keep", (0,), torch.bool), Load("more", (0,), torch.bool)


def number(value: float) -> Value:
    return Const(value, F32)


def times(a: Value, b: Value) -> Value:
    return Op("mul", (a, b), F32)


def flag(keep: Value) -> Value:
    return Op("cast", (keep,), F32)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (WEIGHT, (None, 1.0)),
        (Op("round_bfloat16", (WEIGHT,), F32), (None, 1.0)),
        (times(times(WEIGHT, flag(KEEP)), number(2.0)), (KEEP, 2.0)),
        (times(WEIGHT, times(flag(KEEP), number(2.0))), (KEEP, 2.0)),
        (Op("div", (Op("where", (KEEP, WEIGHT, number(0.0)), F32), number(0.5)), F32), (KEEP, 2.0)),
        (times(flag(KEEP), times(WEIGHT, flag(KEEP))), (KEEP, 1.0)),
        (OTHER, None),
        (times(WEIGHT, OTHER), None),
        (times(times(WEIGHT, flag(KEEP)), flag(MORE)), None),
        (Op("where", (KEEP, WEIGHT, number(1.0)), F32), None),
        (Op("add", (WEIGHT, number(1.0)), F32), None),
        (Op("div", (WEIGHT, number(0.0)), F32), None),
    ],
)
def test_masks_and_factors(value: Value, expected: tuple[Value | None, float] | None) -> None:
    assert dropped(value, lambda load: load is WEIGHT) == expected
