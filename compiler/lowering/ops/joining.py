"""Joining, repeating and padding: whole regions of the result come from whole regions of the arguments.

cat([x, y], 0)           ->   for i < 4: out[i] = x[i]          two definitions, one buffer
                              for i < 3: out[4 + i] = y[i]
constant_pad_nd(x, [1, 1])   ->   for i < 6: out[i] = x[i - 1] if 0 <= i - 1 < 4 else 0
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch

from ...ir.index.bounds import known_nonnegative
from ...ir.index.index import add, least, most, mul, quotient, remainder
from ...ir.value import Value, compute_dtype
from ..arithmetic import plus
from ..core import Indices, Lowering, Tensor, Unlowered, lowers, whole
from ..positions import (
    compared,
    filled,
    guarded,
    is_empty,
    iterations,
    numel,
    raveled,
    scalar,
    swapped,
    unraveled,
    within,
)
from ..windows import Place
from .elementwise import widened
from .views import promised_sizes, wrapped

Source = Callable[[Indices], Value]
_SCATTERING = frozenset({"cuda"})  # types of devices on which each store touches sectors of many rows
_SMALL_RUN, _MANY_RUNS = 16, 8  # bytes of a row of a tensor that is joined; tensors that an element chooses among


@lowers("aten.cat")
def cat(low: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after the other along `dim`; empty tensors of rank 1 join anything, as in eager."""
    joined = [x for x in tensors if x.sizes != (0,)] or list(tensors[:1])
    d = wrapped(dim, len(joined[0].sizes))
    dtype = reduce(torch.promote_types, (x.dtype for x in tensors))
    total = reduce(add, (x.sizes[d] for x in joined))
    if low.device.type in _SCATTERING and _is_interleaved(joined, d, dtype):
        return _interleaved(low, joined, d, dtype)
    into = whole(low.buffer(swapped(joined[0].sizes, d, total), dtype))
    offset: Any = 0
    for x in [x for x in joined if not is_empty(x.sizes)] or joined[:1]:
        _place(low, into, x, d, offset)
        offset = add(offset, x.sizes[d])
    return into


def _is_interleaved(tensors: Sequence[Tensor], d: int, dtype: torch.dtype) -> bool:
    """Whether stores of one tensor would touch a small part of each sector of memory, and leave the rest to others."""
    runs = [numel(x.sizes[d:]) for x in tensors]
    small = all(isinstance(run, int) and 0 < run * dtype.itemsize <= _SMALL_RUN for run in runs)
    return small and 1 < len(tensors) <= _MANY_RUNS


def _interleaved(low: Lowering, tensors: Sequence[Tensor], d: int, dtype: torch.dtype) -> Tensor:
    """Each element of the result chooses the tensor that it is of, so that neighbors are stored together.

    stack([x, y], -1)   ->   for i < 4, k < 2: out[i, k] = x[i] if k < 1 else y[i]
    """
    ends = list(itertools.accumulate(x.sizes[d] for x in tensors))

    def element(at: Indices) -> Value:
        made: Value | None = None
        for x, end in reversed(list(zip(tensors, ends, strict=True))):
            within_it = 0 if x.sizes[d] == 1 else add(at[d], x.sizes[d] - end)
            mine = widened(x.at(swapped(at, d, within_it)), x.dtype, dtype)
            made = mine if made is None else guarded([compared("lt", at[d], end)], mine, made)
        assert made is not None
        return made

    return low.pointwise(element, swapped(tensors[0].sizes, d, ends[-1]), dtype)


