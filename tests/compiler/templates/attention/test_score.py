"""Scores over ln 2: where that costs nothing, and where it might overflow."""

from __future__ import annotations

import math

import pytest
import torch

from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.value import Const, Load, Number, Op, Value
from regraft.compiler.templates.attention.description import SCORE
from regraft.compiler.templates.attention.score import LOG2_E, in_powers_of_two, lean, masked, unscaled

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


# -- cheaper arithmetic -----------------------------------------------------------------------------------------------


def op(name: str, *args: Value, dtype: torch.dtype = F32) -> Value:
    return Op(name, args, dtype)


def test_constant_divisors_and_factors_become_one_factor() -> None:
    capped = op("mul", op("tanh", op("div", scaled(0.25), number(50.0))), number(50.0))
    assert lean(capped) is op("mul", op("fast_tanh", scaled(0.25 / 50.0)), number(50.0))
    assert lean(op("div", SCORE, number(0.0))) is op("div", SCORE, number(0.0))
    assert lean(op("div", SCORE, BIAS)) is op("div", SCORE, BIAS)
    tiny = op("mul", scaled(1e-20), number(1e-20))
    assert lean(tiny) is tiny


def test_differences_of_positions_are_computed_with_floats() -> None:
    i, j = Var("i", 512).index(), Var("j", 512).index()
    apart = op("sub", Number(j, torch.int64), Number(i, torch.int64), dtype=torch.int64)
    assert lean(op("cast", apart)) is op("sub", Number(j, F32), Number(i, F32))
    far = Number(Var("j", 1 << 30).index(), torch.int64)
    assert lean(op("cast", far)) is op("cast", far)
    assert lean(op("cast", op("mul", apart, apart, dtype=torch.int64))) is not lean(op("cast", apart))


def test_factors_of_what_is_bounded_take_it_up() -> None:
    assert in_powers_of_two(op("mul", op("tanh", SCORE), number(50.0))) is not None


def test_factors_are_taken_out() -> None:
    hidden = op("where", MASK, scaled(0.5), number(-math.inf))
    assert unscaled(hidden) == (op("where", MASK, SCORE, number(-math.inf)), 0.5)
    assert unscaled(scaled(0.25)) == (SCORE, 0.25)


@pytest.mark.parametrize(
    "score",
    [SCORE, scaled(-0.5), scaled(0.0), op("where", MASK, scaled(0.5), scaled(0.25)), op("add", scaled(0.5), BIAS),
     op("where", MASK, scaled(0.5), number(-1e9)), number(-math.inf)],
)  # fmt: skip
def test_factors_that_stay(score: Value) -> None:
    assert unscaled(score) is None


def test_masks_of_minus_infinity_are_choices() -> None:
    lowest, zero, s = number(-math.inf), number(0.0), scaled(0.5)
    assert masked(s, op("where", MASK, zero, lowest)) is op("where", MASK, s, lowest)
    assert masked(s, op("where", MASK, lowest, BIAS)) is op("where", MASK, lowest, op("add", s, BIAS))
    assert masked(s, BIAS) is op("add", s, BIAS)
    low = op("where", MASK, zero, number(-1e9))
    assert masked(s, low) is op("add", s, low)
