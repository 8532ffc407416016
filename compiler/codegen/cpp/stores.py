"""Stores as C++: plain, combining with the old value, or atomic; of one element or of a vector."""

from __future__ import annotations

from typing import Any

import torch

from ...ir.index.index import Loaded, Var, terms
from ...ir.program import Store
from ...ir.value import Op
from .dtypes import scalar_type
from .value_text import CppValues, depends_on


def write_store(values: CppValues, store: Store, atomic: bool) -> None:
    """Write one store for every lane, and invalidate the known content of the buffer."""
    vectors, offset = values.vectors, store.indices[0]
    if vectors is not None and store in vectors.woven and not values.mask:
        for copy in range(vectors.copies):
            _weave(values, vectors.woven[store], copy)
    elif vectors is None or not (store.mode or _moves(values, store)):
        _scalar(values, store, atomic)
    else:
        for copy in range(vectors.copies):
            _vector(values, store, copy, atomic)
    stale = frozenset({("buffer", store.buffer)})
    values.writer.forget(depends_on(values.dependence, stale))
    assert offset is store.indices[0]


def _moves(values: CppValues, store: Store) -> bool:
    assert values.vectors is not None
    expanded = store.buffer in values.vectors.expanded
    return expanded or values.varies(store.value) or values.varies(store.indices[0])


def _scalar(values: CppValues, store: Store, atomic: bool) -> None:
    value = values.get(store.value)
    values.prepare(store.indices[0])
    how = "put(" if store.mode is None else _combined(store, atomic)
    values.writer.line(f"{how}{values.address(store.buffer, store.indices[0])}, {value});")


def _vector(values: CppValues, store: Store, copy: int, atomic: bool) -> None:
    assert values.vectors is not None
    offset = store.indices[0]
    if is_widened(store) and store not in values.vectors.rows and values.stride(store.buffer, offset) == 1:
        _widened(values, store, copy)
        return
    value = values.vector(store.value, copy)
    if store in values.vectors.rows:
        place, kind = values.vectors.rows[store]
        values.writer.line(f"{place} = Codec<{kind}>::down_lanes<{values.vectors.lanes}>({value});")
        return
    values.prepare(offset, copy)
    stride = values.stride(store.buffer, offset)
    mask, suffix = (f"{values.mask}, ", "_if") if values.mask else ("", "")
    if store.mode is not None and stride == 1 and not atomic:
        address = values.address(store.buffer, offset, copy)
        values.writer.line(f"lanes_{store.mode}{suffix}({mask}{address}, {value});")
    elif store.mode is not None:
        _combine(values, store, copy, value, atomic)
    elif stride == 1:
        values.writer.line(f"store{suffix}({mask}{values.address(store.buffer, offset, copy)}, {value});")
    else:
        pointer = values.names.buffers[store.buffer]
        values.writer.line(f"scatter{suffix}({mask}{pointer}, {values.offsets(offset, copy, store.buffer)}, {value});")


def is_widened(store: Store) -> bool:
    """Whether the stored value is a 32-bit integer that is widened to 64 bits."""
    value = store.value
    is_cast = isinstance(value, Op) and value.name == "cast" and value.args[0].dtype == torch.int32
    return is_cast and value.dtype == torch.int64 and store.mode is None


def _widened(values: CppValues, store: Store, copy: int) -> None:
    """Widen lanes of 32 bits to elements of 64 bits while storing, half a vector at a time."""
    assert isinstance(store.value, Op)
    value = values.vector(store.value.args[0], copy)
    values.prepare(store.indices[0], copy)
    mask, suffix = (f"{values.mask}, ", "_if") if values.mask else ("", "")
    address = values.address(store.buffer, store.indices[0], copy)
    values.writer.line(f"store_wide{suffix}({mask}{address}, {value});")


def _weave(values: CppValues, stores: tuple[Store, ...], copy: int) -> None:
    """Write interleaved stores as whole vectors."""
    if not stores:
        return
    lanes = [values.vector(store.value, copy) for store in stores]
    first = stores[0]
    values.prepare(first.indices[0], copy)
    values.writer.line(f"weave({values.address(first.buffer, first.indices[0], copy)}, {', '.join(lanes)});")


def _combine(values: CppValues, store: Store, copy: int, value: str, atomic: bool) -> None:
    """Combine lane by lane, in order, since lanes may have the same place."""
    assert values.vectors is not None
    how, offsets = _combined(store, atomic), values.offsets(store.indices[0], copy, store.buffer)
    kind = scalar_type(store.value.dtype)
    guard = f"if ({values.mask}[l]) " if values.mask else ""
    pointer = values.names.buffers[store.buffer]
    values.writer.line(
        f"for (int l = 0; l < {values.vectors.lanes}; ++l) {guard}{how}{pointer} + {offsets}[l], ({kind}){value}[l]);"
    )


def _combined(store: Store, atomic: bool) -> str:
    return f"atomic_{store.mode}(call, " if atomic else f"plain_{store.mode}("


def exclusive(store: Store, parallel: frozenset[Var]) -> bool:
    """Whether no two iterations of parallel loops store to the same element: offsets are digits of a number.

    {i, j} parallel: 64*i + j with j < 64   ->   True          ids[i]   ->   False
    {i} parallel: 64*i + ids[i, j] with ids < 64   ->   True: indices that are read are in range
    """
    digits = []
    for monomial, coefficient in terms(store.indices[0]):
        if not monomial:
            continue
        extent = _extent(monomial[0])
        if len(monomial) > 1 or not isinstance(extent, int):
            return False
        digits.append((abs(coefficient), extent, monomial[0]))
    digits.sort(key=lambda d: d[:2])
    reach = 0
    for coefficient, extent, _ in digits:
        if coefficient <= reach:
            return False
        reach += coefficient * (extent - 1)
    return parallel <= {atom for _, _, atom in digits}


def _extent(atom: Any) -> Any:
    """The number of values of a digit, which start at 0; None if it is unknown."""
    if isinstance(atom, Var):
        return atom.extent
    return atom.size if isinstance(atom, Loaded) else None
