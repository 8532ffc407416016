"""Sorts of short rows on GPUs: each element is stored where as many elements come before it.

sort(x):    for i < 8, j < 4: fold sum k < 4 of before(x[i, k], k; x[i, j], j):      rank[i, j] = sum
            for i < 8, j < 4: values[i, rank[i, j]] = x[i, j],  places[i, rank[i, j]] = j

All pairs of a row are compared: many comparisons, which lanes do side by side without waiting for one another. A
library sorts in several kernels, which take longer up to some number of pairs. Equal elements keep their order, and
NaN is larger than anything, as in eager.

The places of a sort, sorted in their turn (the rank of each element), need no comparisons: all numbers from 0 on occur
once.

argsort(p), p the places of a sort:    for i < 8, j < 4: ranks[i, p[i, j]] = j
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...ir.index.index import Loaded
from ...ir.program import Store
from ...ir.value import HALVES, Number, Op, Value, compute_dtype
from ..arithmetic import minus, op, plus, times, where
from ..core import Indices, Lowering, Tensor, Unlowered, cast, const, lowers, whole
from ..positions import filled, iterations, swapped
from .copies import copied
from .elementwise import rounded

LONGEST, PAIRS = 1024, 1 << 26  # elements of a row; pairs of elements of all rows: beyond, a library takes less time
_ORDERED = 4  # bytes of the largest elements that are compared together with their positions, in twice as many bits
_BEYOND = 0x7F900000  # the bits of a float32 beyond infinity, so far that positions fit in between
_LIBRARY = frozenset({"cpu"})  # devices whose library takes no longer
_SORTS = ("aten.sort.default", "aten.sort.stable")


@lowers("aten.sort.default")
def sort(low: Lowering, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """The elements along a dim in order, and where they stood."""
    if low.device.type in _LIBRARY:
        raise Unlowered("algorithm", "needs sorting: the library's")
    if not x.sizes:
        raise Unlowered("arguments", "a number alone")
    d = dim % len(x.sizes)
    if x.sizes[d] == 1:
        return copied(low, x), filled(low, x.sizes, 0, torch.int64)
    require_few(x, d)
    inverse = not descending and _places_of_a_sort(low, d)
    return in_order(low, x, d, x if inverse else ranks(low, x, d, descending))


def require_few(x: Tensor, d: int) -> None:
    """Accept rows whose elements are compared faster than a library sorts them.

    Raises:
        Unlowered: they are not.
    """
    if not all(isinstance(n, int) for n in x.sizes) or not 2 <= x.sizes[d] <= LONGEST:
        raise Unlowered("algorithm", f"rows of unknown length, or of more than {LONGEST} elements")
    if math.prod(x.sizes) * x.sizes[d] > PAIRS:
        raise Unlowered("algorithm", f"more than {PAIRS} pairs of elements")


def in_order(low: Lowering, x: Tensor, d: int, rank: Tensor) -> tuple[Tensor, Tensor]:
    """New tensors of the elements by their rank, and of where they stood."""
    values = whole(low.buffer(x.sizes, x.dtype, output=0))
    places = whole(low.buffer(x.sizes, torch.int64, output=1))
    loops = low.loops(x.sizes)
    at = iterations(loops)
    into = swapped(at, d, _place(rank.at(at), x.sizes[d]))
    stored = ((values, rounded(x.at(at), x.dtype)), (places, Number(at[d], torch.int64)))
    for made, value in stored:  # no two at one place: their order does not matter
        low.define(loops, [Store(made.buffer.name, made.where(into), value)])
    return values, places


@lowers("aten.sort.stable")
def stable_sort(
    low: Lowering,
    x: Tensor,
    *,
    stable: bool | None = None,  # noqa: ARG001
    dim: int = -1,
    descending: bool = False,
) -> tuple[Tensor, Tensor]:
    """The same: equal elements keep their order in any case."""
    return sort(low, x, dim, descending)


def ranks(low: Lowering, x: Tensor, d: int, descending: bool) -> Tensor:
    """How many elements come before each one."""

    def before(at: Indices, other: Indices) -> Value:
        mine, others = (_whole_key(x, one, d, descending) for one in (at, swapped(at, d, *other)))
        if mine is not None and others is not None:
            return cast(op("gt" if descending else "lt", others, mine), torch.int32)
        (a, i), (b, j) = _key(x, swapped(at, d, *other), d, descending), _key(x, at, d, descending)
        first = op("gt" if descending else "lt", a, b)
        tie = op("logical_and", op("eq", a, b), op("lt", i, j))
        return cast(op("logical_or", first, tie), torch.int32)

    (found,) = low.reduce("sum", before, x.sizes, (x.sizes[d],), lambda _, c: c[0], (torch.int32,), output=0)
    return found


def _key(x: Tensor, at: Indices, d: int, descending: bool) -> tuple[Value, Value]:
    """An element and its position as they are compared: NaN as an infinity that comes after it, or before."""
    ordered = torch.uint8 if x.dtype == torch.bool else compute_dtype(x.dtype)
    value: Value = cast(rounded(x.at(at), x.dtype), ordered)
    place: Value = Number(at[d], torch.int32)
    if not ordered.is_floating_point:
        return value, place
    lost = op("isnan", value)
    moved = (minus if descending else plus)(place, x.sizes[d])
    return where(lost, math.inf, value), where(lost, moved, place)


def _whole_key(x: Tensor, at: Indices, d: int, descending: bool) -> Value | None:
    """Both as one integer: the element in its upper bits, the position in the lower ones; None for 64 bits.

    Of two equal elements the first has the smaller integer, or the larger one where larger elements come before. The
    bits of a float that is not negative are in order as they are, and so are those of others once they are negated.
    """
    if x.dtype.itemsize > _ORDERED:
        return None
    value = rounded(x.at(at), x.dtype)
    if value.dtype.is_floating_point:
        bits = Op("bitcast", (value,), torch.int32)
        negative = op("lt", bits, 0)
        signed = where(negative, op("sub", const(torch.iinfo(torch.int32).min, torch.int32), bits), bits)
        value = where(op("isnan", value), _BEYOND, signed)
    held = torch.int64 if x.dtype.itemsize == _ORDERED else torch.int32
    value = cast(value, held)
    if x.dtype not in HALVES:  # the lower bits of those are free, as they stand in float32
        value = times(value, LONGEST)
    return (minus if descending else plus)(value, Number(at[d], held))


def _place(rank: Value, count: int) -> Any:
    """A rank as an index, which says of itself that it is one."""
    inside = op("minimum", op("maximum", cast(rank, torch.int64), 0), count - 1)
    return Loaded(inside, count, False).index()


def _places_of_a_sort(low: Lowering, d: int) -> bool:
    """Whether the current node sorts the places that another sort along the same dim has given."""
    given = low.current.args[0]
    if not getattr(given, "name", "").startswith("getitem") or given.args[1] != 1:
        return False
    source = given.args[0]
    name = f"aten.{str(source.target).removeprefix('aten.')}"
    if name not in _SORTS:
        return False
    given_dim = source.kwargs.get("dim", -1)
    dim = source.args[1] if name == _SORTS[0] and len(source.args) > 1 else given_dim
    return bool(dim % len(given.meta["val"].shape) == d)


__all__ = ["in_order", "ranks", "require_few", "sort", "stable_sort"]
