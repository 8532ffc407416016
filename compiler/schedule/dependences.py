"""Dependences between items of a program, by buffer, and the items that nobody needs.

t = f(x)          reader after writer (RAW), writer after reader (WAR), writer after writer (WAW);
x[...] = g(t)     program order is the order of effects; calls with effects of their own keep theirs
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..ir.index.index import Index, Late, Loaded, Var, atoms
from ..ir.index.ranges import in_range
from ..ir.program import Buffer, Definition, Extern, Item, Program
from ..ir.value import Load, Value, indices_of, walk


@dataclass(frozen=True)
class ItemEffects:
    """The buffers that an item reads and writes."""

    reads: frozenset[str]
    writes: frozenset[str]
    ordered: bool = False  # keeps its place among the others that are

    def conflicts(self, other: ItemEffects) -> bool:
        """Whether the order of the two matters."""
        if self.ordered and other.ordered:
            return True
        return bool(self.writes & other.reads or self.reads & other.writes or self.writes & other.writes)


def effects(item: Item) -> ItemEffects:
    """The buffers that `item` reads and writes."""
    if isinstance(item, Extern):
        return ItemEffects(frozenset(item.reads), frozenset(item.writes), not item.pure)
    writes = frozenset(s.buffer for s in item.stores)
    combined = {s.buffer for s in item.stores if s.mode is not None}
    return ItemEffects(frozenset(v.buffer for v in loads(item)) | combined | tokens(item), writes)


def roots(item: Definition) -> list[Value]:
    """All values of a definition, those inside indices of stores included."""
    found = [v for r in item.reductions for v in r.values]
    for store in item.stores:
        found += [*values_in(store.indices), store.value]
    return found


def values_in(indices: Iterable[Any]) -> Iterator[Value]:
    """The values that indices read from memory."""
    return (a.value for i in indices if isinstance(i, Index) for a in atoms(i) if isinstance(a, Loaded))


@lru_cache(maxsize=1 << 12)
def _met(item: Definition) -> tuple[Value, ...]:
    return tuple(walk(roots(item)))


@lru_cache(maxsize=1 << 12)
def loads(item: Definition) -> tuple[Load, ...]:
    """Every distinct load of a definition."""
    return tuple(v for v in _met(item) if isinstance(v, Load))


@lru_cache(maxsize=1 << 12)
def checked(item: Definition) -> frozenset[Loaded]:
    """The indices of a definition that raise an error where they are out of range."""
    numbers = [i for store in item.stores for i in store.indices] + [i for v in _met(item) for i in indices_of(v)]
    found = {a for n in numbers if isinstance(n, Index) for a in atoms(n) if isinstance(a, Loaded)}
    return frozenset(a for a in found if not in_range(a))


@lru_cache(maxsize=1 << 12)
def tokens(item: Definition) -> frozenset[str]:
    """The tokens of the numbers in a definition that calls make known when they run."""
    numbers = [v.extent for v in (*item.loops, *item.reduced)]
    numbers += [i for store in item.stores for i in store.indices]
    numbers += [i for v in _met(item) for i in indices_of(v)]
    return frozenset(name for n in numbers if isinstance(n, Index) for name in tokens_of(n))


@lru_cache(maxsize=1 << 12)
def tokens_of(number: Index) -> tuple[str, ...]:
    """The tokens of such numbers in an index, without those in values that the index reads from memory."""
    found: list[str] = []
    for atom in atoms(number):
        if isinstance(atom, Late):
            found += atom.tokens
        elif isinstance(atom, (Loaded, Var)):
            end = atom.size if isinstance(atom, Loaded) else atom.extent
            found += tokens_of(end) if isinstance(end, Index) else ()
    return tuple(dict.fromkeys(found))


def tokens_of_memory(buffer: Buffer) -> frozenset[str]:
    """The tokens of the sizes and strides with which a buffer is allocated."""
    numbers = (*buffer.sizes, *buffer.strides)
    return frozenset(name for n in numbers if isinstance(n, Index) for name in tokens_of(n))


def live(program: Program) -> list[Item]:
    """The items that something depends on: outputs, memory that is not the program's own, calls with effects."""
    wanted = {*program.outputs, *(name for name, b in program.buffers.items() if b.kind != "made")}
    kept: list[Item] = []
    for item in reversed(program.items):
        found = effects(item)
        if found.ordered or found.writes & wanted or (isinstance(item, Extern) and not item.writes):
            wanted |= found.reads
            kept.append(item)
    return kept[::-1]


def order_of(all_effects: Sequence[ItemEffects]) -> list[set[int]]:
    """For each item the items that must come before it: enough for all others to follow from them."""
    found: list[set[int]] = []
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    last_ordered: int | None = None
    for at, item in enumerate(all_effects):
        before = {writer[name] for name in item.reads | item.writes if name in writer}
        before |= {r for name in item.writes for r in readers.get(name, ())}
        if item.ordered:
            before |= {last_ordered} if last_ordered is not None else set()
            last_ordered = at
        for name in item.reads:
            readers.setdefault(name, []).append(at)
        for name in item.writes:
            writer[name], readers[name] = at, []
        found.append(before - {at})
    return found
