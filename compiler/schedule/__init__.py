"""Scheduling: a loop program becomes kernels and calls in an order that runs.

    Program -> dependences (dead code) -> inline -> flat -> members -> fusion (legality, profit)
            -> tree (shared loops) -> contract (scratch) -> kernels -> check

`schedule` is the one entry. What it decided and why stands in the fusion log; `check_schedule` proves the result
independently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.kernel import Kernel
from ..ir.program import Buffer, Definition, Extern, Item, Program
from .check import Finding, check_schedule
from .dependences import effects, live
from .empty import without_empty_work
from .flat import flatten
from .fusion import Fuser, Step
from .inlining import inline
from .inplace import overwrites
from .kernels import kernel_of
from .legality import Refusal, can_fuse
from .log import FusionLog
from .members import Group
from .pack import packed
from .profit import score_fusion, touched


@dataclass(frozen=True)
class Schedule:
    """A scheduled program.

    Args:
        steps: kernels and calls, in the order to run.
        buffers: the buffers made that are real, by name, as the program has them: what must be allocated. The others
            became scratch or vanished.
        log: what fusion considered.
    """

    steps: tuple[Kernel | Extern, ...]
    buffers: Mapping[str, Buffer]
    log: FusionLog

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The steps that are kernels."""
        return tuple(step for step in self.steps if isinstance(step, Kernel))


def schedule(program: Program, *, fuse: bool = True) -> Schedule:
    """Schedule a program.

    Kernels see their buffers flat: each param has one dim of stride 1, and loads and stores have one index, the
    element's offset. Numbers passed by value have no index.

    Args:
        program: what to run; not changed.
        fuse: False keeps one kernel a definition, for bisecting.
    """
    items = [without_empty_work(item) for item in live(program)]
    inlined: list[tuple[str, str]] = []
    if fuse:
        items, inlined = inline(items, program.buffers, program.outputs)
    steps, log = _fused(program, items, fuse)
    log.inlined.extend(inlined)
    made = _kernels(steps, program)
    return Schedule(made, _real(made, program.buffers), log)


def _fused(program: Program, items: list[Item], fuse: bool) -> tuple[list[Step], FusionLog]:
    flat = [flatten(i, program.buffers) if isinstance(i, Definition) else i for i in items]
    kept = {*program.outputs, *(name for name, b in program.buffers.items() if b.kind != "made")}
    kept |= {name for i in items if isinstance(i, Extern) for name in (*i.reads, *i.writes)}
    fuser = Fuser(flat, program.buffers, frozenset(kept))
    steps = fuser.run(rounds=None if fuse else 0)
    return (packed(steps, program.buffers, program.outputs, fuser.axes) if fuse else steps), fuser.log


def _kernels(steps: list[Step], program: Program) -> tuple[Kernel | Extern, ...]:
    uses: dict[str, int] = {}
    for step in steps:
        for name in _names(step):
            uses[name] = uses.get(name, 0) + 1
    local = {n for n, count in uses.items() if count == 1 and program.buffers[n].kind == "made"} - {*program.outputs}
    made: list[Kernel | Extern] = []
    for number, step in enumerate(steps):
        if isinstance(step, Extern):
            made.append(step)
            continue
        mine = frozenset(local & touched(step))
        made.append(kernel_of(step, f"k{number}_{step.name}", program.buffers, mine))
    return tuple(made)


def _names(step: Step) -> frozenset[str]:
    if isinstance(step, Group):
        return touched(step)
    found = effects(step)
    return found.reads | found.writes


def _real(steps: tuple[Kernel | Extern, ...], buffers: dict[str, Buffer]) -> dict[str, Buffer]:
    """The buffers made that steps refer to, in the order of first use."""
    found: dict[str, Buffer] = {}
    for step in steps:
        names = [p.buffer.name for p in step.params] if isinstance(step, Kernel) else [*step.reads, *step.writes]
        found.update((n, buffers[n]) for n in names if buffers[n].kind == "made")
    return found


__all__ = [
    "Finding", "FusionLog", "Refusal", "Schedule", "can_fuse", "check_schedule", "overwrites", "schedule",
    "score_fusion",
]  # fmt: skip
