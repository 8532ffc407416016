"""Independent kernels in one launch: programs are dealt out by ranges of their numbers.

k0 (2 programs), k1 (1), k2 (3) of one computation, k3 (1) of another      ->

    program = tl.program_id(0)
    if program < 6:                                      the code of a computation stands once,
        if program < 3: a, n, first = p2_ptr, 3000, 0    and what differs is chosen by a tree of comparisons:
        else: ...                                        pointers, the number of iterations, the first program
        KERNEL_part0(program - first, a, n)
    else:
        KERNEL_part1(program - 6, p3_ptr)

The largest come first, so that small ones fill up what is idle at the end. A computation that has programs enough to
keep a GPU busy has launches of its own: code for others would take registers and warps from it. Those that only move
elements take few of either, and share launches with each other (the pieces of a `cat`).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.accesses import statements
from ...ir.canonical import COUNT, beginnings
from ...ir.kernel import Assign, Kernel, Loop
from ...ir.program import Buffer
from ...ir.value import Load, Op, Value
from ...schedule.fast_math import with_fast_functions
from ...schedule.launches.blocks import PROGRAMS_EACH
from ...schedule.launches.kernel_launches import WHOLE, alike, computation
from ..kernel_call import evaluate
from .device import processors_of
from .kernel_text import LaunchText, launch_texts
from .writer import TritonWriter

_ARGUMENTS = 480  # of a launch: parameters have 4 KB on devices and drivers of all ages, each takes 8 bytes
_COMPUTATIONS = 8  # of a launch: each is code, and registers, that all its programs carry


@dataclass(frozen=True)
class _LaunchPart:
    """One kernel of those in a launch.

    Args:
        buffers: in the order of the computation's params.
        starts: the elements that these begin at.
        count: iterations; 0 where the computation has their number.
        programs: how many it takes.
    """

    buffers: tuple[str, ...]
    starts: tuple[int, ...]
    count: int
    programs: int

    def pointer(self, param: str, names: Mapping[str, str]) -> str:
        """The text of the argument for a param of the computation."""
        k = int(param[1:])
        name = names[self.buffers[k]]
        return f"{name} + {self.starts[k]}" if self.starts[k] else name


@dataclass(frozen=True)
class _Computation:
    """The computation of several parts: a function of the program's number, pointers and the number of iterations.

    Args:
        text: of the function, with params `p0`, `p1`, ...
        counted: whether it takes the number of iterations, and whether that is a multiple of `WHOLE`.
        parts: those with most programs first.
        moves: whether it only moves elements.
    """

    text: LaunchText
    counted: bool
    whole: bool
    parts: tuple[_LaunchPart, ...]
    moves: bool

    @property
    def programs(self) -> int:
        return sum(part.programs for part in self.parts)

    @property
    def names(self) -> set[str]:
        return {part.buffers[int(name[1:])] for part in self.parts for name in self.text.params}


def shared_launches(kernel: Kernel) -> list[LaunchText]:
    """The launches of a kernel of independent parts.

    Raises:
        UnsupportedDtypeError, UnsupportedStoreError: Triton cannot compute it.
    """
    made: list[_Computation] = []
    alone: list[LaunchText] = []
    for number, found in enumerate(alike(kernel.parts)):
        one = _computation(kernel.name, number, found)
        if one is None:
            alone += [text for part, _ in found for text in _own_launches(kernel, part)]
        else:
            made += _within(one, _ARGUMENTS)
    packed = _packed(sorted(made, key=lambda c: -c.programs), PROGRAMS_EACH * processors_of(kernel))
    buffers = {p.buffer.name: p.buffer for p in kernel.params}
    shared = [_launch(f"{kernel.name}_{k}", computations, buffers) for k, computations in enumerate(packed)]
    return [*shared, *(_renamed(one, f"{kernel.name}_own{k}") for k, one in enumerate(alone))]


def _computation(name: str, number: int, found: Sequence[tuple[Kernel, int | None]]) -> _Computation | None:
    """The computation of parts that differ in names and iterations only; None where each needs its own launches."""
    counts = [count for _, count in found]
    counted = len(set(counts)) > 1
    chosen = with_fast_functions(computation(found))
    if len(chosen.launches) != 1:
        return None
    (text,) = launch_texts(chosen, [f"{name}_part{number}"], dealt=True)
    if text.workspaces:
        return None
    parts = [_part(part, count or 0, evaluate(text.programs, {COUNT: count or 0})) for part, count in found]
    multiple = all(count is not None and count % WHOLE == 0 for count in counts)
    ordered = tuple(sorted(parts, key=lambda part: -part.programs))
    moves = all(
        isinstance(s, Loop) or (isinstance(s, Assign) and _is_move(s.store.value)) for s in statements(chosen.body)
    )
    return _Computation(text, counted, multiple, ordered, moves)


def _is_move(value: Value) -> bool:
    """Whether a value is an element of memory, converted at most."""
    while isinstance(value, Op) and value.name == "cast":
        (value,) = value.args
    return isinstance(value, Load)


def _part(kernel: Kernel, count: int, programs: int) -> _LaunchPart:
    names, moved = tuple(p.buffer.name for p in kernel.params), beginnings(kernel)
    return _LaunchPart(names, tuple(moved.get(name, 0) for name in names), count, programs)


def _own_launches(kernel: Kernel, part: Kernel) -> list[LaunchText]:
    part = with_fast_functions(part)
    return list(launch_texts(part, [kernel.name] * len(part.launches)))


def _renamed(launch: LaunchText, name: str) -> LaunchText:
    text = launch.text.replace(f"def {launch.name}(", f"def {name}(")
    return LaunchText(
        name, text, launch.params, launch.sizes, launch.workspaces, launch.signature, launch.programs, launch.warps
    )


def _within(whole: _Computation, most: int) -> list[_Computation]:
    """The computation for as many parts at a time as have at most so many pointers, at least one."""
    groups: list[list[_LaunchPart]] = []
    names: set[str] = set()
    for part in whole.parts:
        more = {part.buffers[int(name[1:])] for name in whole.text.params}
        if not groups or len(names | more) > most:
            groups.append([])
            names = set()
        groups[-1].append(part)
        names |= more
    return [replace(whole, parts=tuple(parts)) for parts in groups]


def _packed(computations: Sequence[_Computation], most: int) -> list[list[_Computation]]:
    """Computations by launch: those with more than so many programs alone, others together as far as there is room.

    Computations of many programs that only move elements are together, and those of few programs with them.
    """
    found: list[list[_Computation]] = []
    rooms: dict[bool, list[_Computation]] = {}  # by whether all only move elements
    for one in computations:
        many = one.programs > most
        if many and not one.moves:
            found.append([one])
            continue
        kind = one.moves and (many or True in rooms)
        room = rooms.get(kind)
        names = set[str]().union(*(c.names for c in room or ()), one.names)
        if room is None or len(room) == _COMPUTATIONS or len(names) > _ARGUMENTS:
            room = rooms[kind] = []
            found.append(room)
        room.append(one)
    return found


# -- text -------------------------------------------------------------------------------------------------------------


def _launch(name: str, computations: Sequence[_Computation], buffers: dict[str, Buffer]) -> LaunchText:
    """One launch for all parts of some computations."""
    used = set[str]().union(*(c.names for c in computations))
    params = [buffer for buffer in buffers.values() if buffer.name in used]
    kinds = {
        part.buffers[int(p[1:])]: c.text.signature[argument]
        for c in computations for p, argument in zip(c.text.params, c.text.signature, strict=False) for part in c.parts
    }  # fmt: skip
    names = {buffer.name: buffer.name if buffer.scalar else f"{buffer.name}_ptr" for buffer in params}
    out = TritonWriter()
    out.line("program = tl.program_id(0)")
    starts = _starts(0, [c.programs for c in computations])
    _choose(out, starts, lambda k: _call(out, f"part{k}", computations[k], starts[k], names))
    head = f"@triton.jit\ndef {name}({', '.join(names.values())}):"
    functions = dict.fromkeys(c.text.text for c in computations)
    text = "\n\n".join([*functions, "\n".join([head, *out.lines]) + "\n"])
    return LaunchText(
        name, text, tuple(names), (), (), {argument: kinds[b] for b, argument in names.items()}, starts[-1],
        max(c.text.warps for c in computations),
    )  # fmt: skip


def _starts(first: int, programs: Sequence[int]) -> list[int]:
    """The first program of each, and the first after all."""
    return list(itertools.accumulate(programs, initial=first))


def _choose(out: TritonWriter, starts: Sequence[int], write: Callable[[int], None]) -> None:
    """Write each in the branch of its programs, by a tree in which those with many programs are found early."""

    def split(low: int, high: int) -> None:
        if high - low == 1:
            write(low)
            return
        half = bisect.bisect_left(starts, (starts[low] + starts[high]) / 2)
        middle = min(max(half, low + 1), high - 1)
        with out.block(f"if program < {starts[middle]}"):
            split(low, middle)
        with out.block("else"):
            split(middle, high)

    split(0, len(starts) - 1)


def _call(out: TritonWriter, name: str, c: _Computation, first: int, names: Mapping[str, str]) -> None:
    """Write the choice of a part and the call of its computation."""
    starts = _starts(first, [part.programs for part in c.parts])
    given = [
        {"first": f"{start}"} | {p: part.pointer(p, names) for p in c.text.params}
        | ({COUNT: f"{part.count}"} if c.counted else {})
        for start, part in zip(starts, c.parts, strict=False)
    ]  # fmt: skip
    differing = [key for key in given[0] if len({one[key] for one in given}) > 1]

    def write(k: int) -> None:
        for key in differing:
            out.line(f"{name}_{key} = {given[k][key]}")

    if differing:
        _choose(out, starts, write)
    values = {key: f"{name}_{key}" if key in differing else text for key, text in given[0].items()}
    if c.counted and c.whole:
        values[COUNT] = f"tl.multiple_of({values[COUNT]}, {WHOLE})"
    at = "program" if values["first"] == "0" else f"program - {values.pop('first')}"
    out.line(f"{c.text.name}({', '.join([at, *(text for key, text in values.items() if key != 'first')])})")
