"""Weights masked once more: rows with nothing to keep give zero, and no NaN to any gradient."""

from __future__ import annotations

import math

import pytest
import torch
from support.rewriting import assert_agrees, outcome, rewritten, trained

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


def shown(q, k, m):
    return (q @ k.mT * 0.25).masked_fill(~m, -1e9).softmax(-1)


CLEARED = {
    "nan_to_num": lambda q, k, v, m: torch.nan_to_num(hidden(q, k, m)) @ v,
    "nan_to_num, in place": lambda q, k, v, m: hidden(q, k, m).nan_to_num_(nan=0.0) @ v,
    "where": lambda q, k, v, m: torch.where((w := hidden(q, k, m)).isnan(), torch.zeros_like(w), w) @ v,
    "masked_fill": lambda q, k, v, m: (w := hidden(q, k, m)).masked_fill(torch.isnan(w), 0) @ v,
    "masked_fill, added": lambda q, k, v, m: (
        (w := (q @ k.mT + torch.where(m, 0.0, -math.inf)).softmax(-1)).masked_fill(w.isnan(), 0) @ v
    ),
    "einsum": lambda q, k, v, m: torch.einsum("bhst,bhtd->bhsd", hidden(q, k, m).nan_to_num(), v),
    "unequal to itself": lambda q, k, v, m: (w := hidden(q, k, m)).masked_fill(w != w, 0) @ v,
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


def by_sums(q, k, m, fill):
    exponents = (q @ k.mT * 0.25).masked_fill(~m, fill).exp()
    return exponents / exponents.sum(-1, keepdim=True)


@pytest.mark.parametrize("fill", [-math.inf, -1e9, torch.finfo(torch.float32).min])
def test_rows_of_exponents_that_are_cleared(fill: float) -> None:
    """Exponents of low numbers are 0, and the row 0 / 0; of large numbers inf / inf."""
    given = [torch.randn(2, 4, n, 8) for n in (5, 7, 7)] + [KEEP]

    def function(q, k, v, m):
        return torch.nan_to_num(by_sums(q, k, m, fill)) @ v

    run = rewritten(function, given).run
    for factor in (1.0, 300.0):
        inputs = [given[0] * factor, *given[1:]]
        torch.testing.assert_close(run(*inputs), function(*inputs), rtol=1e-4, atol=1e-5)


def two_masks(q, k, v, m):
    """Rows of NaN by two masks, neither of which empties them alone."""
    scores = q @ k.mT + torch.where(m.flip(-1), 0.5, -math.inf)
    return torch.nan_to_num(scores.masked_fill(~m, -math.inf).softmax(-1)) @ v


TRAINED = {n: f for n, f in CLEARED.items() if "place" not in n} | {"two masks": two_masks}


@pytest.mark.parametrize("spelling", TRAINED)
def test_cleared_rows_in_training(spelling: str) -> None:
    """A row of NaN adds nothing to the gradient of value; one that a sum hides makes the others NaN."""
    function = TRAINED[spelling]
    given = [torch.randn(2, 4, n, 8) for n in (5, 7, 7)]
    found = rewritten(function, [*trained(given), KEEP])
    assert not found.count("attention")
    for which, value in ((0, 0.5), (0, math.inf), (0, math.nan), (1, math.inf), (2, math.nan)):
        spoilt = [x.clone() for x in given]
        spoilt[which][0, 1, 1, 3] = value
        assert_agrees(function, found.run, [*trained(spoilt), KEEP])


@pytest.mark.parametrize("spelling", TRAINED)
def test_cleared_rows_in_training_that_may_be_finite(spelling: str) -> None:
    """With nan="safe", a row that masks empty gives no gradient, and leaves no NaN in those of the others."""
    given = [*trained([torch.randn(2, 4, n, 8) for n in (5, 7, 7)]), KEEP]
    found = rewritten(TRAINED[spelling], given, nan="safe")
    assert found.count() == 1, found.record.near_misses
    out, *gradients = outcome(found.run, given)
    expected, *theirs = outcome(TRAINED[spelling], given)
    torch.testing.assert_close(out, expected)
    for ours, eager in zip(gradients, theirs, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours[eager.isfinite()], eager[eager.isfinite()], rtol=1e-4, atol=1e-5)


def test_cleared_rows_whose_mask_is_trained_stay() -> None:
    """The gradient of a mask in rows that it empties is NaN in eager code."""

    def function(q, k, v, b):
        return torch.nan_to_num((q @ k.mT + b).softmax(-1)) @ v

    given = trained([*(torch.randn(2, 4, n, 8) for n in (5, 7, 7)), torch.randn(5, 7)], first=4)
    found = rewritten(function, given)
    assert not found.count("attention")
    assert_agrees(function, found.run, given)


TIMES_MASK = {
    "rows": lambda q, k, v, m: (shown(q, k, m) * m.any(-1, keepdim=True)) @ v,
    "all": lambda q, k, v, m: (shown(q, k, m) * m) @ v,
    "all, cast": lambda q, k, v, m: (m.float() * shown(q, k, m)) @ v,
    "all, of a row of NaN": lambda q, k, v, m: (hidden(q, k, m) * m) @ v,
}


@pytest.mark.parametrize("spelling", TIMES_MASK)
def test_weights_times_their_mask(spelling: str) -> None:
    given = [torch.randn(2, 4, n, 8) for n in (5, 7, 7)]
    given = [*(given if "NaN" in spelling else trained(given)), KEEP]
    function = TIMES_MASK[spelling]
    found = rewritten(function, given)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, given)
