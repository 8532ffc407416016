"""Parts of a buffer that several definitions fill become one definition that chooses between them.

for i < 8, j < 32: t[i, j]      = -x[i, j + 32]         for i < 8, j < 64:
for i < 8, j < 32: t[i, j + 32] = x[i, j]         ->        t[i, j] = -x[i, j + 32] if j < 32 else x[i, j - 32]

Then it can be computed where it is read, as halves that rotary embeddings join. For machines where a choice costs
nothing to speak of; buffers that must exist are better filled part by part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..ir.index.index import Var, add, mul
from ..ir.program import Buffer, Definition, Extern, Item
from ..ir.value import Const, Guarded, Number, Op, Value, substitute
from .affine import variables_of
from .dependences import effects

_MOST = 4  # parts of one definition
_INT32 = 1 << 31


def join_parts(items: Sequence[Item], buffers: Mapping[str, Buffer], outputs: Iterable[str]) -> list[Item]:
    """Items with neighbours joined that fill one buffer of the program's own, which no call touches."""
    writers = Counter(name for item in items for name in effects(item).writes)
    kept = {*outputs, *(n for i in items if isinstance(i, Extern) for n in (*i.reads, *i.writes))}
    kept |= {name for name, buffer in buffers.items() if buffer.kind != "made"}
    found: list[Item] = []
    waiting: list[Definition] = []
    for item in [*items, None]:
        name = None if item is None else _filled(item, kept)
        if waiting and (name is None or name != waiting[0].stores[0].buffer):
            found += _joined(waiting, buffers, writers)
            waiting = []
        if name is not None and isinstance(item, Definition):
            waiting.append(item)
        elif item is not None:
            found.append(item)
    return found


def _filled(item: Item, kept: Collection[str]) -> str | None:
    """The one buffer that a pointwise definition writes and does not read."""
    if isinstance(item, Extern) or item.reductions or len(item.stores) != 1 or item.stores[0].mode is not None:
        return None
    name = item.stores[0].buffer
    return None if name in kept or name in effects(item).reads else name


@dataclass(frozen=True)
class _SlabPart:
    """A definition that fills a slab: element `start` to `end` of dim `dim`, all of the other dims."""

    item: Definition
    dim: int
    start: Any
    end: Any
    variables: tuple[Var | None, ...]


def _joined(items: Sequence[Definition], buffers: Mapping[str, Buffer], writers: Mapping[str, int]) -> Sequence[Item]:
    buffer = buffers[items[0].stores[0].buffer]
    if not 2 <= len(items) <= _MOST or writers[buffer.name] != len(items):
        return items
    parts = [_part(item, buffer) for item in items]
    chosen = _in_order([part for part in parts if part is not None])
    if len(chosen) != len(items) or len({part.dim for part in chosen}) > 1:
        return items
    dim = chosen[0].dim
    return items if chosen[-1].end != buffer.sizes[dim] else [_choice(chosen, dim, buffer, items[-1])]


def _in_order(parts: Sequence[_SlabPart]) -> list[_SlabPart]:
    """The parts from the first element on, each beginning where the one before ends, as far as they do."""
    left, found, end = list(parts), [], 0
    while (part := next((part for part in left if part.start == end), None)) is not None:
        left.remove(part)
        found.append(part)
        end = part.end
    return found


def _part(item: Definition, buffer: Buffer) -> _SlabPart | None:
    found: list[tuple[int, Any, Any]] = []
    variables: list[Var | None] = []
    for dim, (index, size) in enumerate(zip(item.stores[0].indices, buffer.sizes, strict=True)):
        place = _place(index, item.loops)
        if place is None:
            return None
        var, start = place
        variables.append(var)
        length = 1 if var is None else var.extent
        if (start, length) != (0, size):
            found.append((dim, start, add(start, length)))
    taken = {v for v in variables if v is not None}
    if len(found) != 1 or len(taken) != sum(v is not None for v in variables):
        return None
    if any(v.extent != 1 and v not in taken for v in item.loops):
        return None
    return _SlabPart(item, *found[0], tuple(variables))


def _place(index: Any, loops: Sequence[Var]) -> tuple[Var | None, Any] | None:
    """An index as a loop's variable plus a number that no loop changes; None where it is not such."""
    if not variables_of(index):
        return None, index
    for var in loops:
        start = add(index, mul(var.index(), -1))
        if not variables_of(start):
            return var, start
    return None


def _choice(parts: Sequence[_SlabPart], dim: int, buffer: Buffer, last: Definition) -> Definition:
    """The definition over all of the buffer."""
    loops = tuple(Var(f"c{d}", size) for d, size in enumerate(buffer.sizes))
    position = loops[dim].index()
    value: Value | None = None
    for part in reversed(parts):
        by: dict[Var, Any] = {v: loops[d].index() for d, v in enumerate(part.variables) if v is not None}
        if (own := part.variables[dim]) is not None:
            by[own] = add(position, mul(part.start, -1))
        by = {**{v: 0 for v in part.item.loops if v.extent == 1}, **by}
        mine = substitute(part.item.stores[0].value, by)
        value = mine if value is None else Guarded(_below(position, part.end), mine, value, mine.dtype)
    assert value is not None, parts
    nodes = tuple(dict.fromkeys(n for part in parts for n in part.item.nodes))
    store = replace(last.stores[0], indices=tuple(v.index() for v in loops), value=value)
    return replace(last, loops=loops, stores=(store,), nodes=nodes)


def _below(position: Any, end: Any) -> Value:
    if not isinstance(end, int):
        return Op("lt", (Number(position, torch.int64), Number(end, torch.int64)), torch.bool)
    kind = torch.int32 if end < _INT32 else torch.int64
    return Op("lt", (Number(position, kind), Const(end, kind)), torch.bool)


__all__ = ["join_parts"]
