"""Writes to regions that are known in advance: slices, diagonals, windows; and gradients of views.

slice_scatter(x, src, 0, 2, 5)    ->   out = x; out[2 + i] = src[i]             the copy goes where `x` is dead
slice_scatter(x, slice_scatter(x[2:5], src, ...), 0, 2, 5)   ->   out = x; out[2:5][...] = src        a part of a part
slice_backward(grad, 0, 2, 5)     ->   out[i] = grad[i - 2] if 2 <= i < 5 else 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..ir.index.index import Var, add, mul, quotient, remainder
from ..ir.program import Definition
from ..ir.value import Value
from ..schedule.dependences import effects
from .core import Indices, Lowering, Tensor, Unlowered, lowers
from .ops.copies import copied
from .ops.elementwise import element as broadcast_at
from .ops.views import clamped, from_front, place_of, promised_sizes, wrapped
from .positions import compared, guarded, iterations, scalar, swapped, within
from .windows import Sliding, summed

_Place: TypeAlias = Callable[[Indices], Indices]
_Change: TypeAlias = tuple[tuple[Var, ...], Indices, Value]


@lowers("aten.slice_scatter")
def slice_scatter(
    low: Lowering, x: Tensor, src: Tensor, dim: int = 0, start: Any = None, _end: Any = None, step: Any = 1
) -> Tensor:
    """``out = x; out[start:end:step] = src``; where it ends, the size of `src` tells."""
    d = wrapped(dim, len(x.sizes))
    first = clamped(start or 0, x.sizes[d])
    return _written(low, x, src, lambda at: swapped(at, d, add(first, mul(at[d], step))))


@lowers("aten.select_scatter")
def select_scatter(low: Lowering, x: Tensor, src: Tensor, dim: int, index: Any) -> Tensor:
    """``out = x; out[index] = src``."""
    d = wrapped(dim, len(x.sizes))
    place = place_of(index, x.sizes[d])
    return _written(low, x, src, lambda at: (*at[:d], place, *at[d:]))


@lowers("aten.diagonal_scatter")
def diagonal_scatter(low: Lowering, x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """``out = x; out.diagonal(offset, dim1, dim2)[...] = src``."""
    a, b = wrapped(dim1, len(x.sizes)), wrapped(dim2, len(x.sizes))
    return _written(low, x, src, lambda at: _on_diagonal(at, offset, a, b))


@lowers("aten.slice_backward")
def slice_backward(
    low: Lowering, grad_output: Tensor, input_sizes: Sequence[Any], dim: int, start: Any, _end: Any, step: Any
) -> Tensor:
    """Zeros with `grad_output` in the slice."""
    d = wrapped(dim, len(input_sizes))
    first = clamped(start or 0, input_sizes[d])

    def element(at: Indices) -> Value:
        away = add(at[d], mul(first, -1))
        aligned = [] if step == 1 else [compared("eq", remainder(away, step), 0)]
        place = quotient(away, step)
        conditions = [*within(place, grad_output.sizes[d]), *aligned]
        return guarded(conditions, grad_output.at(swapped(at, d, place)), scalar(0, grad_output.dtype))

    return low.pointwise(element, tuple(input_sizes), grad_output.dtype)


@lowers("aten.select_backward")
def select_backward(low: Lowering, grad_output: Tensor, input_sizes: Sequence[Any], dim: int, index: Any) -> Tensor:
    """Zeros with `grad_output` at one index."""
    d = wrapped(dim, len(input_sizes))
    place = from_front(index, input_sizes[d])

    def element(at: Indices) -> Value:
        chosen = [compared("eq", at[d], place)]
        return guarded(chosen, grad_output.at(swapped(at, d)), scalar(0, grad_output.dtype))

    return low.pointwise(element, tuple(input_sizes), grad_output.dtype)


@lowers("aten.diagonal_backward")
def diagonal_backward(
    low: Lowering, grad_output: Tensor, input_sizes: Sequence[Any], offset: int, dim1: int, dim2: int
) -> Tensor:
    """Zeros with `grad_output` on a diagonal."""
    return _diagonal(low, grad_output, input_sizes, offset, dim1, dim2)


@lowers("aten.diag_embed")
def diag_embed(low: Lowering, x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Zeros with `x` on a diagonal of two new dims."""
    return _diagonal(low, x, promised_sizes(low), offset, dim1, dim2)


