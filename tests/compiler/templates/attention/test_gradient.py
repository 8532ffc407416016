"""Derivatives of score functions against autograd."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.ops import OPS
from regraft.compiler.ir.value import Const, Load, Op, Value
from regraft.compiler.templates.attention.description import SCORE
from regraft.compiler.templates.attention.gradient import ONE, ZERO, NoDerivativeError, derivative

F32 = torch.float32
BIAS = Load("bias", (Var("j", 8).index(),), F32)


def op(name: str, *args: Value) -> Value:
    return Op(name, args, F32)


def number(x: float) -> Value:
    return Const(x, F32)


def evaluate(value: Value, score: torch.Tensor) -> torch.Tensor:
    if value is SCORE:
        return score
    if value is BIAS:
        return torch.linspace(0.5, 2.0, 8)
    if isinstance(value, Const):
        return torch.tensor(value.number, dtype=value.dtype)
    assert isinstance(value, Op)
    return OPS[value.name].reference(*(evaluate(arg, score) for arg in value.args))


@pytest.mark.parametrize("name", ["neg", "tanh", "exp", "sigmoid", "log", "reciprocal", "abs", "sin", "cos"])
def test_functions_of_one_number(name: str) -> None:
    agrees(op(name, op("mul", op("add", SCORE, BIAS), number(0.5))))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_arithmetic(name: str) -> None:
    for a, b in ((SCORE, BIAS), (BIAS, SCORE), (op("tanh", SCORE), op("exp", SCORE))):
        agrees(op(name, a, b))


def test_choices() -> None:
    test = Op("gt", (BIAS, number(1.0)), torch.bool)
    agrees(op("where", test, op("tanh", SCORE), op("mul", SCORE, BIAS)))
    agrees(op("where", test, SCORE, number(3.0)))


def agrees(value: Any) -> None:
    score = torch.linspace(0.1, 1.7, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(evaluate(value, score).sum(), score)
    torch.testing.assert_close(evaluate(derivative(value), score.detach()).expand(8), expected)


def test_constants_stay_constants() -> None:
    hidden = op("where", Op("gt", (BIAS, number(1.0)), torch.bool), op("mul", SCORE, number(0.125)), number(-math.inf))
    assert derivative(hidden) is number(0.125)
    assert derivative(op("add", SCORE, BIAS)) is ONE
    assert derivative(BIAS) is ZERO


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(NoDerivativeError, match="erfinv"):
        derivative(op("erfinv", SCORE))
