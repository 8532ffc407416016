"""Weights masked once more: rows with nothing to keep give zero, and no NaN to any gradient."""

from __future__ import annotations

import math

import pytest
import torch
from support.rewriting import assert_agrees, rewritten, trained

import regraft


@pytest.mark.parametrize("fill", [-math.inf, torch.finfo(torch.float32).min])
def test_an_empty_row_is_zero_and_so_are_its_gradients(fill: float) -> None:
    def attend(q, k, v, keep):
        return (q @ k.mT * 0.25).masked_fill(~keep, fill).softmax(-1).masked_fill(~keep, 0.0) @ v

    def backend(gm, inputs):
        return regraft.backend(gm, inputs, options={"profit": "always", "rules": ("sdpa",)})

    torch.manual_seed(0)
    torch._dynamo.reset()
    operands = [torch.randn(2, 4, 6, 8, requires_grad=True) for _ in range(3)]
    keep = torch.rand(2, 1, 6, 6) > 0.3
    keep[0, 0, 3] = False
    expected = attend(*operands, keep)
    with regraft.coverage() as cov:
        got = torch.compile(attend, backend=backend)(*operands, keep)
    assert cov.count("attention") == 1 and not got[0, :, 3].any()
    torch.testing.assert_close(got, expected)
    gradients = (torch.autograd.grad(out.square().sum(), operands) for out in (got, expected))
    torch.testing.assert_close(*map(list, gradients), rtol=1e-4, atol=1e-5)


KEEP = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) > 0.3
KEEP[:, :, 2] = False


def hidden(q, k, m):
    return (q @ k.mT * 0.25).masked_fill(~m, -math.inf).softmax(-1)


CLEARED = {
    "nan_to_num": lambda q, k, v, m: torch.nan_to_num(hidden(q, k, m)) @ v,
    "nan_to_num, in place": lambda q, k, v, m: hidden(q, k, m).nan_to_num_(nan=0.0) @ v,
    "where": lambda q, k, v, m: torch.where((w := hidden(q, k, m)).isnan(), torch.zeros_like(w), w) @ v,
    "masked_fill": lambda q, k, v, m: (w := hidden(q, k, m)).masked_fill(torch.isnan(w), 0) @ v,
    "masked_fill, added": lambda q, k, v, m: (
        (w := (q @ k.mT + torch.where(m, 0.0, -math.inf)).softmax(-1)).masked_fill(w.isnan(), 0) @ v
    ),
    "einsum": lambda q, k, v, m: torch.einsum("bhst,bhtd->bhsd", hidden(q, k, m).nan_to_num(), v),
    "plain softmax": lambda q, k, v, m: (q @ k.mT).softmax(-1).nan_to_num() @ v,
}


@pytest.mark.parametrize("spelling", CLEARED)
def test_rows_of_nan_that_are_cleared(spelling: str) -> None:
    """Whatever makes a row NaN: no key is kept, or an operand is NaN or infinite."""
    function = CLEARED[spelling]
    given = [torch.randn(2, 4, n, 8) for n in (5, 7, 7)] + [KEEP]
    found = rewritten(function, given)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, given)
    for which, value in ((0, math.nan), (0, math.inf), (1, math.nan), (1, math.inf), (2, math.nan), (2, -math.inf)):
        spoilt = [x.clone() for x in given]
        spoilt[which][0, 1, 1, 3] = spoilt[2][1, 2, 3, 4] = value
        assert_agrees(function, found.run, spoilt)


NOT_CLEARED = {
    "another number": lambda q, k, v, m: torch.nan_to_num(hidden(q, k, m), nan=1.0) @ v,
    "the number of another": lambda q, k, v, m: hidden(q, k, m).masked_fill(torch.isnan(q @ k.mT), 0) @ v,
    "other weights": lambda q, k, v, m: torch.where(hidden(q, k, m).isnan(), hidden(k[:, :, :5], k, m), 0.0) @ v,
}


@pytest.mark.parametrize("spelling", NOT_CLEARED)
def test_other_weights_stay(spelling: str) -> None:
    given = [torch.randn(2, 4, n, 8) for n in (5, 7, 7)] + [KEEP]
    found = rewritten(NOT_CLEARED[spelling], given)
    assert not found.count("sdpa")
    assert_agrees(NOT_CLEARED[spelling], found.run, given)


def test_cleared_rows_stay_in_training() -> None:
    """The gradient of `v` would be NaN, which in eager code is that of the other rows."""
    given = [*trained([torch.randn(2, 4, n, 8) for n in (5, 7, 7)]), KEEP]
    found = rewritten(CLEARED["nan_to_num"], given)
    assert not found.count("attention")
    assert_agrees(CLEARED["nan_to_num"], found.run, given)
