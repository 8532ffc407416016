"""The result of scheduling: kernels and calls in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.kernel import Kernel
from ..ir.program import Buffer, Extern, Program
from .log import FusionLog
from .target import Target


@dataclass(frozen=True)
class Schedule:
    """A scheduled program.

    Args:
        steps: kernels and calls, in the order in which they run.
        buffers: the buffers that must be allocated, by name, as declared in the program. All others became scratch or
            were removed.
        log: the decisions of fusion.
        target: the target of the schedule.
        program: the program without dead and inlined definitions, and with long reductions split.
    """

    steps: tuple[Kernel | Extern, ...]
    buffers: Mapping[str, Buffer]
    log: FusionLog
    target: Target
    program: Program

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The steps that are kernels."""
        return tuple(step for step in self.steps if isinstance(step, Kernel))
