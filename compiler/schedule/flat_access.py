"""Flat memory: every access of a definition as one offset, so that views and dims no longer matter.

    x[i // 128, i % 128, j]  of strides (98304, 768, 1)   ->   x[768*i + j]

A kernel sees each of its buffers through such a flat one: one dim, stride 1, from the first element to the last.
Strided, expanded and overlapping buffers are the same to it. Numbers passed by value keep their empty indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..ir.index.index import Index, add, most, mul
from ..ir.program import Buffer, Definition, Reduction, Store
from ..ir.value import Load, Rewriter, Value

Number = Any  # int | Index


def flat_buffer(buffer: Buffer) -> Buffer:
    """The memory that a buffer covers, as one dim.

    Sizes (8, 768) of strides (1000, 1) cover 7768 elements.
    """
    if buffer.scalar:
        return buffer
    return replace(buffer, sizes=(_span(buffer),), strides=(1,))


def _span(buffer: Buffer) -> Number:
    dims = sorted(zip(buffer.strides, buffer.sizes, strict=True), key=lambda dim: isinstance(dim[0], Index))
    if any(size == 0 for _, size in dims):
        return 0
    dense = _dense(list(dims))
    if dense is not None:
        return dense
    last: Number = 1
    for stride, size in dims:
        last = add(last, mul(add(size, -1), stride))
    return most(last, 0) if isinstance(last, Index) else last


def _dense(dims: list[tuple[Number, Number]]) -> Number:
    """The number of elements where they lie without gaps, else None."""
    step: Number = 1
    dims = [dim for dim in dims if dim[1] != 1]
    while dims:
        found = next((dim for dim in dims if dim[0] == step), None)
        if found is None:
            return None
        dims.remove(found)
        step = mul(step, found[1])
    return step


def flatten(definition: Definition, buffers: Mapping[str, Buffer]) -> Definition:
    """`definition` with one offset for each access, in elements from the start of its buffer."""
    rewriter = Rewriter(value=lambda value: _flat_load(value, buffers))
    return rewritten(definition, rewriter, lambda store: (_offset(store.buffer, store.indices, buffers, rewriter),))


def rewritten(
    definition: Definition, rewriter: Rewriter, indices: Callable[[Store], tuple[Number, ...]] | None = None
) -> Definition:
    """`definition` with all of its values and indices rewritten; `indices` gives those of stores where others."""

    def places(store: Store) -> tuple[Number, ...]:
        return tuple(map(rewriter.index, store.indices)) if indices is None else indices(store)

    stores = tuple(replace(s, indices=places(s), value=rewriter(s.value)) for s in definition.stores)
    reductions = tuple(Reduction(r.name, r.reducer, tuple(map(rewriter, r.values))) for r in definition.reductions)
    return replace(definition, stores=stores, reductions=reductions)


def _flat_load(value: Value, buffers: Mapping[str, Buffer]) -> Value | None:
    if not isinstance(value, Load) or buffers[value.buffer].scalar:
        return None
    return Load(value.buffer, (offset_of(value.indices, buffers[value.buffer].strides),), value.dtype)


def _offset(name: str, indices: Iterable[Number], buffers: Mapping[str, Buffer], rewriter: Rewriter) -> Number:
    return offset_of(tuple(map(rewriter.index, indices)), buffers[name].strides)


def offset_of(indices: Iterable[Number], strides: Iterable[Number]) -> Number:
    """The offset of an element, in elements from the first."""
    total: Number = 0
    for index, stride in zip(indices, strides, strict=True):
        total = add(total, mul(index, stride))
    return total
