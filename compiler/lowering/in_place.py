"""Writes to parts of inputs, in place: autograd's functional form copies a cache twice to write one row.

    new[i, j]     = cache[i, j]
    new[at[0], j] = row[j]                        cache[at[0], j] = row[j]
    y             = call(new)              ->     y = call(cache)
    cache[i, j]   = new[i, j]

This is legal if every read finds the right element: nothing reads old elements after a write, and only the input itself
outlives the program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...rewrites.compat import OpOverload, aliasing_arguments
from ..ir.program import Definition, Extern, Item, Program
from ..schedule.dependences import effects
from .core import Renamed
from .dead_copies import copied_whole


@dataclass(frozen=True)
class _Copy:
    """An item that only copies a whole buffer: its position in the program, and both buffers."""

    place: int
    made: str
    given: str


def write_in_place(program: Program) -> dict[str, str]:
    """Remove copies of inputs that are copied back, if that does not change results; changes the program.

    Returns:
        For each removed buffer, the input whose memory now holds its elements.
    """
    found = (_copy(place, item, program) for place, item in enumerate(program.items))
    copies = {copy.place: copy for copy in found if copy is not None}
    if not any(program.buffers[copy.made].kind == "input" for copy in copies.values()):
        return {}
    writers: dict[str, list[int]] = {}
    for place, item in enumerate(program.items):
        for name in effects(item).writes:
            writers.setdefault(name, []).append(place)
    gone: dict[str, str] = {}
    dropped: set[int] = set()
    for back in copies.values():
        if program.buffers[back.made].kind != "input" or writers[back.made] != [back.place]:
            continue
        chain = _chain(back, copies, writers)
        if chain and _InputVersions(program, [*chain, back]).share_memory():
            gone |= {copy.made: back.made for copy in chain}
            dropped |= {copy.place for copy in (*chain, back)}
    if not gone:
        return {}
    kept = [item for place, item in enumerate(program.items) if place not in dropped]
    program.items[:] = map(_InOther(gone), kept)
    for name in gone:
        del program.buffers[name]
    return gone


def _copy(place: int, item: Item, program: Program) -> _Copy | None:
    """The copy that an item is, with equal strides."""
    found = copied_whole(item, program.buffers)
    return None if found is None else _Copy(place, *found)


def _chain(back: _Copy, copies: dict[int, _Copy], writers: dict[str, list[int]]) -> list[_Copy]:
    """The copies that lead from an input to the value copied into it at the end, in order; empty if there are none.

    Each of them is the first to write its result.
    """
    chain: list[_Copy] = []
    name = back.given
    while name != back.made:
        first = copies.get(writers.get(name, [-1])[0])
        if first is None:
            return []
        chain.append(first)
        name = first.given
    return chain[::-1]


class _InputVersions:
    """Versions of an input: the input and copies of it, in order, each of which is written to in part.

    Args:
        program: the program.
        copies: the copies that create each version from the one before; the last one writes back to the input.
    """

    def __init__(self, program: Program, copies: list[_Copy]) -> None:
        self._program = program
        self._age = {name: number for number, name in enumerate([copy.given for copy in copies])}
        self._places = {copy.place: number for number, copy in enumerate(copies, 1)}
        self._count = len(copies)

    def share_memory(self) -> bool:
        """Whether one piece of memory can hold all versions: every access is to the newest one."""
        if not self._age.keys().isdisjoint([name for name in self._program.outputs if self._age.get(name)]):
            return False
        newest, is_back = 0, False
        for place, item in enumerate(self._program.items):
            if place in self._places:
                is_back = self._places[place] == self._count
                newest += 0 if is_back else 1
                if self._places[place] != newest + is_back:
                    return False
                continue
            one = effects(item)
            read, written = map(self._ages, (one.reads, one.writes))
            if is_back:
                read = [age or newest for age in read]
            if any(age != newest for age in (*read, *written)) or (written and is_back):
                return False
            if isinstance(item, Extern) and (written or (read and _may_alias(item))):
                return False
        return True

    def _ages(self, names: frozenset[str]) -> list[int]:
        return [self._age[name] for name in names if name in self._age]


def _may_alias(item: Extern) -> bool:
    """Whether the result of a call may share memory with its operands: templates return new memory."""
    target = item.node.target
    return bool(aliasing_arguments(target)) if isinstance(target, OpOverload) else not hasattr(target, "template")


class _InOther(Renamed):
    """Rewrites items to read and write other buffers, including calls."""

    def __call__(self, item: Item) -> Item:
        if isinstance(item, Definition):
            return super().__call__(item)
        return replace(item, reads=self._all(item.reads), writes=self._all(item.writes))

    def _all(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._names.get(name, name) for name in names))
