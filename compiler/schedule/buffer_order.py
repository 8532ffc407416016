"""Memory of a program's own, in the order in which it is read.

for i < 512, j < 512: t[i, j] = log(i - j)                         t of strides (512, 1)
for h < 96, j < 512, i < 512: y[h, j, i] = x[h, j, i] + t[i, j]    neighbours read elements 512 apart

                                                              ->   t of strides (1, 512): they read neighbours

A table that is computed once and read for every head and batch (biases and buckets of relative positions) is written
across its rows instead. In which order a reader takes its loops, all else that it touches says: one that touches
nothing else (moments of windows) takes the order of what it reads. For GPUs, where programs read neighbours together
and each line that is touched counts. Results of folds lie as what is folded, on every target: see `as_folds_read`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..ir.index.index import Index, Var, atoms
from ..ir.program import Buffer, Definition, Extern, Item, Store, dense_strides
from ..ir.value import Load
from .affine import digits
from .dependences import loads
from .flat_access import flatten
from .groups import FEW
from .profit import guess

_OFTEN = 8  # times that elements are read by neighbours in one order, before they are written in it


def in_reading_order(items: Sequence[Item], buffers: Mapping[str, Buffer], outputs: Iterable[str]) -> dict[str, Buffer]:
    """The buffers, those with other strides that are read much more often along another dim than the innermost.

    Args:
        items: of a program, with one index a dim in loads and stores.
        buffers: theirs.
        outputs: names of buffers whose strides are promised.
    """
    kept = _promised(items, outputs)
    read, written = _votes([item for item in items if isinstance(item, Definition)], buffers)
    found = dict(buffers)
    for name in {**read, **written}:
        buffer = buffers[name]
        if name in kept or not _is_movable(buffer):
            continue
        dim = _wanted(buffer, read[name], written[name])
        if dim is not None:
            found[name] = replace(buffer, strides=_strides(buffer.sizes, dim))
    return found


def as_folds_read(items: Sequence[Item], buffers: Mapping[str, Buffer], outputs: Iterable[str]) -> dict[str, Buffer]:
    """The buffers, results of folds with the order of what is folded, so that neighbours are read and written together.

        mean[i, k] = fold over j < 48 of x[i + 4*j + 192*k]        i < 4, k < 40        ->   mean of strides (1, 4)

    Arguments as for `in_reading_order`.
    """
    kept = _promised(items, outputs)
    definitions = [item for item in items if isinstance(item, Definition)]
    writers = Counter(store.buffer for item in definitions for store in item.stores)
    found = dict(buffers)
    for item in definitions:
        if item.scan or not item.reductions or math.prod(map(guess, (v.extent for v in item.reduced))) < FEW:
            continue
        for store in item.stores:
            if writers[store.buffer] == 1 and store.buffer not in kept and _is_movable(buffers[store.buffer]):
                found[store.buffer] = _as_read(item, store, buffers)
    return found


def _promised(items: Iterable[Item], outputs: Iterable[str]) -> set[str]:
    """The buffers whose strides others rely on: results of the program, and what calls of libraries touch."""
    return {*outputs, *(n for i in items if isinstance(i, Extern) for n in (*i.reads, *i.writes))}


def _as_read(item: Definition, store: Store, buffers: Mapping[str, Buffer]) -> Buffer:
    """The buffer of a fold's results with dims in the order in which the first load that steps all of them does."""
    buffer = buffers[store.buffer]
    dims = {v: d for d, index in enumerate(store.indices) for v in item.loops if index == v.index()}
    long = [d for d, size in enumerate(buffer.sizes) if size != 1]
    if sorted(dims.values()) != long:
        return buffer
    for load in loads(flatten(replace(item, stores=()), buffers)):
        seen = digits(load.indices[0]) if load.indices else None
        strides = {d: seen.stride(v) for v, d in dims.items()} if seen is not None else {}
        if strides and all(isinstance(n, int) and n for n in strides.values()):
            order = sorted(range(len(buffer.sizes)), key=lambda d: -strides.get(d, math.inf))
            return replace(buffer, strides=dense_strides(buffer.sizes, order))
    return buffer


def _wanted(buffer: Buffer, read: Counter[int | None], written: Counter[int | None]) -> int | None:
    """The dim that had better be the innermost; None where it is, or where readers and writers want different ones."""
    inner, asked = buffer.strides.index(1), {dim for dim in read if dim is not None}
    dim = max(asked, key=lambda dim: read[dim], default=inner)
    if dim != inner and read[dim] - read[inner] >= _OFTEN * math.prod(buffer.sizes):
        return dim
    (writer, *others) = written or (None,)
    return writer if not others and writer is not None and writer != inner and asked <= {writer} else None


