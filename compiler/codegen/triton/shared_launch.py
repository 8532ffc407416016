"""Independent kernels in one launch: programs are dealt out by ranges of their numbers.

k0 (2 programs), k1 (1), k2 (3) of one computation, k3 (1) of another      ->

    program = tl.program_id(0)
    if program < 6:                                      the code of a computation stands once,
        if program < 3: a, n, first = p2_ptr, 3000, 0    and what differs is chosen by a tree of comparisons:
        else: ...                                        pointers, the number of iterations, the first program
        KERNEL_part0(program - first, a, n)
    else:
        KERNEL_part1(program - 6, p3_ptr)

The kernel knows which parts share a launch. Those that need memory of their own have launches of their own.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.canonical import COUNT, beginnings
from ...ir.kernel import Kernel
from ...ir.program import Buffer
from ...schedule.fast_math import with_fast_functions
from ...schedule.launches.kernel_launches import WHOLE, alike, computation
from ..kernel_call import evaluate
from .kernel_text import LaunchText, launch_texts
from .writer import TritonWriter


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
        parts: those of one launch.
        by_number: all of them, by their numbers in the kernel.
    """

    text: LaunchText
    counted: bool
    whole: bool
    parts: tuple[_LaunchPart, ...]
    by_number: Mapping[int, _LaunchPart]

    @property
    def programs(self) -> int:
        return sum(part.programs for part in self.parts)

    @property
    def names(self) -> set[str]:
        return {part.buffers[int(name[1:])] for part in self.parts for name in self.text.params}


def shared_launches(kernel: Kernel) -> list[LaunchText]:
    """The launches of a kernel of independent parts, which knows which of them share one.

    Raises:
        UnsupportedDtypeError, UnsupportedStoreError: Triton cannot compute it.
    """
    together = {number for shared in kernel.shared for number in shared}
    groups = alike(kernel.parts)
    made = [
        _computation(kernel, number, found) if together >= {k for k, _ in found} else None
        for number, found in enumerate(groups)
    ]
    group_of = {k: number for number, found in enumerate(groups) for k, _ in found}
    buffers = {p.buffer.name: p.buffer for p in kernel.params}
    launches = [computations for shared in kernel.shared if (computations := _of_launch(shared, group_of, made))]
    alone = [k for number, found in enumerate(groups) if made[number] is None for k, _ in found]
    own = [text for k in alone for text in _own_launches(kernel, kernel.parts[k])]
    return [
        *(_launch(f"{kernel.name}_{k}", computations, buffers) for k, computations in enumerate(launches)),
        *(_renamed(one, f"{kernel.name}_own{k}") for k, one in enumerate(own)),
    ]


def _of_launch(
    numbers: Sequence[int], group_of: Mapping[int, int], made: Sequence[_Computation | None]
) -> list[_Computation]:
    """The computations of one launch, each with its parts there."""
    parts: dict[int, list[int]] = {}
    for k in numbers:
        parts.setdefault(group_of[k], []).append(k)
    found = ((made[group], own) for group, own in parts.items())
    return [replace(one, parts=tuple(one.by_number[k] for k in own)) for one, own in found if one is not None]


def _computation(kernel: Kernel, group: int, found: Sequence[tuple[int, int | None]]) -> _Computation | None:
    """The computation of parts that differ in names and iterations only; None where each needs memory of its own."""
    counts = [count for _, count in found]
    parts = [(kernel.parts[k], count) for k, count in found]
    (text,) = launch_texts(with_fast_functions(computation(parts)), [f"{kernel.name}_part{group}"], dealt=True)
    if text.workspaces:
        return None
    multiple = all(count is not None and count % WHOLE == 0 for count in counts)
    by_number = {
        k: _part(part, count or 0, evaluate(text.programs, {COUNT: count or 0}))
        for (k, _), (part, count) in zip(found, parts, strict=True)
    }
    return _Computation(text, len(set(counts)) > 1, multiple, tuple(by_number.values()), by_number)


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
