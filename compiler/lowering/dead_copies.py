"""Copies of what nobody reads afterwards: the copy takes its place, so that writes to parts of a tensor stay such.

    a[i, j] = 0;  a[i, j + 2] = x[i, j]
    b[i, j] = a[i, j]                          ->      b[i, j] = 0;  b[i, j + 2] = x[i, j]
    b[i, j] = b's first two columns ...                b[i, j] = b's first two columns ...

Autograd's functional form copies a tensor for each write to a part of it. What one definition fills by itself is left
alone: it is computed where the copy is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...rewrites.switches import allowed
from ..ir.program import Buffer, Definition, Item, Program
from ..ir.value import Load
from ..schedule.dependences import effects
from .core import Renamed


def drop_dead_copies(program: Program) -> dict[str, str]:
    """Leave out whole copies of what is dead afterwards; changes the program.

    Returns:
        For each buffer that is gone, the one in whose memory its elements are now.
    """
    touched: dict[str, list[int]] = {}
    writers: dict[str, list[int]] = {}
    called: set[str] = set()
    for place, item in enumerate(program.items):
        found = effects(item)
        for name in found.reads | found.writes:
            touched.setdefault(name, []).append(place)
        for name in found.writes:
            writers.setdefault(name, []).append(place)
        if not isinstance(item, Definition):
            called |= found.reads | found.writes
    kept = {*program.outputs, *called, *(name for name, b in program.buffers.items() if b.kind != "made")}
    gone: dict[str, str] = {}
    dropped: set[int] = set()
    for place, item in enumerate(program.items):
        pair = copied_whole(item, program.buffers)
        if pair is None or pair[1] in kept or program.buffers[pair[0]].kind != "made":
            continue
        made, given = pair
        is_last, is_first = touched[given][-1] == place, touched[made][0] == place
        if is_last and is_first and len(writers.get(given, ())) > 1 and allowed("memory", made, _nodes(item)):
            gone[given] = made
            dropped.add(place)
    if gone:
        _rename(program, gone, dropped)
    return gone


def _rename(program: Program, gone: dict[str, str], dropped: set[int]) -> None:
    for name in reversed(gone):  # what a copy is copied to is copied later
        gone[name] = gone.get(gone[name], gone[name])
    kept = [item for place, item in enumerate(program.items) if place not in dropped]
    program.items[:] = map(Renamed(gone), kept)
    for name in gone:
        del program.buffers[name]


def _nodes(item: Item) -> tuple[str, ...]:
    return item.nodes if isinstance(item, Definition) else ()


def copied_whole(item: Item, buffers: Mapping[str, Buffer]) -> tuple[str, str] | None:
    """The buffers made and given of an item that does nothing but copy a whole one, all strides alike."""
    if not isinstance(item, Definition) or item.reductions or len(item.stores) != 1:
        return None
    (store,) = item.stores
    if not isinstance(store.value, Load) or store.mode is not None:
        return None
    made, given = (buffers[name] for name in (store.buffer, store.value.buffer))
    if _layout(made) != _layout(given) or tuple(loop.extent for loop in item.loops) != made.sizes:
        return None
    places = (store.indices, store.value.indices)
    return (made.name, given.name) if made is not given and all(_at_loops(p, item) for p in places) else None


def _layout(buffer: Buffer) -> tuple[Any, ...]:
    return buffer.sizes, buffer.strides, buffer.dtype, buffer.device, buffer.scalar


def _at_loops(indices: tuple[Any, ...], item: Definition) -> bool:
    """Whether each index is its loop's variable, or 0 where that is all it can be."""
    pairs = zip(indices, item.loops, strict=True)
    return all(at == loop.index() or (loop.extent == 1 and at == 0) for at, loop in pairs)
