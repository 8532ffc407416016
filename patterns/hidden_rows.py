"""Rows whose scores are all hidden by a mask, in training: a fused kernel gives them eager's gradients, or is refused.

    where(keep, s, low)     the row's weights are uniform; queries and keys get no gradient from the row
    where(keep, s, -inf)    the row is NaN, and so are all gradients of value; queries and keys get none from the row
    s + mask, mask <= -1e6  the row's weights are uniform, and gradients pass as if the scores had decided: refused
    s + mask, mask = -inf   the row is NaN, and so are all gradients

Kernels save the logarithm of the sum of each row for the backward pass. In a hidden row this number rounds to the fill
itself. Kernels therefore get zeros in place of hidden rows (`opened`).

In inference, kernels on GPUs get zeros in place of rows whose weights are uniform (`lifted`): scores become powers of
two in them, and a product of a very low number with a constant is rounded by more than all scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..rewrites.binding import Binding
from ..rewrites.effects import wants_gradient
from ..rewrites.facts import Conditional, fact_of
from ..rewrites.graph import arguments, dtype, is_tensor, op_name, val
from .masks import FROM_CONSTANTS, MOVES, asked, evaluate, is_causal_match, is_flag, keeps_diagonal, may_empty_rows

_ABSORBING = -1e6  # float32 scores lose their digits when lower numbers are added
_ABSORBED = 16.0  # the highest scores that are said to vanish when a low number is added
_LOW = -16.0  # with lower numbers, the logarithm of a sum loses its digits


def opened(
    query: torch.Tensor, mask: torch.Tensor, *, selected: bool, own_bias: bool, empty: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The operands that give the same scores, but without hidden rows, for a kernel with a backward pass.

    Args:
        query: (..., rows, size).
        mask: additive, (..., rows or 1, columns).
        selected: hidden scores are replaced, not added to.
        own_bias: a bias was added to the scores before hidden ones were replaced.
        empty: the mask may hide a row with -inf.

    Returns:
        The query, with zeros in hidden rows; the mask, minus its maximum in hidden rows; hidden rows that are NaN in
        eager code (for `with_dead_rows`).
    """
    top = mask.amax(-1, keepdim=True)
    if not selected:  # without its maximum, a mask gives the same weights, and sums keep their digits
        return query, mask - torch.where(top == -torch.inf, 0.0, top).detach(), None
    hidden = top < _ABSORBING
    level = mask - top
    if empty:
        level = torch.where(top == -torch.inf, 0.0, level)
    level = level.detach() if own_bias else level
    dead = top == -torch.inf if empty else None
    return torch.where(hidden, 0.0, query), torch.where(hidden, level, mask), dead


