"""Rows whose every key a mask hides, in training: results and gradients are eager's, however the mask is spelled."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.rewriting import rewritten
from support.thorough import one_row_in, takes_turns

import regraft

B, H, S, D = 2, 2, 8, 16
LOWEST, INF = torch.finfo(torch.float32).min, float("inf")
LOWER = torch.ones(S, S, dtype=torch.bool).tril()


def keep() -> torch.Tensor:
    """Causal, and in the first of the batch without the first three keys: three of its rows keep nothing."""
    kept = LOWER.repeat(B, 1, 1, 1)
    kept[0, :, :, :3] = False
    return kept


def both(s: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Two masks that hide the same keys twice."""
    return torch.where(torch.ones_like(m[0, 0]).tril(), s, LOWEST) + torch.where(m[:, :, -1:], 0.0, LOWEST)


# By name: how scores are masked, and whether only products as eager has them give its gradients.
SPELLINGS: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "where -inf": (lambda s, m: torch.where(m, s, -INF), False),
    "masked_fill -inf": (lambda s, m: s.masked_fill(~m, -INF), False),
    "where lowest": (lambda s, m: torch.where(m, s, LOWEST), False),
    "masked_fill -1e9": (lambda s, m: s.masked_fill(~m, -1e9), False),
    "add -inf": (lambda s, m: s + torch.where(m, 0.0, -INF), False),
    "add lowest": (lambda s, m: s + torch.where(m, 0.0, LOWEST), True),
    "add -1e9": (lambda s, m: s + (1 - m.float()) * -1e9, True),
    "multiply and add": (lambda s, m: s * m.float() + (1 - m.float()) * -1e9, False),
    "both": (both, True),
}


def gradients(function: Callable[..., Any], mask: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(B, H, S, D, generator=generator, dtype=dtype) for _ in range(4))
    given = [x.requires_grad_() for x in (q, k, v)]
    result = function(*given, mask)
    result = result[0] if isinstance(result, tuple) else result
    return [result.detach(), *torch.autograd.grad(result, given, dout)]


def assert_eagers(function: Callable[..., Any], mask: torch.Tensor, candidate: str, tolerance: float = 1e-5) -> None:
    inputs = [torch.randn(B, H, S, D).requires_grad_() for _ in range(3)]
    found = rewritten(function, [*inputs, mask])
    assert [match.candidate for match in found.record.applied if match.rule == "sdpa"] == [candidate]
    ours, eager = gradients(found.run, mask, torch.float32), gradients(function, mask, torch.float32)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", SPELLINGS)
def test_gradients_of_hidden_rows(name: str) -> None:
    spelling, needs_products = SPELLINGS[name]

    def function(q, k, v, m):
        return torch.softmax(spelling(q @ k.mT * 0.25, m), -1) @ v

    assert_eagers(function, keep(), "math" if needs_products else "flash")


def test_a_mask_of_which_nothing_is_known() -> None:
    def function(q, k, v, m):
        return torch.softmax(q @ k.mT * 0.25 + m, -1) @ v

    assert_eagers(function, torch.where(keep(), 0.0, LOWEST), "math")


def test_a_selection_from_biased_scores() -> None:
    """A row that nothing is selected from passes no gradient to the bias either."""

    def function(q, k, v, m):
        bias = q[0, 0, 0, :S] * 2  # takes part in the gradients
        return torch.softmax(torch.where(m, q @ k.mT * 0.25 + bias, LOWEST), -1) @ v

    inputs = [torch.randn(B, H, S, D).requires_grad_() for _ in range(3)]
    found = rewritten(function, [*inputs, keep()])
    assert found.count() == 1
    for a, b in zip(
        gradients(found.run, keep(), torch.float32), gradients(function, keep(), torch.float32), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_sums_of_hidden_rows_keep_their_digits() -> None:
    """Beside -10000, float32 has three decimal places: eager's scores lose the others, the kernel's do not."""

    def function(q, k, v, m):
        return torch.softmax(q @ k.mT * 0.25 + (1 - m.to(q.dtype)) * -1e4, -1) @ v

    inputs = [torch.randn(B, H, S, D).requires_grad_() for _ in range(3)]
    found = rewritten(function, [*inputs, keep()])
    assert [match.candidate for match in found.record.applied if match.rule == "sdpa"] == ["flash"]
    exact = gradients(function, keep(), torch.float64)
    ours, eager = gradients(found.run, keep(), torch.float32), gradients(function, keep(), torch.float32)
    for a, b, c in zip(ours, eager, exact, strict=True):
        assert (a - c).abs().max() <= (b - c).abs().max() + 1e-6


def test_masks_known_to_keep_a_key_leave_the_choice_free() -> None:
    def function(q, k, v):
        s = q.shape[-2]
        mask = torch.where(torch.ones(s, s, dtype=torch.bool).tril(-1).logical_or(torch.eye(s) > 0), 0.0, LOWEST)
        return torch.softmax(q @ k.mT * 0.25 + mask, -1) @ v

    inputs = [torch.randn(B, H, S, D).requires_grad_() for _ in range(3)]
    found = rewritten(function, inputs)
    assert [match.candidate for match in found.record.applied if match.rule == "sdpa"] == ["flash"]


FILLS = {"lowest": lambda s: torch.finfo(s.dtype).min, "low": lambda s: -1e9, "infinite": lambda s: -math.inf}
HIDDEN = {
    "filled": lambda s, hide, low: s.masked_fill(hide, low),
    "chosen": lambda s, hide, low: torch.where(hide, low, s),
    "added": lambda s, hide, low: s + torch.zeros_like(s).masked_fill(hide, low),
    "causal": lambda s, hide, low: s.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), low),
}


@one_row_in(3)
@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_weights_by_a_logarithm_of_sums(hidden, fill, dtype):
    """Eager's weights are 1 each if a row holds the lowest number alone: the logarithm of its length is lost."""

    def program(q, k, v, hide):
        scores = q @ k.mT * 0.5
        scores = HIDDEN[hidden](scores, hide, FILLS[fill](scores))
        return torch.exp(scores - scores.logsumexp(-1, keepdim=True)) @ v

    q, k, v = (torch.linspace(-1, n, 2 * 3 * 5 * 8).reshape(2, 3, 5, 8).to(dtype) for n in (1, 2, 3))
    hide = torch.arange(25).reshape(5, 5) < 12  # two rows and a part of the third
    torch._dynamo.reset()
    with regraft.coverage() as cov:
        compiled = torch.compile(program, backend="regraft", options={"strict": True, "profit": "always"})
        torch.testing.assert_close(
            compiled(q, k, v, hide), program(q, k, v, hide), rtol=1e-5, atol=1e-6, equal_nan=True
        )
    assert (hidden, fill) != ("causal", "lowest") or cov.matches