@lowers("aten.stack")
def stack(low: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape along a new dim."""
    rank = len(tensors[0].sizes)
    d = wrapped(dim, rank + 1)
    parts = [x.viewed(_inserted(x.sizes, d, 1), lambda i: swapped(i, d)) for x in tensors]
    return cat(low, parts, d)


def _inserted(sizes: Sequence[Any], d: int, size: Any) -> Indices:
    return (*sizes[:d], size, *sizes[d:])


def _place(low: Lowering, into: Tensor, x: Tensor, d: int, offset: Any) -> None:
    loops = low.loops(x.sizes)
    at = iterations(loops)
    low.store(into, loops, swapped(at, d, add(at[d], offset)), widened(x.at(at), x.dtype, into.dtype))


@lowers("aten.repeat")
def repeat(low: Lowering, x: Tensor, repeats: Sequence[Any]) -> Tensor:
    """Tiles: `repeats` for each dim, new dims in front."""
    extra = len(repeats) - len(x.sizes)
    sizes = tuple(map(mul, repeats, (*[1] * extra, *x.sizes)))
    if is_empty(sizes):
        return filled(low, sizes, 0, x.dtype)
    return low.pointwise(lambda at: x.at(tuple(map(remainder, at[extra:], x.sizes))), sizes, x.dtype)


@lowers("aten.roll")
def roll(low: Lowering, x: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Tensor:
    """Elements moved along `dims`, around the end; without dims, along the flattened tensor."""
    if is_empty(x.sizes) or not x.sizes:
        return low.pointwise(x.at, x.sizes, x.dtype)
    if not dims:
        return low.pointwise(lambda at: x.at(_rolled_flat(at, x.sizes, shifts[0])), x.sizes, x.dtype)
    moves: list[Any] = [0] * len(x.sizes)
    for shift, dim in zip(shifts, dims, strict=True):
        moves[wrapped(dim, len(x.sizes))] = add(moves[wrapped(dim, len(x.sizes))], shift)
    return low.pointwise(lambda at: x.at(tuple(map(_rolled, at, x.sizes, moves))), x.sizes, x.dtype)


def _rolled(i: Any, size: Any, shift: Any) -> Any:
    return i if shift == 0 else remainder(add(i, mul(shift, -1)), size)


def _rolled_flat(at: Indices, sizes: Indices, shift: Any) -> Indices:
    return unraveled(_rolled(raveled(at, sizes), numel(sizes), shift), sizes)


@lowers("aten.pixel_shuffle")
def pixel_shuffle(low: Lowering, x: Tensor, upscale_factor: int) -> Tensor:
    """``out[c, h*r + a, w*r + b] = x[c*r*r + a*r + b, h, w]``."""
    r = upscale_factor

    def source(at: Indices) -> Indices:
        *batch, c, h, w = at
        inner = add(mul(remainder(h, r), r), remainder(w, r))
        return (*batch, add(mul(c, r * r), inner), quotient(h, r), quotient(w, r))

    return low.pointwise(lambda at: x.at(source(at)), promised_sizes(low), x.dtype)


@lowers("aten.pixel_unshuffle")
def pixel_unshuffle(low: Lowering, x: Tensor, downscale_factor: int) -> Tensor:
    """``out[c*r*r + a*r + b, h, w] = x[c, h*r + a, w*r + b]``."""
    r = downscale_factor

    def source(at: Indices) -> Indices:
        *batch, c, h, w = at
        down, right = remainder(quotient(c, r), r), remainder(c, r)
        return (*batch, quotient(c, r * r), add(mul(h, r), down), add(mul(w, r), right))

    return low.pointwise(lambda at: x.at(source(at)), promised_sizes(low), x.dtype)


@lowers("aten.channel_shuffle")
def channel_shuffle(low: Lowering, x: Tensor, groups: int) -> Tensor:
    """Channels (g, k) in the order (k, g)."""
    each = quotient(x.sizes[1], groups)

    def source(at: Indices) -> Indices:
        return swapped(at, 1, add(mul(remainder(at[1], groups), each), quotient(at[1], groups)))

    return low.pointwise(lambda at: x.at(source(at)), promised_sizes(low), x.dtype)


# -- padding -----------------------------------------------------------------------------------------------------------


@lowers("aten.constant_pad_nd")
def constant_pad_nd(low: Lowering, x: Tensor, pad: Sequence[Any], value: Any = 0) -> Tensor:
    """`pad` is (before, after) of the last dim, then of the one before it, ...; negative ones cut off."""
    before, sizes = _padded(x.sizes, pad)
    if not all(map(known_nonnegative, _left(x.sizes, pad))):
        raise Unlowered("arguments", "eager refuses to cut more than there is, and only a run tells the sizes")
    other = scalar(value, x.dtype)

    def element(at: Indices) -> Value:
        source = tuple(add(i, mul(p, -1)) for i, p in zip(at, before, strict=True))
        conditions = [c for i, size in zip(source, x.sizes, strict=True) for c in within(i, size)]
        return guarded(conditions, x.at(source), other)

    return low.pointwise(element, sizes, x.dtype)


@lowers("aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d")
def reflection_pad(low: Lowering, x: Tensor, padding: Sequence[Any]) -> Tensor:
    """Mirrored at the border elements, which are not repeated."""
    return _pad_by(low, x, padding, _reflected)


@lowers("aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d")
def replication_pad(low: Lowering, x: Tensor, padding: Sequence[Any]) -> Tensor:
    """The border elements repeated."""
    return _pad_by(low, x, padding, _clamped)


@lowers("aten.reflection_pad1d_backward", "aten.reflection_pad2d_backward", "aten.reflection_pad3d_backward")
def reflection_pad_backward(low: Lowering, grad_output: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
    """Gradients added up where they come from."""
    return _gathered(low, grad_output, x, padding, _reflections)


@lowers("aten.replication_pad1d_backward", "aten.replication_pad2d_backward", "aten.replication_pad3d_backward")
def replication_pad_backward(low: Lowering, grad_output: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
    """Gradients added up where they come from: gathered where few copies are made of an element, else scattered."""
    copies = numel([1 + max(0, a) + max(0, b) for a, b in _pairs(padding)]) if _all_known(padding) else _MANY + 1
    if copies > _MANY:
        return _scattered(low, grad_output, x, padding, _clamped)
    return _gathered(low, grad_output, x, padding, _copies)


def _padded(sizes: Indices, pad: Sequence[Any]) -> tuple[Indices, Indices]:
    """The padding before each dim, and the padded sizes."""
    before: list[Any] = [0] * len(sizes)
    padded = list(sizes)
    for k in range(len(pad) // 2):
        before[-k - 1] = pad[2 * k]
        padded[-k - 1] = add(padded[-k - 1], add(pad[2 * k], pad[2 * k + 1]))
    return tuple(before), tuple(padded)


def _left(sizes: Indices, pad: Sequence[Any]) -> Iterator[Any]:
    """The part of each dim that negative padding leaves: eager cuts before it adds."""
    for k in range(len(pad) // 2):
        cut = [p for p in pad[2 * k : 2 * k + 2] if not known_nonnegative(p)]
        if cut:
            yield reduce(add, cut, sizes[-k - 1])


def _reflected(i: Any, size: Any) -> Any:
    """The index in range that `i` in ``(-size, 2 * size - 2]`` mirrors."""
    away = most(i, mul(i, -1))
    return least(away, add(mul(add(size, -1), 2), mul(away, -1)))


def _clamped(i: Any, size: Any) -> Any:
    return least(most(i, 0), add(size, -1))


Mirror = Callable[[Any, Any], Any]


def _source_of(at: Indices, before: Indices, sizes: Indices, mirror: Mirror) -> Indices:
    moved = (add(i, mul(p, -1)) for i, p in zip(at, before, strict=True))
    return tuple(i if _inside(i, size) else mirror(i, size) for i, size in zip(moved, sizes, strict=True))


def _inside(i: Any, size: Any) -> bool:
    return not within(i, size)


def _pad_by(low: Lowering, x: Tensor, padding: Sequence[Any], mirror: Mirror) -> Tensor:
    before, sizes = _padded(x.sizes, padding)
    return low.pointwise(lambda at: x.at(_source_of(at, before, x.sizes, mirror)), sizes, x.dtype)


# -- gradients of padding ----------------------------------------------------------------------------------------------

Places = Callable[[Any, Any, Any, Any], list[Place]]
_MANY = 27  # terms of an expression: beyond, a pass of its own is less


def _pairs(padding: Sequence[Any]) -> list[tuple[Any, Any]]:
    """(before, after) of the padded dims, in order."""
    return list(zip(padding[::2], padding[1::2], strict=True))[::-1]


def _all_known(padding: Sequence[Any]) -> bool:
    return all(isinstance(p, int) for p in padding)


def _may_pad(p: Any) -> bool:
    return not isinstance(p, int) or p > 0


def _reflections(i: Any, size: Any, before: Any, after: Any) -> list[Place]:
    """The places of element `i` in a padded dim: moved, mirrored at the first element, mirrored at the last."""
    found: list[Place] = [(add(i, before), [])]
    if _may_pad(before):
        found.append((add(before, mul(i, -1)), [compared("gt", i, 0)]))
    if _may_pad(after):
        last = add(size, -1)
        found.append((add(add(before, mul(last, 2)), mul(i, -1)), [compared("lt", i, last)]))
    return found


def _copies(i: Any, size: Any, before: int, after: int) -> list[Place]:
    """The places of element `i` in a padded dim: moved; the first one also before that, the last one after it."""
    last = add(size, -1)
    found: list[Place] = [(add(i, before), [])]
    found += [(k, [compared("eq", i, 0)]) for k in range(before)]
    return found + [(add(last, before + 1 + k), [compared("eq", i, last)]) for k in range(after)]


def _gathered(low: Lowering, grad: Tensor, x: Tensor, padding: Sequence[Any], places: Places) -> Tensor:
    """``out[i] = sum of grad[p] over the places p of i``: added up in float32 at least, rounded once."""
    pairs, zero = _pairs(padding), scalar(0, grad.dtype)
    first = len(x.sizes) - len(pairs)

    def total(at: Indices, place: Indices) -> Value:
        d = len(place)
        if d == len(at):
            return grad.at(place)
        terms = [
            guarded([*conditions, *within(p, grad.sizes[d])], total(at, (*place, p)), zero)
            for p, conditions in places(at[d], x.sizes[d], *pairs[d - first])
        ]
        return plus(*terms)

    return low.pointwise(lambda at: total(at, at[:first]), x.sizes, grad.dtype)


def _scattered(low: Lowering, grad: Tensor, x: Tensor, padding: Sequence[Any], mirror: Mirror) -> Tensor:
    """Zeros, and then ``out[mirror(i)] += grad[i]``, in float32 at least; then rounded."""
    before, _ = _padded(x.sizes, padding)
    dtype = compute_dtype(grad.dtype)
    out = filled(low, x.sizes, 0, dtype)
    loops = low.loops(grad.sizes)
    at = iterations(loops)
    low.store(out, loops, _source_of(at, before, x.sizes, mirror), grad.at(at), "add")
    return out if dtype == grad.dtype else low.pointwise(out.at, x.sizes, grad.dtype)