def _is_movable(buffer: Buffer) -> bool:
    """Whether it is dense memory of the program's own, in rows of several elements along several dims."""
    if buffer.kind != "made" or buffer.scalar or not all(isinstance(n, int) and n > 0 for n in buffer.sizes):
        return False
    return sum(n > 1 for n in buffer.sizes) > 1 and tuple(buffer.strides) == _strides(
        buffer.sizes, len(buffer.sizes) - 1
    )


_Votes = dict[str, Counter[int | None]]


def _votes(items: Iterable[Definition], buffers: Mapping[str, Buffer]) -> tuple[_Votes, _Votes]:
    """For each buffer, how many reads, and how many writes, go to neighbours along each dim (None: along none)."""
    read, written = defaultdict[str, Counter[int | None]](Counter), defaultdict[str, Counter[int | None]](Counter)
    for item in items:
        extents = [var.extent for var in (*item.loops, *item.reduced)]
        if not all(isinstance(n, int) for n in extents):
            for name in (*(x.buffer for x in loads(item)), *(x.buffer for x in item.stores)):
                written[name][None] += 1  # in an order that is not known
            continue
        along = _contiguous(item, buffers)
        for load in dict.fromkeys(loads(item)):
            dim = _dim(item, load, along)
            if dim is not None:
                read[load.buffer][dim] += math.prod(extents)
        for store in dict.fromkeys(item.stores):
            written[store.buffer][_dim(item, store, along)] += math.prod(extents)
    return read, written


def _dim(item: Definition, access: Load | Store, along: Mapping[str, Counter[Var]]) -> int | None:
    """The dim along which a definition had better go from neighbour to neighbour."""
    fast = _fast(item, access, along)
    moving = [dim for dim, index in enumerate(access.indices) if fast is not None and _mentions(index, fast)]
    if fast is None or len(moving) != 1 or not _steps_by_one(access.indices[moving[0]], fast):
        return None
    return moving[0]


def _contiguous(item: Definition, buffers: Mapping[str, Buffer]) -> dict[str, Counter[Var]]:
    """For each buffer that a definition touches, how many elements it touches side by side along each of its loops."""
    found: dict[str, Counter[Var]] = defaultdict(Counter)
    loops = (*item.loops, *item.reduced)
    touched = [(x.buffer, x.indices) for x in loads(item)] + [(x.buffer, x.indices) for x in item.stores]
    for name, indices in dict.fromkeys(touched):
        moving = {var: [d for d, index in enumerate(indices) if _mentions(index, var)] for var in loops}
        elements = math.prod(var.extent for var, dims in moving.items() if dims)
        for var, dims in moving.items():
            if len(dims) == 1 and buffers[name].strides[dims[0]] == 1 and _steps_by_one(indices[dims[0]], var):
                found[name][var] += elements
    return found


def _fast(item: Definition, access: Load | Store, along: Mapping[str, Counter[Var]]) -> Var | None:
    """The loop along which lies most of what a definition touches beside a buffer.

    None where it touches less than the buffer along its loops, such as the results of folds of the buffer's rows: it
    may take them in any order, and takes that of the buffer.
    """
    name, loops = access.buffer, (*item.loops, *item.reduced)
    others: Counter[Var] = Counter()
    for other, elements in along.items():
        if other != name:
            others.update(elements)
    most = max(others.values(), default=0)
    if most < math.prod(var.extent for var in loops if any(_mentions(index, var) for index in access.indices)):
        return None
    wanted = [var for var in loops if most and others[var] == most]
    own = [var for var in wanted if name in along and along[name][var]]
    return (own or wanted)[-1] if wanted else None


def _mentions(index: Any, var: Var) -> bool:
    return isinstance(index, Index) and var in atoms(index)


def _steps_by_one(index: Index, var: Var) -> bool:
    return any(monomial == (var,) and abs(coefficient) == 1 for monomial, coefficient in index.terms)


def _strides(sizes: Sequence[int], inner: int) -> tuple[int, ...]:
    """Dense strides with one dim innermost, the others in their order."""
    return dense_strides(sizes, [*(d for d in range(len(sizes)) if d != inner), inner])
