"""Stores integers between kernels in as few bytes as hold them, where their form bounds them.

    p[i, j] = clamp(i - j + 512, 0, 1023)          int64            int16
    y[h, i, j] = x[h, i, p[i, j]]                  in range: ?      clamp(p[i, j], 0, 1023) is, for sure

Tables of relative positions are read once for each head and layer. On a GPU whose caches hold them, the bytes that are
read count rather than the bytes in memory. The clamp changes no value: it tells readers a bound that memory does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..ir.index.ranges import value_bounds
from ..ir.program import Buffer, Definition, Extern, Item, Store
from ..ir.simplify import Simplifier
from ..ir.value import Const, Load, Op, Rewriter, Value
from .dependences import loads
from .few_folds import without_constants
from .flat_access import rewritten

_NARROWER = (torch.int16, torch.int32)
_WIDE = (torch.int64, torch.int32)


def narrow_integers(
    items: Sequence[Item], buffers: Mapping[str, Buffer], outputs: Iterable[str]
) -> tuple[list[Item], dict[str, Buffer]]:
    """Definitions and buffers in which integers of known range take fewer bytes.

    Results of the program, and buffers that calls read or write, stay as they are.
    """
    kept = {*outputs, *(name for item in items if isinstance(item, Extern) for name in (*item.reads, *item.writes))}
    stores: dict[str, list[Store]] = {}
    for item in items:
        for store in item.stores if isinstance(item, Definition) else ():
            stores.setdefault(store.buffer, []).append(store)
    found = {
        name: held
        for name, into in stores.items()
        if name not in kept and (held := _holding(buffers[name], into)) is not None
    }
    if not found:
        return list(items), dict(buffers)
    changed = {name: replace(buffers[name], dtype=held.dtype) for name, held in found.items()}
    return [_stored(item, found) for item in items], {**buffers, **changed}


@dataclass(frozen=True)
class _Held:
    """The dtype of a buffer, and the least and the greatest number in it."""

    dtype: torch.dtype
    low: int
    high: int

    def loaded(self, value: Load) -> Value:
        """An element in the dtype of a load of the wider buffer."""
        own: Value = Load(value.buffer, value.indices, self.dtype)
        for name, end in (("maximum", self.low), ("minimum", self.high)):
            own = Op(name, (own, Const(end, self.dtype)), self.dtype)
        return Op("cast", (own,), value.dtype)


def _holding(buffer: Buffer, stores: Sequence[Store]) -> _Held | None:
    """The narrowest dtype that holds all that is stored to a buffer; None where that is its own, or not known."""
    if buffer.kind != "made" or buffer.scalar or buffer.dtype not in _WIDE:
        return None
    ends = [end for store in stores for end in value_bounds(store.value)]
    if any(store.mode is not None for store in stores) or not all(isinstance(end, int) for end in ends):
        return None
    low, high = min(ends), max(ends)
    for dtype in _NARROWER:
        limits = torch.iinfo(dtype)
        if dtype.itemsize < buffer.dtype.itemsize and limits.min <= low and high <= limits.max:
            return _Held(dtype, low, high)
    return None


def _stored(item: Item, narrower: Mapping[str, _Held]) -> Item:
    """An item that stores to these buffers, and loads from them, in their narrower dtypes."""
    if not isinstance(item, Definition):
        return item

    def loaded(value: Value) -> Value | None:
        held = narrower.get(value.buffer) if isinstance(value, Load) else None
        return held.loaded(value) if held else None  # type: ignore[arg-type]

    touched = {store.buffer for store in item.stores} | {load.buffer for load in loads(item)}
    if not touched & narrower.keys():
        return item
    item = rewritten(item, Rewriter(loaded))
    stores = tuple(
        replace(s, value=Op("cast", (s.value,), narrower[s.buffer].dtype)) if s.buffer in narrower else s
        for s in item.stores
    )
    return without_constants(rewritten(replace(item, stores=stores), Simplifier()))


__all__ = ["narrow_integers"]
