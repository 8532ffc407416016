"""Facts about masks that follow from the graph.

`rewrites/facts` knows the elements of masks that are built from sizes, also symbolic ones; others are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from ..rewrites.binding import Binding
from ..rewrites.facts import Conditional, Positions, Uniform, ends, fact_of, nonnegative
from ..rewrites.facts.evaluate import plainly
from ..rewrites.graph import is_tensor, nodes_in, op_name, rank, shape, val
from ..rewrites.moves import CUTS, EXPANDS, REORDERS, RESHAPES
from ..rewrites.purity import is_pure, is_random
from ..rewrites.symbolic import SYMBOLIC, known_equal

Answer = TypeVar("Answer")

_MOST_ELEMENTS = 1 << 22
_HIDES = -1e4  # added to a score, it leaves a weight of 0


def evaluate(node: Any) -> torch.Tensor | None:
    """The value of a tensor that only depends on constants and static sizes; None if it is not known."""
    cone = _cone(node)
    if cone is None:
        return None
    values: dict[fx.Node, Any] = {}
    with plainly():
        for n in cone:
            args, kwargs = fx.node.map_arg((n.args, dict(n.kwargs)), values.__getitem__)
            values[n] = n.target(*args, **kwargs)
    result = values[node]
    return result if isinstance(result, torch.Tensor) else None


def asked(question: Callable[..., Answer], *values: Any) -> Answer:
    """The answer to a question about values from `evaluate`, outside of fake and tracing modes."""
    with plainly():
        return question(*values)


def _cone(node: Any) -> list[fx.Node] | None:
    """The nodes that `node` is computed from, in order, if all are pure, static and small, and start from constants."""
    if not is_tensor(node):
        return None
    found: set[fx.Node] = set()
    todo = [node]
    while todo:
        n = todo.pop()
        if n in found:
            continue
        if n.op != "call_function" or not _constant_step(n):
            return None
        found.add(n)
        todo.extend(n.all_input_nodes)
    return sorted(found)


def _constant_step(node: fx.Node) -> bool:
    value = val(node)
    if not isinstance(value, torch.Tensor) or "opaque" in node.meta or not is_pure(node) or is_random(node):
        return False
    if any(isinstance(s, SYMBOLIC) for s in value.shape) or value.numel() > _MOST_ELEMENTS:
        return False
    return not any(isinstance(a, SYMBOLIC) for a in _flat([node.args, node.kwargs])) and _reads_only_nodes(node)


def _reads_only_nodes(node: fx.Node) -> bool:
    return all(is_tensor(n) for n in nodes_in([node.args, node.kwargs]))


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in _flat(v)]
    return [x for v in value.values() for x in _flat(v)] if isinstance(value, dict) else [value]


def is_causal(mask: Any) -> bool:
    """Whether a mask, additive or boolean, is known to be causal: each query sees the keys up to its own position."""
    fact = fact_of(mask)
    if isinstance(fact, Conditional):
        return _is_lower_triangle(fact, shape(mask)) and _keeps_and_masks(fact)
    value = evaluate(mask)
    if value is None or value.dim() < 2 or value.shape[-1] != value.shape[-2]:
        return False
    return asked(_keeps_lower_triangle, value.cpu())


def _keeps_lower_triangle(value: torch.Tensor) -> bool:
    rows = value.shape[-1]
    lower = torch.ones(rows, rows, dtype=torch.bool).tril()
    if value.dtype == torch.bool:
        return bool((value == lower).all())
    kept, masked = value[lower.expand_as(value)], value[~lower.expand_as(value)]
    return bool((kept == 0).all()) and bool((masked <= _HIDES).all())


def _is_lower_triangle(fact: Conditional, sizes: Sequence[Any]) -> bool:
    """Whether a condition holds for the lower triangle of square matrices, including the diagonal."""
    if len(sizes) < 2 or not known_equal(sizes[-1], sizes[-2]) or len(fact.conditions) > 1:
        return False
    return fact.conditions[0].same(Positions(0, (*[0] * (len(sizes) - 2), 1, -1)))


def _keeps_and_masks(fact: Conditional) -> bool:
    """Whether a selection is between a number that keeps a score (True, or 0 to add) and one that hides it."""
    if isinstance(fact.yes, bool):
        return fact.yes and not fact.no
    return fact.yes == 0 and fact.no <= _HIDES


def is_causal_match(match: Binding) -> bool:
    """Whether the only mask of the match is known to be causal."""
    masks = [match.operands[n] for n in ("bias", "keep") if n in match.operands]
    square = known_equal(shape(match.operands["query"])[-2], shape(match.operands["key_t"])[-1])
    return len(masks) == 1 and square and is_causal(masks[0])


def may_empty_rows(bias: Any, keep: Any, fill: Any) -> bool:
    """Whether -inf may hide all scores of a row, which makes it NaN in eager code."""
    if (bias is None and keep is None) or keeps_diagonal(bias, keep):
        return False
    known = [evaluate(m) for m in (bias, keep) if m is not None]
    if all(value is not None for value in known):
        return asked(_empties_rows, None if bias is None else known[0], None if keep is None else known[-1], fill)
    if keep is not None and (bias is not None or fill == -float("inf")):
        return True
    return bias is not None and not _is_finite(bias)


def keeps_diagonal(bias: Any, keep: Any) -> bool:
    """Whether the only mask is square and known to keep the diagonal."""
    mask = keep if bias is None else bias
    fact = fact_of(mask)
    if (bias is not None and keep is not None) or not isinstance(fact, Conditional) or rank(mask) < 2:
        return False
    if not known_equal(shape(mask)[-1], shape(mask)[-2]) or fact.yes in (False, -float("inf")):
        return False
    return all(_holds_on_diagonal(condition, shape(mask)) for condition in fact.conditions)


def _holds_on_diagonal(condition: Positions, sizes: Sequence[Any]) -> bool:
    *lead, row, column = condition.steps
    limits = ends(Positions(condition.offset, (*lead, row + column)), sizes[:-1])
    return limits is not None and nonnegative(limits[0])


def _empties_rows(bias: torch.Tensor | None, keep: torch.Tensor | None, fill: Any) -> bool:
    total: Any = 0.0 if bias is None else bias
    if keep is not None:
        total = total + torch.where(keep, torch.zeros((), dtype=torch.float64), float(fill))  # holds any lowest number
    return bool(torch.as_tensor(total).amax(-1).eq(-float("inf")).any()) if total.numel() else False


MOVES = RESHAPES | REORDERS | EXPANDS | CUTS
FROM_CONSTANTS = ("aten.zeros", "aten.ones", "aten.zeros_like", "aten.ones_like")


def _is_finite(node: Any) -> bool:
    """Whether all elements are known to be finite: selections and products of finite constants and flags."""
    if isinstance(node, (int, float)):
        return abs(node) < float("inf")
    if not is_tensor(node) or "opaque" in node.meta:
        return False
    name, args = op_name(node), node.args
    if name in FROM_CONSTANTS or not val(node).dtype.is_floating_point:
        return True
    if name in ("aten.full", "aten.full_like", "aten.scalar_tensor"):
        return _is_finite(args[-1] if name == "aten.scalar_tensor" else args[1])
    if name == "aten.where" and len(args) == 3:
        return _is_finite(args[1]) and _is_finite(args[2])
    if name in MOVES or (name == "aten.to" and not _narrows(args[0], node)):
        return _is_finite(args[0])
    if name == "aten.mul":  # (1 - flags) * -10000
        return all(_is_finite(a) for a in args[:2]) and any(is_flag(a) for a in args[:2])
    return is_flag(node)


def is_flag(node: Any) -> bool:
    """Whether the elements of a float tensor are 0 and 1: a cast of booleans, or one minus such a cast."""
    if not is_tensor(node) or "opaque" in node.meta:
        return False
    if val(node).dtype == torch.bool:
        return True
    name, args = op_name(node), node.args
    if name == "aten.to" or name in MOVES:
        return is_flag(args[0])
    if name == "aten.rsub":
        return args[1] == 1 and is_flag(args[0])
    return False


def _narrows(source: Any, node: Any) -> bool:
    """Whether a cast may overflow."""
    a, b = val(source).dtype, val(node).dtype
    return a.is_floating_point and torch.finfo(b).max < torch.finfo(a).max


def is_kept_by(mask: Any, kind: torch.dtype) -> bool:
    """Whether an additive mask is known to have the same effect in `kind`: its elements fit, or they hide a score.

    where(flags, 0.0, -3.4e38)  yes        -0.7 * distance, in float32 for bfloat16  no: off by 1 at 500
    """
    if isinstance(mask, (int, float)):
        return _is_kept_number(mask, kind)
    if not is_tensor(mask) or "opaque" in mask.meta:
        return False
    own, fact = val(mask).dtype, fact_of(mask)
    if own == torch.bool or (own.is_floating_point and torch.finfo(own).eps >= torch.finfo(kind).eps):
        return True
    if isinstance(fact, Uniform):
        return _is_kept_number(fact.number, kind)
    if isinstance(fact, Conditional):
        return _is_kept_number(fact.yes, kind) and _is_kept_number(fact.no, kind)
    return _is_made_of_kept(mask, kind)


def _is_made_of_kept(mask: fx.Node, kind: torch.dtype) -> bool:
    name, args = op_name(mask), mask.args
    if name in FROM_CONSTANTS or is_flag(mask):
        return True
    if name == "aten.where" and len(args) == 3:
        return is_kept_by(args[1], kind) and is_kept_by(args[2], kind)
    if name in MOVES or name == "aten.to":
        return is_kept_by(args[0], kind)
    if name == "aten.mul":  # (1 - flags) * -10000, also where flags are integers
        numbers, others = _parted(args[:2], lambda a: isinstance(a, (int, float)))
        return len(numbers) == 1 and numbers[0] <= _HIDES and all(map(_is_whole, others))
    value = evaluate(mask)
    return value is not None and asked(_is_kept_tensor, value, kind)


def _parted(values: Sequence[Any], test: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    return [v for v in values if test(v)], [v for v in values if not test(v)]


def _is_kept_number(number: Any, kind: torch.dtype) -> bool:
    return number <= _HIDES or asked(lambda: torch.tensor(number, dtype=kind).item() == number)


def _is_kept_tensor(value: torch.Tensor, kind: torch.dtype) -> bool:
    return bool(((value.to(kind) == value) | (value <= _HIDES)).all())


def _is_whole(value: Any) -> bool:
    """Whether all elements are integers: a cast of some, and sums and products of that."""
    if isinstance(value, (int, float)):
        return float(value).is_integer()
    if not is_tensor(value) or "opaque" in value.meta:
        return False
    if not val(value).dtype.is_floating_point:
        return True
    name, args = op_name(value), value.args
    if name == "aten.to" or name in MOVES:
        return _is_whole(args[0])
    return name in ("aten.add", "aten.sub", "aten.rsub", "aten.mul") and all(map(_is_whole, args[:2]))
