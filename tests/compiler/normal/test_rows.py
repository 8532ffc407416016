"""Statistics of rows and slices have one normal form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.normal import form

X = torch.randn(2, 3, 8)
VARIANCE = "mean(pow(sub(%0, mean(%0, [-1], True)), 2), [-1], True)"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.var(-1, unbiased=False, keepdim=True), VARIANCE),
        (lambda x: torch.var(x, dim=[-1], correction=0, keepdim=True), VARIANCE),
        (lambda x: torch.var_mean(x, [-1], correction=0, keepdim=True)[0], VARIANCE),
        (lambda x: torch.var_mean(x, [-1], correction=0, keepdim=True)[1], "mean(%0, [-1], True)"),
        (lambda x: x.sum(-1, keepdim=True) / 8, "mean(%0, [-1], True)"),
        (lambda x: x.sum(-1, keepdim=True) / 7, "mul(sum(%0, [-1], True), 0.142857)"),
        (lambda x: x**-0.5, "rsqrt(%0)"),
        (lambda x: x.pow(0.5), "sqrt(%0)"),
        (lambda x: 1 / torch.sqrt(x), "rsqrt(%0)"),
        (lambda x: x / torch.sqrt(x + 1), "mul(%0, rsqrt(add(%0, 1)))"),
        (lambda x: -x, "mul(%0, -1)"),
    ],
)
def test_statistics(function: Callable[..., Any], expected: str) -> None:
    assert form(function, X) == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.var(-1, keepdim=True),
        lambda x: torch.var_mean(x, -1, keepdim=True)[0],
        lambda x: torch.var(x, correction=0),
    ],
)
def test_other_variances_stay(function: Callable[..., Any]) -> None:
    assert "var" in form(function, X)


def test_a_lone_deviation_is_no_scale() -> None:
    """A batch of one row: its deviation has one element, and stays where it is."""
    lone = torch.randn(1, 1, 8)
    norm = form(lambda x: x * 3 * torch.rsqrt(x.mean(-1, keepdim=True) + 1.0), lone)
    assert norm == "mul(mul(%0, 3), rsqrt(add(mean(%0, [-1], True), 1)))"


END = 9223372036854775807


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.chunk(2, -1)[1],
        lambda x: x.split(4, dim=2)[1],
        lambda x: x.split([4, 4], -1)[1],
        lambda x: x[..., 4:],
        lambda x: x[..., 4:8],
        lambda x: x.narrow(-1, 4, 4),
    ],
)
def test_second_half(function: Callable[..., Any]) -> None:
    assert form(function, X) in (f"slice(%0, 2, 4, {END})", "narrow(%0, -1, 4, 4)")


def test_first_half() -> None:
    assert form(lambda x: x.chunk(2, -1)[0], X) == "slice(%0, 2, 0, 4)" == form(lambda x: x[..., :4], X)
