"""Scores over ln 2: where that costs nothing, and where it might overflow."""

from __future__ import annotations

import math

import pytest
import torch

from regraft.compiler.ir.index import Var
from regraft.compiler.ir.value import Const, Load, Op, Value
from regraft.compiler.templates.attention import SCORE
from regraft.compiler.templates.attention_score import LOG2_E, in_powers_of_two

F32 = torch.float32
BIAS, MASK = (Load(name, (Var("j", 8).index(),), dtype) for name, dtype in (("bias", F32), ("mask", torch.bool)))


def number(x: float) -> Value:
    return Const(x, F32)


def scaled(by: float) -> Value:
    return Op("mul", (SCORE, number(by)), F32)


def test_factors_take_it_up() -> None:
    assert in_powers_of_two(scaled(0.125)) is scaled(0.125 * LOG2_E)
    hidden = Op("where", (MASK, scaled(0.125), number(-math.inf)), F32)
    assert in_powers_of_two(hidden) is Op("where", (MASK, scaled(0.125 * LOG2_E), number(-math.inf)), F32)


@pytest.mark.parametrize(
    "score",
    [
        SCORE,
        scaled(1.0),
        scaled(math.nan),
        Op("add", (scaled(0.125), BIAS), F32),
        Op("where", (MASK, scaled(0.125), number(torch.finfo(F32).min)), F32),
    ],
)
def test_what_might_overflow_stays(score: Value) -> None:
    assert in_powers_of_two(score) is None
