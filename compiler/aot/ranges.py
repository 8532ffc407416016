"""The sizes that an artifact serves: the assumptions on each while compiling, as one range where they are one.

s from 0     s == Min(512, s)        ->    s from 1 to 512
             attention over s keys
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch import fx

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_RECURRENT = torch.ops.aten.mkldnn_rnn_layer.default
# Calls that divide by sizes of their operands, and end the process where one is 0: operands and their dims.
_DIVIDING: Mapping[Any, Mapping[int, tuple[int, ...]]] = {_FLASH: {0: (2,), 1: (2,)}, _RECURRENT: {0: (0, 1, 2)}}
_PLAIN = (sympy.Symbol, sympy.Number, sympy.Add, sympy.Mul, sympy.Rel, sympy.And, sympy.Or, sympy.Not)


def divisors(graph: fx.Graph) -> list[Any]:
    """Conditions that sizes are not 0, where a library divides by them."""
    found: dict[Any, None] = {}
    for target, operands in _DIVIDING.items():
        for node in graph.find_nodes(op="call_function", target=target):
            for position, dims in operands.items():
                shape = node.args[position].meta["val"].shape  # type: ignore[union-attr]
                sizes = [shape[dim] for dim in dims if isinstance(shape[dim], torch.SymInt)]
                found.update((size.node.expr >= 1, None) for size in sizes)
    return [condition for condition in found if condition not in (sympy.true, True)]


def tightened(
    ranges: Mapping[Any, tuple[int, int | None]], conditions: Iterable[Any]
) -> tuple[dict[Any, tuple[int, int | None]], list[Any]]:
    """Ranges of symbols within which conditions hold, and the conditions that are left to be looked at.

    Args:
        ranges: the least and the greatest value of each symbol; None where there is none.
        conditions: expressions of symbols.
    """
    made, left = dict(ranges), list[Any]()
    for condition in conditions:
        plain = _without_folds(condition)
        symbols = list(getattr(plain, "free_symbols", ()))
        found = _range(plain, symbols[0], *made[symbols[0]]) if len(symbols) == 1 and symbols[0] in made else None
        if found is None:
            left.append(condition)
        else:
            made[symbols[0]] = found
    return made, left


def _range(condition: Any, symbol: Any, low: int, high: int | None) -> tuple[int, int | None] | None:
    """The values in a range that meet a condition of one symbol, where they are a range."""
    if not all(isinstance(part, _PLAIN) for part in sympy.preorder_traversal(condition)):
        return None
    real = sympy.Symbol("n", real=True)
    given = sympy.Interval(low, sympy.oo if high is None else high)
    try:
        found = condition.xreplace({symbol: real}).as_set().intersect(given)
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return None
    if not isinstance(found, sympy.Interval):
        return None
    first = int(sympy.floor(found.start)) + 1 if found.left_open else int(sympy.ceiling(found.start))
    if found.end == sympy.oo:
        return first, None
    return first, int(sympy.ceiling(found.end)) - 1 if found.right_open else int(sympy.floor(found.end))


def _without_folds(condition: Any) -> Any:
    """Comparisons of the lesser or greater of two numbers with one of them or with a constant, without the fold.

    s == Min(512, s)    ->    s <= 512            Min(512, s) == 1    ->    s == 1
    """
    if not isinstance(condition, (sympy.And, sympy.Or, sympy.Not)):
        return _without_fold(condition) if isinstance(condition, (sympy.Eq, sympy.Ne)) else condition
    return condition.func(*(_without_folds(part) for part in condition.args))


def _without_fold(relation: Any) -> Any:
    for fold, other in (relation.args, relation.args[::-1]):
        kind = type(fold).__name__
        if kind not in ("Min", "Max") or len(fold.args) != 2:
            continue
        for one, rest in (fold.args, fold.args[::-1]):
            equal = None
            if other == one:
                equal = one <= rest if kind == "Min" else one >= rest
            elif one.is_Integer and other.is_Integer and (other < one if kind == "Min" else other > one):
                equal = sympy.Eq(rest, other)
            if equal is not None:
                return equal if isinstance(relation, sympy.Eq) else sympy.Not(equal)
    return relation
