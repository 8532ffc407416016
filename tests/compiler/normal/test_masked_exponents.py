"""Exponents and weights that a mask drops before the division: rows that keep nothing, and sums with a bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.attentions import B, H, S, T, keeps, normal, qkv
from support.rewriting import assert_agrees, rewritten, trained

KEEP = keeps(B, 1, S, T)
EMPTY = KEEP.clone()
EMPTY[:, :, 2] = False


def exponents(q: Any, k: Any, m: Any) -> Any:
    return (q @ k.mT * 0.25).exp() * m


def weights(q: Any, k: Any, m: Any) -> Any:
    return torch.where(m, (q @ k.mT * 0.25).softmax(-1), 0.0)


def over_sum(masked: Callable[..., Any], bound: Callable[[Any], Any] = lambda total: total) -> Callable[..., Any]:
    def attend(q, k, v, m):
        w = masked(q, k, m)
        return w / bound(w.sum(-1, keepdim=True)) @ v

    return attend


@pytest.mark.parametrize("masked", [exponents, weights])
def test_rows_that_keep_nothing_are_nan(masked: Callable[..., Any]) -> None:
    function, given = over_sum(masked), [*qkv(), EMPTY]
    found = rewritten(function, given)
    assert found.count() == 1 and found.run(*given)[:, :, 2].isnan().all()
    assert_agrees(function, found.run, given)


@pytest.mark.parametrize("masked", [exponents, weights])
def test_sums_with_a_bound_are_none(masked: Callable[..., Any]) -> None:
    """Rows that keep nothing are zeros, and kept weights may all be smaller than the bound."""
    function, given = over_sum(masked, lambda total: total.clamp(min=1e-8)), trained([*qkv(), EMPTY])
    found = rewritten(function, given)
    assert found.count() == 0
    assert_agrees(function, found.run, given)


def test_a_mask_of_numbers_is_none() -> None:
    function, given = over_sum(exponents), [*qkv(), normal(B, H, S, T).abs()]
    found = rewritten(function, given)
    assert found.count() == 0
    assert_agrees(function, found.run, given)


def test_sums_of_other_weights_are_none() -> None:
    def function(q, k, v, m):
        return exponents(q, k, m) / exponents(q, k, ~m).sum(-1, keepdim=True) @ v

    given = [*qkv(), KEEP]
    found = rewritten(function, given)
    assert found.count() == 0
    assert_agrees(function, found.run, given)
