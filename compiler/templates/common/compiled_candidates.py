"""The measurement behind one question of a template: nodes as they would run otherwise, and kernels in their place.

begin      machine code of both is made in other processes; the graph may change meanwhile
prepare    wait for it, when it is about to be measured
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from ...codegen.triton.compiler import are_under_way, begin_units, compile_units
from .baseline import Baseline
from .triton_call import TritonTemplateKernel


class CompiledCandidates:
    """Both sides of a question, compiled side by side; `seconds` is what waiting for that took.

    Args:
        baseline: the nodes as they would run otherwise.
        kernels: what competes with them.
        while_compiling: called as well, where kernels take longer.
        excluded: why the nodes must not run, or nothing: then they are not compiled either.
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
        """Have everything compiled, without waiting for it."""
        begin_units(self._units())
        if not self.excluded:
            self.baseline.begin()

    def prepare(self) -> None:
        """Have everything compiled; what fails to compile says so when it is built."""
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
