"""Compiles the baseline and the candidate kernels of one question side by side.

begin      start compiling both in other processes; the graph may change afterwards
prepare    wait for the compilers, before measuring
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from ...codegen.triton.compiler import are_under_way, begin_units, compile_units
from .baseline import Baseline
from .triton_call import TritonTemplateKernel


class CompiledCandidates:
    """The baseline and the candidates of a question; `seconds` is the time spent waiting for compilers.

    Args:
        baseline: the nodes that the kernels would replace.
        kernels: the candidates.
        while_compiling: is called while kernels are still compiling.
        excluded: why the baseline must not run, in which case it is not compiled; empty if it may run.
    """

    def __init__(
        self,
        baseline: Baseline,
        kernels: Iterable[TritonTemplateKernel],
        while_compiling: Callable[[], None],
        excluded: str = "",
    ) -> None:
        self.baseline, self.excluded = baseline, excluded
        self._kernels, self._while_compiling = list(kernels), while_compiling
        self.seconds = 0.0

    def begin(self) -> None:
        """Start compiling everything, without waiting."""
        begin_units(self._units())
        if not self.excluded:
            self.baseline.begin()

    def prepare(self) -> None:
        """Wait until everything is compiled; a failure is raised when the kernel is built."""
        start, units = time.perf_counter(), self._units()
        begin_units(units)
        if not self.excluded:
            self.baseline.build()
        if are_under_way(units):
            self._while_compiling()
        compile_units(units)
        self.seconds += time.perf_counter() - start

    def _units(self) -> list[Any]:
        return [unit for kernel in self._kernels for unit in kernel.units]
