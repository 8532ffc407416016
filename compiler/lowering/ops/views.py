"""Views: index maps, no memory of their own. What eager copies (flip, a reshape that cannot be a view) is a definition.

transpose(x, 0, 1)[i, j]   =  x[j, i]
view(x, [32])[i]           =  x[i // 8, i % 8]          for x: [4, 8]
slice(x, 0, 2, 9, 3)[i]    =  x[3*i + 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import fx

from ....rewrites.graph import gives_view
from ...ir.index.bounds import known_lt, known_nonnegative
from ...ir.index.index import Index, Loaded, add, least, most, mul, quotient, remainder
from ...ir.value import Number, Op
from ..core import Indices, Lowering, Tensor, Unlowered, contiguous, lowers, number
from ..positions import numel
from .copies import copied


def promised_sizes(low: Lowering, output: int | None = None) -> Indices:
    """Sizes of the current node's result as tracing knows them: -1 and negative ends are resolved there."""
    meta = low.current.meta["val"]
    return tuple(map(number, (meta if output is None else meta[output]).shape))


def wrapped(dim: int, rank: int) -> int:
    """A dim counted from the start."""
    return dim % max(rank, 1)


# -- reshaping ------------------------------------------------------------------------------------------------------


@lowers("aten.view", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias")
def _view(low: Lowering, x: Tensor, sizes: Any, _: Any = None) -> Tensor:
    if isinstance(sizes, torch.dtype):
        return _reinterpreted(low, x, sizes)
    return reshaped(x, promised_sizes(low))


def _is_given_out(node: fx.Node) -> bool:
    """Whether a node, or a view of it, is a result of the program: who writes to that writes to all that share it."""
    return any(user.op == "output" or (gives_view(user) and _is_given_out(user)) for user in node.users)


def _reinterpreted(low: Lowering, x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == x.dtype:
        return x
    wide = {torch.float32: torch.int32, torch.int32: torch.float32, torch.float64: torch.int64}
    if wide.get(x.dtype) != dtype and wide.get(dtype) != x.dtype:
        raise Unlowered("view", f"{x.dtype} seen as {dtype}")
    if _is_given_out(low.origin):
        raise Unlowered("view", "a result that shares memory with others")
    return low.pointwise(lambda i: Op("bitcast", (x.at(i),), dtype), x.sizes, dtype)


def reshaped(x: Tensor, sizes: Sequence[Any]) -> Tensor:
    """`x` seen with other sizes, as many elements in the same order."""
    sizes = tuple(sizes)
    if sizes == x.sizes:
        return x
    if 0 in x.sizes:
        return x.viewed(sizes, lambda _: (0,) * len(x.sizes))
    groups = _groups(x.sizes, sizes)

    def back(indices: Indices) -> Indices:
        made: list[Any] = []
        for old, new in groups:
            made += _unflattened(_flattened([indices[d] for d in new], [sizes[d] for d in new]), x.sizes, old)
        return tuple(made)

    return x.viewed(sizes, back)


def _groups(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[range, range]]:
    """Shortest runs of dims, of both sides, that are known to have equally many elements.

    [6, 4, 5], [2, 3, 20]  ->  [6] = [2, 3];  [4, 5] = [20]
    """
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        start = i, j
        i, j = _group_end(old, new, i, j)
        groups.append((range(start[0], i), range(start[1], j)))
    return groups


def _group_end(old: Sequence[Any], new: Sequence[Any], i: int, j: int) -> tuple[int, int]:
    for size in range(1, len(old) - i + len(new) - j):
        for left in range(size + 1):
            ends = i + left, j + size - left
            if ends[0] <= len(old) and ends[1] <= len(new) and _as_many(old[i : ends[0]], new[j : ends[1]]):
                return ends
    return len(old), len(new)  # there are as many in all


def _as_many(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return numel(old) == numel(new)


def _flattened(indices: Sequence[Any], sizes: Sequence[Any]) -> Any:
    return reduce(add, map(mul, indices, contiguous(sizes)), 0)


def _unflattened(flat: Any, sizes: Sequence[Any], dims: range) -> list[Any]:
    """The indices of an element of some dims, given its place among them."""
    indices: list[Any] = []
    for d in reversed(dims):
        first = d == dims[0]
        indices.append(flat if first else remainder(flat, sizes[d]))
        flat = 0 if first else quotient(flat, sizes[d])
    return indices[::-1]


# -- dims that come, go and change places ---------------------------------------------------------------------------


@lowers("aten.permute")
def _permute(_: Lowering, x: Tensor, dims: Sequence[int]) -> Tensor:
    return permuted(x, [wrapped(d, len(x.sizes)) for d in dims])


def permuted(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Dim k of the result is dim ``dims[k]`` of `x`."""
    places = {d: k for k, d in enumerate(dims)}
    return x.viewed([x.sizes[d] for d in dims], lambda i: tuple(i[places[d]] for d in range(len(dims))))


@lowers("aten.transpose.int")
def _transpose(_: Lowering, x: Tensor, a: int, b: int) -> Tensor:
    rank = len(x.sizes)
    dims = list(range(rank))
    if rank:
        a, b = wrapped(a, rank), wrapped(b, rank)
        dims[a], dims[b] = b, a
    return permuted(x, dims)


@lowers("aten.t", "aten.numpy_T", "aten.matrix_H", "aten.mH", "aten.mT", "aten.adjoint")
def _t(low: Lowering, x: Tensor) -> Tensor:
    return _transpose(low, x, -2, -1) if len(x.sizes) >= 2 else x


@lowers("aten.movedim.int", "aten.movedim.intlist")
def _movedim(_: Lowering, x: Tensor, source: Any, destination: Any) -> Tensor:
    rank = len(x.sizes)
    sources, targets = (
        [wrapped(d, rank) for d in (dims if isinstance(dims, list) else [dims])] for dims in (source, destination)
    )
    rest = [d for d in range(rank) if d not in sources]
    moved = dict(zip(targets, sources, strict=True))
    return permuted(x, [moved[k] if k in moved else rest.pop(0) for k in range(rank)])


@lowers("aten.unsqueeze")
def _unsqueeze(_: Lowering, x: Tensor, dim: int) -> Tensor:
    dim = wrapped(dim, len(x.sizes) + 1)
    return x.viewed((*x.sizes[:dim], 1, *x.sizes[dim:]), lambda i: (*i[:dim], *i[dim + 1 :]))


@lowers("aten.squeeze")
def _squeeze(low: Lowering, x: Tensor, dims: Any = None) -> Tensor:
    rank = len(x.sizes)
    chosen = range(rank) if dims is None else [wrapped(d, rank) for d in (dims if isinstance(dims, list) else [dims])]
    gone = {d for d in chosen if d < rank and x.sizes[d] == 1}
    kept = [d for d in range(rank) if d not in gone]
    if len(kept) != len(promised_sizes(low)):
        raise Unlowered("symbolic", "squeezed sizes that are 1 only when run")

    def back(indices: Indices) -> Indices:
        given = iter(indices)
        return tuple(0 if d in gone else next(given) for d in range(rank))

    return x.viewed([x.sizes[d] for d in kept], back)


@lowers("aten.expand", "aten.broadcast_to")
def _expand(low: Lowering, x: Tensor, *_: Any, **_more: Any) -> Tensor:
    return expanded(x, promised_sizes(low))


def expanded(x: Tensor, sizes: Sequence[Any]) -> Tensor:
    """`x` broadcast to `sizes`."""
    skipped = len(sizes) - len(x.sizes)

    def back(indices: Indices) -> Indices:
        return tuple(0 if size == 1 else i for i, size in zip(indices[skipped:], x.sizes, strict=True))

    return x.viewed(sizes, back)


# -- parts ----------------------------------------------------------------------------------------------------------


def narrowed(x: Tensor, dim: int, start: Any, length: Any, step: int = 1) -> Tensor:
    """``x[start : start + length * step : step]`` along one dim."""
    sizes = (*x.sizes[:dim], length, *x.sizes[dim + 1 :])
    return x.viewed(sizes, lambda i: (*i[:dim], add(mul(i[dim], step), start), *i[dim + 1 :]))


def clamped(position: Any, size: Any) -> Any:
    """A position as slices take it: negative ones count from the end, all are kept within [0, size]."""
    return least(most(from_front(position, size), 0), size)


def from_front(position: Any, size: Any) -> Any:
    """A position counted from the front.

    n of unknown sign    ->    n + size * min(1, max(0, -n))
    """
    if known_nonnegative(position):
        return position
    if known_lt(position, 0):
        return add(position, size)
    return add(position, mul(size, least(1, most(0, mul(position, -1)))))


def place_of(index: Any, size: Any) -> Any:
    """The place that an index addresses, counted from the front, checked when run where it is not known to be there.

    Raises:
        Unlowered: there is no such place, which eager refuses (torch 2.11 traces ``x.select(0, 0)`` of no rows).
    """
    place = from_front(index, size)
    if isinstance(place, int) and isinstance(size, int) and not 0 <= place < size:
        raise Unlowered("refused", f"index {index} is out of range of {size}")
    if known_nonnegative(place) and known_lt(place, size):
        return place
    return Loaded(Number(index, torch.int64), size, True).index() if isinstance(index, Index) else place


@lowers("aten.slice.Tensor")
def _slice(low: Lowering, x: Tensor, dim: int = 0, start: Any = None, _: Any = None, step: Any = 1) -> Tensor:
    if low.current.meta.get("unbacked_bindings"):
        raise Unlowered("data-dependent", "a length that the slice itself makes known when run")
    dim = wrapped(dim, len(x.sizes))
    first = clamped(0 if start is None else start, x.sizes[dim])
    return narrowed(x, dim, first, promised_sizes(low)[dim], step)


@lowers("aten.narrow")
def _narrow(_: Lowering, x: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    dim = wrapped(dim, len(x.sizes))
    if isinstance(start, Tensor):
        raise Unlowered("data-dependent", "a start that is known when run")
    return narrowed(x, dim, clamped(start, x.sizes[dim]), length)


@lowers("aten.select.int")
def _select(_: Lowering, x: Tensor, dim: int, index: Any) -> Tensor:
    dim = wrapped(dim, len(x.sizes))
    return selected(x, dim, place_of(index, x.sizes[dim]))


def selected(x: Tensor, dim: int, index: Any) -> Tensor:
    """``x[index]`` along one dim, which goes."""
    return x.viewed((*x.sizes[:dim], *x.sizes[dim + 1 :]), lambda i: (*i[:dim], index, *i[dim:]))


@lowers("aten.split", "aten.split_with_sizes", "aten.chunk", "aten.tensor_split", "aten.unsafe_split")
def _split(low: Lowering, x: Tensor, _: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """The parts of a dim, of the sizes that tracing found."""
    dim = wrapped(dim, len(x.sizes))
    parts, start = [], 0
    for k in range(len(low.current.meta["val"])):
        length = promised_sizes(low, k)[dim]
        parts.append(narrowed(x, dim, start, length))
        start = add(start, length)
    return tuple(parts)


@lowers("aten.unbind")
def _unbind(low: Lowering, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    dim = wrapped(dim, len(x.sizes))
    return tuple(selected(x, dim, k) for k in range(len(low.current.meta["val"])))


@lowers("aten.diagonal")
def _diagonal(low: Lowering, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rank = len(x.sizes)
    dim1, dim2 = wrapped(dim1, rank), wrapped(dim2, rank)
    down, right = max(-offset, 0), max(offset, 0)

    def back(indices: Indices) -> Indices:
        rest, along = iter(indices[:-1]), indices[-1]
        return tuple(
            add(along, down) if d == dim1 else add(along, right) if d == dim2 else next(rest) for d in range(rank)
        )

    return x.viewed(promised_sizes(low), back)


@lowers("aten.unfold")
def _unfold(low: Lowering, x: Tensor, dim: int, _: Any, step: int) -> Tensor:
    dim = wrapped(dim, len(x.sizes))
    if not x.sizes:
        return x.viewed(promised_sizes(low), lambda i: ())
    return x.viewed(promised_sizes(low), lambda i: (*i[:dim], add(mul(i[dim], step), i[-1]), *i[dim + 1 : -1]))


@lowers("aten.as_strided")
def _as_strided(_: Lowering, x: Tensor, sizes: Sequence[Any], strides: Sequence[Any], offset: Any = None) -> Tensor:
    """A view of a whole contiguous buffer: the element's place in memory, unflattened again."""
    buffer = x.buffer
    if buffer.kind != "made" or buffer.strides != contiguous(buffer.sizes) or not isinstance(numel(buffer.sizes), int):
        raise Unlowered("view", "as_strided of memory whose layout is not known to be contiguous")
    start = 0 if offset is None else offset
    span = add(start, reduce(add, (mul(add(n, -1), s) for n, s in zip(sizes, strides, strict=True)), 1))
    if (offset is None and not x.is_whole) or not isinstance(span, int) or span > numel(buffer.sizes):
        raise Unlowered("view", "as_strided that may leave its buffer")

    def where(indices: Indices) -> Indices:
        flat = add(start, reduce(add, map(mul, indices, strides), 0))
        return tuple(_unflattened(flat, buffer.sizes, range(len(buffer.sizes))))

    return Tensor(buffer, tuple(sizes), where, x.dtype)


# -- the same elements ----------------------------------------------------------------------------------------------


@lowers("aten.alias", "aten.detach", "aten.lift", "aten.lift_fresh")
def _alias(_: Lowering, x: Tensor, **_more: Any) -> Tensor:
    return x


@lowers("aten.flip", "aten.fliplr", "aten.flipud")
def _flip(low: Lowering, x: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    name = low.current.target.name()
    dims = dims if dims is not None else [1] if name == "aten::fliplr" else [0]
    turned = {wrapped(d, len(x.sizes)) for d in dims} if x.sizes else set()

    def back(indices: Indices) -> Indices:
        return tuple(add(add(x.sizes[d], -1), mul(i, -1)) if d in turned else i for d, i in enumerate(indices))

    return copied(low, x.viewed(x.sizes, back))


COPIES = {
    "permute_copy": _permute, "transpose_copy": _transpose, "t_copy": _t, "unsqueeze_copy": _unsqueeze,
    "squeeze_copy": _squeeze, "view_copy": _view, "expand_copy": _expand, "slice_copy": _slice, "select_copy": _select,
    "diagonal_copy": _diagonal, "unfold_copy": _unfold, "narrow_copy": _narrow,
    "as_strided_copy": _as_strided, "alias_copy": _alias, "detach_copy": _alias,
}  # fmt: skip


def _copying(view: Any) -> Any:
    return lambda low, *args, **kwargs: copied(low, view(low, *args, **kwargs))


@lowers("aten.unbind_copy", "aten.split_copy", "aten.split_with_sizes_copy")
def _parts_copy(low: Lowering, x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    view = _unbind if low.current.target.name().startswith("aten::unbind") else _split
    made = []
    for k, part in enumerate(view(low, x, *args)):
        low.output = k
        made.append(copied(low, part))
    low.output = None
    return tuple(made)


for _name, _function in COPIES.items():
    lowers(f"aten.{_name}")(_copying(_function))