def lifted(
    query: torch.Tensor, mask: torch.Tensor, level: float, *, selected: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands that give the same weights, uniform ones of rows without keys by zeros, not by low numbers.

    Args:
        query: (..., rows, size).
        mask: additive, (..., rows or 1, columns).
        level: lower numbers absorb scores.
        selected: hidden scores are replaced, whatever they are; otherwise NaN in query stays NaN.
    """
    top = mask.amax(-1, keepdim=True)
    absorbed = (top < level) & (top > -torch.inf)
    nothing = 0.0 if selected else query * 0.0
    return torch.where(absorbed, nothing, query), torch.where(absorbed, mask - top, mask)


def with_dead_rows(out: torch.Tensor, value: torch.Tensor, dead: torch.Tensor) -> torch.Tensor:
    """The result with NaN in dead rows, whose gradient makes that of value NaN and reaches nothing else.

    Args:
        out: (..., rows, width).
        value: (..., columns, width).
        dead: (..., rows or 1, 1).
    """
    poison = torch.where(dead.any(-2, keepdim=True), torch.nan, 0.0).to(value.dtype)
    return torch.where(dead, (value * poison).sum(-2, keepdim=True), out)


def selects(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether hidden scores are replaced (where, masked_fill), so that they get no gradient."""
    return dict(match.tags)["mask"] in ("where", "bias_where", "where_bias")


def bias_comes_last(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether a bias is added after hidden scores were replaced."""
    return dict(match.tags)["mask"] == "where_bias"


def rows_lose_gradients(match: Binding) -> bool:
    """Whether hidden rows may get gradients in eager code that kernels do not compute."""
    bias = match.operands.get("bias")
    if not is_tensor(bias) or not any(wants_gradient(o) for o in match.operands.values() if is_tensor(o)):
        return False
    if is_causal_match(match):
        return False
    if lowest_top(bias) < _ABSORBING:
        return True
    # In a row that is hidden by selection and bias together, only some keys get gradients.
    return is_tensor(match.operands.get("keep")) and _LeastNumber(-math.inf).of(bias) < _LOW


def sums_lose_digits(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether all numbers of a row in an additive mask may be so low that the logarithm of its sum loses digits."""
    bias = match.operands.get("bias")
    return is_tensor(bias) and lowest_top(bias) < _LOW


def hides_rows_by_numbers(match: Binding) -> bool:
    """Whether numbers that are not infinite may hide a whole row."""
    bias, keep, fill = (match.operands.get(n) for n in ("bias", "keep", "fill"))
    if is_causal_match(match):
        return False
    if is_tensor(keep) and val(fill) != -math.inf and may_empty_rows(None, keep, -math.inf):
        return True
    return is_tensor(bias) and lowest_top(bias) < _LOW


def absorbing(match: Binding, policy: Mapping[str, str]) -> float:
    """The level below which numbers of the mask absorb scores in eager code; -inf if no row has only such numbers."""
    if is_causal_match(match):
        return -math.inf
    masked = next((n for n in match.matched if op_name(n) in ("aten.add", "aten.where")), None)
    level = -math.inf if masked is None else -2 * _ABSORBED / torch.finfo(dtype(masked)).eps
    bias, keep, fill = (match.operands.get(n) for n in ("bias", "keep", "fill"))
    finite = not is_tensor(fill) and val(fill) != -math.inf  # these kernels take no fill that is a tensor
    if is_tensor(keep) and finite and may_empty_rows(None, keep, -math.inf):
        return level
    return level if is_tensor(bias) and lowest_top(bias) < level else -math.inf


def lowest_top(bias: Any) -> float:
    """The least finite maximum of a row of an additive mask; -inf if nothing is known.

    A learned mask is a bias, and assumed to hide nothing.
    """
    if keeps_diagonal(bias, None):
        fact = fact_of(bias)
        return float(fact.yes) if isinstance(fact, Conditional) else -math.inf
    known = evaluate(bias)
    return _LeastNumber(math.inf).of(bias) if known is None else asked(_least_finite_top, known)


def _least_finite_top(mask: torch.Tensor) -> float:
    tops = mask.amax(-1) if mask.numel() else mask
    tops = tops[tops.isfinite()].double()
    return float(tops.min()) if tops.numel() else 0.0


@dataclass(frozen=True)
class _LeastNumber:
    """The least number in a tensor; -inf if nothing is known.

    Args:
        infinite: the number that -inf counts as.
    """

    infinite: float

    def of(self, node: Any) -> float:
        """The least number in a tensor, or a number itself."""
        if isinstance(node, (int, float)):
            return float(node) if math.isfinite(node) else self.infinite
        if not is_tensor(node) or "opaque" in node.meta:
            return -math.inf
        name, args = op_name(node), node.args
        if is_flag(node) or name in FROM_CONSTANTS:
            return 0.0
        if name in ("aten.full", "aten.full_like", "aten.scalar_tensor"):
            return self.of(args[-1] if name == "aten.scalar_tensor" else args[1])
        if name in MOVES or name == "aten.to":
            return self.of(args[0])
        return self._of_two(node) if len(args) >= 2 else _of_learned(node)

    def _of_two(self, node: fx.Node) -> float:
        name, (*_, a, b) = op_name(node), node.args
        if name == "aten.where":
            return min(self.of(a), self.of(b))
        if name == "aten.add" and arguments(node).get("alpha", 1) == 1:
            parts = self.of(a), self.of(b)
            return -math.inf if -math.inf in parts else sum(parts)
        if name == "aten.mul" and (is_flag(a) or is_flag(b)):
            return min(0.0, *(0.0 if is_flag(x) else self.of(x) for x in (a, b)))
        return _of_learned(node)


def _of_learned(node: fx.Node) -> float:
    return 0.0 if wants_gradient(node) else -math.inf
