"""Gives kernels for a GPU their launches: the last step of a schedule.

k0_relu: for k < 4096 parallel: ...     ->     k0_relu: launch of 256 (k), 8 warps
                                                   for k < 4096 parallel: ...

Equal kernels (names apart) are planned once. Parts of one kernel that are the same computation have the same blocks:
their programs run side by side, so that there are enough of them for all parts together. `sharing.py` says which of
them share a launch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from ...ir.accesses import nests
from ...ir.canonical import beginnings, canonical, sized
from ...ir.kernel import Kernel, Loop
from ...ir.launch import Launch
from ...ir.program import Extern
from ..fast_math import with_fast_functions
from .blocks import PROGRAMS_EACH
from .plan import launches
from .sharing import shared

WHOLE = 16  # iterations whose multiples leave no access half outside: a vector of 16 bytes has at most 16 elements


def with_launches(steps: Iterable[Kernel | Extern], processors: int) -> tuple[Kernel | Extern, ...]:
    """Steps whose kernels know their launches.

    Args:
        steps: of a schedule, in order; kernels of the host among those for a GPU stay as they are.
        processors: the multiprocessors of the GPU.
    """
    steps = tuple(steps)
    devices = {device for step in steps if isinstance(step, Kernel) for device in _devices(step)}
    home = {"cpu"} if len(devices) > 1 else set()
    planner = _Planner(processors)
    return tuple(
        planner.kernel(step) if isinstance(step, Kernel) and _devices(step) != home else step for step in steps
    )


def planned(kernel: Kernel, processors: int) -> Kernel:
    """A kernel for a GPU with its launches."""
    return _Planner(processors).kernel(kernel)


def _devices(kernel: Kernel) -> set[str]:
    return {p.buffer.device.type for p in kernel.params if not p.buffer.scalar}


def alike(parts: Sequence[Kernel]) -> list[list[tuple[int, int | None]]]:
    """The numbers of parts by computation, each with the number of its iterations; None if that is part of it."""
    groups: dict[Hashable, list[tuple[int, int | None]]] = {}
    for number, part in enumerate(parts):
        key, count = sized(part, moved=beginnings(part))
        groups.setdefault((key, count is not None and count % WHOLE == 0), []).append((number, count))
    return list(groups.values())


def computation(found: Sequence[tuple[Kernel, int | None]]) -> Kernel:
    """The computation of parts that are alike, of the most iterations that all have where the numbers differ."""
    first, counts = found[0][0], [count for _, count in found]
    moved = beginnings(first)
    if len(set(counts)) == 1:
        return canonical(first, moved)
    # Programs are to be enough for all parts together; where one program has all of a loop, it is the longest.
    side_by_side = any(isinstance(s, Loop) and s.parallel for s in first.body)
    most = sum(count or 0 for count in counts) if side_by_side else max(count or 0 for count in counts)
    return sized(first, most, moved)[0]


class _Planner:
    def __init__(self, processors: int) -> None:
        self._processors = processors
        self._known: dict[Kernel, tuple[Launch, ...]] = {}

    def kernel(self, kernel: Kernel) -> Kernel:
        """The kernel with its launches, or those of its parts."""
        if not kernel.parts:
            return replace(kernel, launches=self._launches(canonical(kernel)))
        made: dict[int, Kernel] = {}
        together: list[list[int]] = []
        for found in alike(kernel.parts):
            common = self._launches(computation([(kernel.parts[k], count) for k, count in found]))
            numbers = [k for k, _ in found]
            for k in numbers:
                part = kernel.parts[k]
                own = _over(common, part) if len(common) == 1 else self._launches(canonical(part))
                made[k] = replace(part, launches=own)
            together += [numbers] if len(common) == 1 else []
        parts = tuple(made[k] for k in range(len(kernel.parts)))
        return replace(kernel, parts=parts, shared=shared(made, together, PROGRAMS_EACH * self._processors))

    def _launches(self, kernel: Kernel) -> tuple[Launch, ...]:
        if kernel not in self._known:
            bytes_of = {p.buffer.name: p.buffer.dtype.itemsize for p in kernel.params}
            body = with_fast_functions(kernel).body
            self._known[kernel] = launches(body, bytes_of, self._processors, dict(kernel.examples))
        return self._known[kernel]


def _over(common: Sequence[Launch], part: Kernel) -> tuple[Launch, ...]:
    return tuple(launch.over(loops) for launch, (loops, _) in zip(common, nests(part.body), strict=True))


__all__ = ["WHOLE", "alike", "computation", "planned", "with_launches"]
