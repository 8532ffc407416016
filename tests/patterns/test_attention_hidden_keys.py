"""Keys that a mask hides from every query may be anything: selected scores do not show them in any kernel."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.attentions import INF, LOWEST, SCALE, attend, normal, qkv
from support.rewriting import outcome, rewritten, trained
from support.thorough import one_row_in

from regraft.patterns.attention import sdpa

B, H, S, T = 2, 4, 6, 10
HIDDEN = (3, 9)
FLASH = [replace(sdpa, candidates=sdpa.candidates[:1])]

SPELLINGS: dict[str, Callable[..., Any]] = {
    "where": lambda s, m, b: torch.where(m, s, -INF),
    "masked_fill": lambda s, m, b: s.masked_fill(~m, -1e9),
    "lowest": lambda s, m, b: torch.where(m, s, LOWEST),
    "selected, then added": lambda s, m, b: s.masked_fill(~m, -INF) + b,
    "added, then selected": lambda s, m, b: (s + b).masked_fill(~m, -INF),
}


def mask(rows: int) -> torch.Tensor:
    """Hides two keys from all queries, and where there are rows, others from some."""
    kept = torch.ones(B, 1, rows, T, dtype=torch.bool)
    kept[..., HIDDEN] = False
    if rows > 1:
        kept[:, :, 1:3, 4:6] = False
    return kept


@one_row_in(2)
@pytest.mark.parametrize("rows", [1, S])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_hidden_keys_do_not_show(spelling: str, rows: int) -> None:
    def function(q, k, v, m, b):
        return attend(SPELLINGS[spelling](q @ k.mT * SCALE, m, b), v)

    bias = normal(H, 1, T)
    q, k, v = qkv(S, T)
    found = rewritten(function, (q, k, v, mask(rows), bias), rules=FLASH)
    assert found.count() == 1, found.record.near_misses
    for odd in (INF, -INF, torch.nan, 3e38):
        k[:, 1, HIDDEN[0], 3], k[0, :, HIDDEN[1]] = odd, odd
        ours, eager = (f(q * 10, k, v, mask(rows), bias) for f in (found.run, function))
        assert eager.isfinite().all()
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("odd", [INF, torch.nan])
def test_a_bias_is_hidden_with_its_key(odd: float) -> None:
    def function(q, k, v, m, b):
        return attend((q @ k.mT * SCALE + b).masked_fill(~m, -INF), v)

    bias = normal(S, T)
    bias[:, HIDDEN] = odd
    given = (*qkv(S, T), mask(S), bias)
    found = rewritten(function, given, rules=FLASH)
    assert found.count() == 1, found.record.near_misses
    torch.testing.assert_close(found.run(*given), function(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, S])
def test_gradients(rows: int) -> None:
    """Hidden keys get none, as in eager code."""

    def function(q, k, v, m):
        return attend((q @ k.mT * SCALE).masked_fill(~m, -INF), v)

    given = [*trained(qkv(S, T)), mask(rows)]
    found = rewritten(function, given, rules=FLASH)
    assert found.count() == 1, found.record.near_misses
    for ours, eager in zip(outcome(found.run, given), outcome(function, given), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
