"""Long scans with few rows, in parts: the fold of each part, the fold of the parts before each, and short scans.

scan:  scan r < 65536 of x[r]:          parts:   for s < 16: p[s] = fold sum over r < 4096 of x[4096*s + r]
           y[r] = sum so far      ->    before:  for s < 16: q[s] = fold sum over t < 16 of (p[t] where t < s, else 0)
                                        scan:    for s < 16: scan r < 4096 of x[4096*s + r]:
                                                     y[4096*s + r] = q[s] + sum so far

Parts have equal lengths, so that every store is within them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..ir.folds import component_dtypes, identity
from ..ir.index.index import Var, add, mul
from ..ir.program import Buffer, Definition, Reduction, Store
from ..ir.reducers import REDUCERS, folding_states
from ..ir.value import Const, Guarded, Load, Number, Op, Result, Rewriter, Value

_FEWEST, _SHORTEST = 9, 1024  # parts that are worth another kernel, and stay apart; elements of a part


def _can_be_joined(reducer: str) -> bool:
    """Whether results so far within a part can be joined with those of the parts before."""
    info = REDUCERS[reducer]
    return info.operation != "" or info.wins is not None or reducer == "softmax"


def parts_of(item: Definition, rows: int, programs: int) -> int:
    """In how many parts to compute a scan of some rows, each of which one program would compute; 1 for as it is."""
    if len(item.reduced) > 1 or len(item.reductions) > 1 or not _can_be_joined(item.reductions[0].reducer):
        return 1
    length = item.reduced[0].extent
    if not isinstance(length, int):
        return 1
    most = min(programs // max(rows, 1), length // _SHORTEST)
    return next((parts for parts in range(most, _FEWEST - 1, -1) if length % parts == 0), 1)


def scan_in_parts(
    item: Definition, parts: int, partial: Callable[..., Buffer], fresh: Callable[[str], str]
) -> list[Definition]:
    """Definitions that compute a scan of one reduction over one loop, whose extent is a number.

    Args:
        item: the scan.
        parts: how many parts of equal length, which divides the extent.
        partial: gives memory for one component of partial results: of an item, loops and a dtype.
        fresh: gives a name for a definition or a reduction, of its own.
    """
    (reduction,), (var,) = item.reductions, item.reduced
    length = var.extent // parts
    kinds = component_dtypes(reduction.reducer, reduction.values[0].dtype)
    part, inner = Var(f"{var.name}_part", parts), Var(var.name, length)
    place = add(mul(part.index(), length), inner.index())

    folded = Reduction(fresh(f"{reduction.name}_part"), reduction.reducer, _at(reduction.values, var, place))
    first, states = _folding(item, (part, *item.loops), (inner,), folded, kinds, partial, fresh)
    other = Var(f"{var.name}_other", parts)
    earlier = Op("lt", (_number(other.index()), _number(part.index())), torch.bool)
    nothing = identity(reduction.reducer, kinds[0])
    loads = _loads(states, (other, *item.loops))
    kept = tuple(
        Guarded(earlier, v, constant(n, v.dtype), v.dtype) for v, n in zip(loads, nothing[: len(loads)], strict=True)
    )
    joined = Reduction(fresh(f"{reduction.name}_before"), folding_states(reduction.reducer), kept)
    second, before = _folding(item, (part, *item.loops), (other,), joined, kinds, partial, fresh)
    return [first, second, _scanning(item, part, inner, place, _loads(before, (part, *item.loops)))]


def _folding(
    item: Definition,
    loops: tuple[Var, ...],
    reduced: tuple[Var, ...],
    fold: Reduction,
    kinds: Sequence[torch.dtype],
    partial: Callable[..., Buffer],
    fresh: Callable[[str], str],
) -> tuple[Definition, list[Buffer]]:
    """A definition that stores the components of a fold, and the buffers that it stores into."""
    made = [partial(item, loops, dtype) for dtype in kinds]
    at = tuple(v.index() for v in loops)
    stores = tuple(Store(b.name, at, Result(fold.name, k, b.dtype)) for k, b in enumerate(made))
    name = fresh(f"{item.name}_part")
    return replace(item, name=name, loops=loops, stores=stores, reduced=reduced, reductions=(fold,), scan=False), made


def _scanning(item: Definition, part: Var, inner: Var, place: Any, before: tuple[Value, ...]) -> Definition:
    """The scan of each part, whose results are joined with those of the parts before."""
    (reduction,), (var,) = item.reductions, item.reduced
    so_far = tuple(Result(reduction.name, k, v.dtype) for k, v in enumerate(before))
    joined = dict(zip(so_far, _joined(reduction.reducer, before, so_far), strict=True))
    earlier_too = lambda v: joined.get(v) if isinstance(v, Result) else None  # noqa: E731
    rewriter = Rewriter(value=earlier_too, atom={var: place}.get)  # type: ignore[arg-type]
    stores = tuple(
        replace(s, indices=tuple(map(rewriter.index, s.indices)), value=rewriter(s.value)) for s in item.stores
    )
    scanned = replace(reduction, values=_at(reduction.values, var, place))
    return replace(item, loops=(part, *item.loops), stores=stores, reduced=(inner,), reductions=(scanned,))


def _at(values: Sequence[Value], var: Var, place: Any) -> tuple[Value, ...]:
    """Values of one iteration, whose number is `place`."""
    rewriter = Rewriter(atom={var: place}.get)  # type: ignore[arg-type]
    return tuple(map(rewriter, values))


def _loads(buffers: Sequence[Buffer], loops: Sequence[Var]) -> tuple[Value, ...]:
    return tuple(Load(b.name, tuple(v.index() for v in loops), b.dtype) for b in buffers)


# -- how partial results are joined ------------------------------------------------------------------------------------


def _joined(reducer: str, a: Sequence[Value], b: Sequence[Value]) -> tuple[Value, ...]:
    """The components over the elements of `a`, then those of `b`: `ir.folds.combine` as formulas."""
    info = REDUCERS[reducer]
    if info.operation:
        return (_op(info.operation, a[0], b[0]),)
    if info.wins is not None:
        return _first(info.wins[0], a, b)
    top = _op("maximum", a[0], b[0])
    scaled = [_op("mul", total, _scale(x, top)) for x, total in (a, b)]
    return top, _op("add", *scaled)


def _first(better: str, a: Sequence[Value], b: Sequence[Value]) -> tuple[Value, ...]:
    (x, i), (y, j) = a, b
    left, tie = _bool(better, x, y), _bool("eq", x, y)
    if x.dtype.is_floating_point:
        lost, both = _bool("isnan", x), _bool("logical_and", _bool("isnan", x), _bool("isnan", y))
        left, tie = _bool("logical_or", left, lost), _bool("logical_or", tie, both)
    chosen = Op("where", (tie, _bool("le", i, j), left), torch.bool)
    return _where(chosen, x, y), _where(chosen, i, j)


def _scale(x: Value, top: Value) -> Value:
    """exp(x - top), and 0 of minus infinity, whatever top is."""
    nothing = _bool("eq", x, constant(-torch.inf, x.dtype))
    return _where(nothing, constant(0, x.dtype), _op("exp", _op("sub", x, top)))


def _op(name: str, *args: Value) -> Value:
    return Op(name, args, args[0].dtype)


def _bool(name: str, *args: Value) -> Value:
    return Op(name, args, torch.bool)


def _where(condition: Value, a: Value, b: Value) -> Value:
    return Op("where", (condition, a, b), a.dtype)


def _number(index: Any) -> Value:
    return Number(index, torch.int32)


def constant(number: Any, dtype: torch.dtype) -> Const:
    """A number as a value."""
    kind = bool if dtype == torch.bool else float if dtype.is_floating_point else int
    return Const(kind(number), dtype)


__all__ = ["constant", "parts_of", "scan_in_parts"]