@lowers("aten.unfold_backward")
def unfold_backward(
    low: Lowering, grad_in: Tensor, input_sizes: Sequence[Any], dim: int, size: int, step: int
) -> Tensor:
    """Each element gets the gradients of the windows that see it; rows may share them (`istft`: one window's)."""
    if not input_sizes:
        raise Unlowered("arguments", "windows of a tensor of rank 0")
    d = wrapped(dim, len(input_sizes))
    window = Sliding(input_sizes[d], grad_in.sizes[d], size, step)

    def term(at: Indices, r: Indices) -> Value:
        o, conditions = window.window(at[d], r[0])
        place = (*swapped(at, d, o), window.part(at[d], o))
        return guarded(conditions, broadcast_at(grad_in, place), scalar(0, grad_in.dtype))

    return summed(low, input_sizes, [window.covers], term, lambda _, total: total, grad_in.dtype)


def _written(low: Lowering, x: Tensor, src: Tensor, place: _Place) -> Tensor:
    """A copy of `x` with `src` stored at ``place(indices of src)``."""
    parts = _changes(low, x, src, place)
    out = copied(low, x)
    if parts is None:
        loops = low.loops(src.sizes)
        at = iterations(loops)
        low.store(out, loops, place(at), src.at(at))
        return out
    for loops, at, value in parts:
        low.store(out, loops, place(at), value)
    return out


def _changes(low: Lowering, x: Tensor, src: Tensor, place: _Place) -> list[_Change] | None:
    """What is stored to `src`, which else is what `x` has in its place: loops, indices, values; None where it is not.

    src[i] = x[2 + i];  src[7*i] = y[i]   ->   [(i, 7*i, y[i])]
    """
    if not src.is_whole or not x.is_whole or src.dtype != x.dtype:
        return None
    start = next((n for n, item in enumerate(low.items) if src.buffer.name in effects(item).writes), len(low.items))
    first = low.items[start] if start < len(low.items) else None
    if not isinstance(first, Definition) or first.reductions or len(first.stores) != 1:
        return None
    at = iterations(first.loops)
    (store,) = first.stores
    if tuple(v.extent for v in first.loops) != src.sizes or store.indices != at or store.value != x.at(place(at)):
        return None
    found: list[_Change] = []
    read = {x.buffer.name}
    for item in low.items[start + 1 :]:
        known = effects(item)
        if known.writes & read:
            return None
        if src.buffer.name not in known.writes:
            continue
        if not isinstance(item, Definition) or item.reductions or len(item.stores) != 1:
            return None
        (store,) = item.stores
        if store.mode is not None or src.buffer.name in known.reads:
            return None
        read |= known.reads
        found.append((item.loops, store.indices, store.value))
    return found


def _on_diagonal(at: Indices, offset: int, a: int, b: int) -> Indices:
    """Indices of a tensor with dims `a` and `b`, given those of its diagonal, which is its last dim."""
    *rest, k = at
    for d in sorted((a, b)):
        rest.insert(d, add(k, max(-offset if d == a else offset, 0)))
    return tuple(rest)


def _diagonal(low: Lowering, x: Tensor, sizes: Sequence[Any], offset: int, dim1: int, dim2: int) -> Tensor:
    """``out[i, j] = x[i]`` where ``j == i + offset``, else 0."""
    a, b = wrapped(dim1, len(sizes)), wrapped(dim2, len(sizes))

    def element(at: Indices) -> Value:
        k = add(at[a], -max(-offset, 0))
        rest = [i for d, i in enumerate(at) if d not in (a, b)]
        conditions = [*within(k, x.sizes[-1]), compared("eq", at[b], add(at[a], offset))]
        return guarded(conditions, x.at((*rest, k)), scalar(0, x.dtype))

    return low.pointwise(element, tuple(sizes), x.dtype)
