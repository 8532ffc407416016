"""The parts of a kernel that share a launch.

The largest come first, so that small ones fill up what is idle at the end. A computation that has programs enough to
keep a GPU busy has launches of its own: code for others would take registers and warps from it. Those that only move
elements take few of either, and share launches with each other (the pieces of a `cat`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...ir.accesses import loaded_buffers, statements, stored_buffers
from ...ir.kernel import Assign, Kernel, Loop
from ...ir.value import Load, Op, Value

_ARGUMENTS = 480  # of a launch: parameters have 4 KB on devices and drivers of all ages, each takes 8 bytes
_COMPUTATIONS = 8  # of a launch: each is code, and registers, that all its programs carry


@dataclass(frozen=True)
class _Alike:
    """Parts that are one computation, by their numbers, those with most programs first.

    Args:
        programs: of all of them.
        names: the buffers that they access.
        moves: whether they only move elements.
    """

    parts: tuple[int, ...]
    programs: int
    names: frozenset[str]
    moves: bool


def shared(parts: Mapping[int, Kernel], groups: Sequence[Sequence[int]], busy: int) -> tuple[tuple[int, ...], ...]:
    """The numbers of the parts in each launch.

    Args:
        parts: by number, with one launch each.
        groups: the numbers of parts that are one computation.
        busy: the number of programs that keep the GPU busy.
    """
    made = [piece for group in groups for piece in _within({number: parts[number] for number in group})]
    packed = _packed(sorted(made, key=lambda alike: -alike.programs), busy)
    return tuple(tuple(number for alike in launch for number in alike.parts) for launch in packed)


def _programs(part: Kernel) -> int:
    (launch,) = part.launches
    return int(launch.programs)


def _names(part: Kernel) -> frozenset[str]:
    used = loaded_buffers(part.body) | stored_buffers(part.body)
    return frozenset(p.buffer.name for p in part.params if p.buffer.name in used)


def _within(group: Mapping[int, Kernel]) -> list[_Alike]:
    """Parts that are alike, as many at a time as have at most so many pointers, at least one."""
    found: list[list[int]] = []
    names = frozenset[str]()
    for number in sorted(group, key=lambda number: -_programs(group[number])):
        names |= _names(group[number])
        if not found or len(names) > _ARGUMENTS:
            found.append([])
            names = _names(group[number])
        found[-1].append(number)
    moves = all(map(_only_moves, list(group.values())[:1]))
    return [
        _Alike(
            tuple(numbers), sum(_programs(group[k]) for k in numbers),
            frozenset[str]().union(*(_names(group[k]) for k in numbers)), moves,
        )
        for numbers in found
    ]  # fmt: skip


def _only_moves(part: Kernel) -> bool:
    return all(
        isinstance(s, Loop) or (isinstance(s, Assign) and _is_move(s.store.value)) for s in statements(part.body)
    )


def _is_move(value: Value) -> bool:
    """Whether a value is an element of memory, converted at most."""
    while isinstance(value, Op) and value.name == "cast":
        (value,) = value.args
    return isinstance(value, Load)


def _packed(every: Sequence[_Alike], busy: int) -> list[list[_Alike]]:
    """Computations by launch: those with more than so many programs alone, others together as far as there is room.

    Computations of many programs that only move elements are together, and those of few programs with them.
    """
    found: list[list[_Alike]] = []
    rooms: dict[bool, list[_Alike]] = {}  # by whether all only move elements
    for one in every:
        many = one.programs > busy
        if many and not one.moves:
            found.append([one])
            continue
        kind = one.moves and (many or True in rooms)
        room = rooms.get(kind)
        names = one.names.union(*(alike.names for alike in room or ()))
        if room is None or len(room) == _COMPUTATIONS or len(names) > _ARGUMENTS:
            room = rooms[kind] = []
            found.append(room)
        room.append(one)
    return found


__all__ = ["shared"]
