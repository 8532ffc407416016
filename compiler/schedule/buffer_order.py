"""Memory of a program's own, in the order in which it is read.

for i < 512, j < 512: t[i, j] = log(i - j)                         t of strides (512, 1)
for h < 96, j < 512, i < 512: y[h, j, i] = x[h, j, i] + t[i, j]    neighbours read elements 512 apart

                                                              ->   t of strides (1, 512): they read neighbours

A table that is computed once and read for every head and batch (biases and buckets of relative positions) is written
across its rows instead. For GPUs, where programs read neighbours together and each line that is touched counts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..ir.index.index import Index, Var, atoms
from ..ir.program import Buffer, Definition, Extern, Item
from .dependences import loads

_OFTEN = 8  # times that elements are read by neighbours in one order, before they are written in it


def in_reading_order(items: Sequence[Item], buffers: Mapping[str, Buffer], outputs: Iterable[str]) -> dict[str, Buffer]:
    """The buffers, those with other strides that are read much more often along another dim than the innermost.

    Args:
        items: of a program, with one index a dim in loads and stores.
        buffers: theirs.
        outputs: names of buffers whose strides are promised.
    """
    kept = {*outputs, *(n for i in items if isinstance(i, Extern) for n in (*i.reads, *i.writes))}
    votes = _votes([item for item in items if isinstance(item, Definition)])
    found = dict(buffers)
    for name, count in votes.items():
        buffer = buffers[name]
        if name in kept or not _is_movable(buffer):
            continue
        inner = buffer.strides.index(1)
        dim, most = count.most_common(1)[0]
        if dim != inner and most - count[inner] >= _OFTEN * math.prod(buffer.sizes):
            found[name] = replace(buffer, strides=_strides(buffer.sizes, dim))
    return found


def _is_movable(buffer: Buffer) -> bool:
    """Whether it is dense memory of the program's own, in rows of several elements along several dims."""
    if buffer.kind != "made" or buffer.scalar or not all(isinstance(n, int) and n > 0 for n in buffer.sizes):
        return False
    return sum(n > 1 for n in buffer.sizes) > 1 and tuple(buffer.strides) == _strides(
        buffer.sizes, len(buffer.sizes) - 1
    )


def _votes(items: Iterable[Definition]) -> dict[str, Counter[int]]:
    """For each buffer, how many reads go from neighbour to neighbour along each dim."""
    votes: dict[str, Counter[int]] = defaultdict(Counter)
    for item in items:
        fast = item.reduced[-1] if item.reduced else item.loops[-1] if item.loops else None
        extents = [var.extent for var in (*item.loops, *item.reduced)]
        if fast is None or not all(isinstance(n, int) for n in extents):
            continue
        for load in dict.fromkeys(loads(item)):
            moving = [dim for dim, index in enumerate(load.indices) if _mentions(index, fast)]
            if len(moving) == 1 and _steps_by_one(load.indices[moving[0]], fast):
                votes[load.buffer][moving[0]] += math.prod(extents)
    return votes


def _mentions(index: Any, var: Var) -> bool:
    return isinstance(index, Index) and var in atoms(index)


def _steps_by_one(index: Index, var: Var) -> bool:
    return any(monomial == (var,) and abs(coefficient) == 1 for monomial, coefficient in index.terms)


def _strides(sizes: Sequence[int], inner: int) -> tuple[int, ...]:
    """Dense strides with one dim innermost, the others in their order."""
    strides, step = [0] * len(sizes), 1
    for dim in (inner, *(d for d in reversed(range(len(sizes))) if d != inner)):
        strides[dim] = step
        step *= sizes[dim]
    return tuple(strides)
