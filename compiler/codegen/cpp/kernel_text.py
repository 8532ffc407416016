"""A kernel as C++: a function that runs one region after the other; threads share the iterations of each region.

for i < 4096 parallel: ...         ->  region over i
for j < 1000000 parallel: ...      ->  region over chunks of j, each a number of whole vectors
fold sum: for j < 1000000: ...     ->  region over chunks, partial sums in memory; then a region that joins them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...ir.dependence import Dependence
from ...ir.folds import component_dtypes
from ...ir.index.index import Var, add, mul, quotient
from ...ir.kernel import Fold, Kernel, Loop, Statement
from ...ir.lanes import Threads
from ..flatten import flatten
from .compared_places import compare_places
from .components import unroll_components
from .cost import GRAIN, work_of
from .functions_apart import functions_apart
from .joined_loops import join_loops
from .layout import KernelLayout
from .moves import move_bits
from .plan import LoopPlan
from .ranges_apart import ranges_apart
from .region import RegionFunction
from .short_loops import unroll_short_loops
from .target import InstructionSet
from .threads import chain_of, threads_of
from .tile_order import bring_tiles_together


def kernel_text(kernel: Kernel, target: InstructionSet) -> str:
    """The functions of a kernel. The entry point is named ``KERNEL``; the other names begin with it.

    Kernels that are equal except for names have equal texts.
    """
    return _KernelText(planned(kernel, target)).text()


def planned(kernel: Kernel, target: InstructionSet) -> Kernel:
    """The kernel with loops and values as they are written, their lanes, and how threads share its statements."""
    kernel = prepared(kernel, target)
    plan = LoopPlan(kernel, target, Dependence())
    apart = functions_apart(kernel, plan, target.vector_bytes // 4)
    if apart is not kernel:
        kernel, plan = apart, LoopPlan(apart, target, Dependence())
    body = plan.planned(kernel.body)
    return replace(kernel, body=body, threads=tuple(map(threads_of, body)))


def prepared(kernel: Kernel, target: InstructionSet) -> Kernel:
    """The kernel with loops and values as they are planned and written."""
    if target.vector_bytes:
        kernel = ranges_apart(kernel, target.vector_bytes // 4)
    kernel = compare_places(join_loops(flatten(kernel)))
    return bring_tiles_together(unroll_short_loops(unroll_components(move_bits(kernel))), target)


class _KernelText:
    def __init__(self, kernel: Kernel) -> None:
        self._layout = KernelLayout(kernel, Dependence())
        self._partials: list[str] = []  # bytes of memory for partial results
        self._regions: list[RegionFunction] = []
        self._calls: list[str] = []

    def text(self) -> str:
        kernel = self._layout.kernel
        for statement, threads in zip(kernel.body, kernel.threads, strict=True):
            if isinstance(statement, Loop) and statement.parallel:
                self._parallel(statement, threads)
            elif isinstance(statement, Fold) and threads.loops:
                self._split(statement, threads.piece)
            else:
                self._region(1, 1, [statement]).serial()
        return "\n".join([*(region.text() for region in self._regions), *self._entry()])

    def _region(
        self, count: Any, work: Any, body: Sequence[Statement], parallel: frozenset[Var] = frozenset()
    ) -> RegionFunction:
        """The next region, which runs over `count` iterations."""
        name = f"KERNEL_{len(self._calls)}"
        size = self._layout.size_text
        self._calls.append(f"  run(&call, {name}, {size(count)}, {size(work)}, {GRAIN});")
        self._regions.append(RegionFunction(self._layout, name, body, parallel))
        return self._regions[-1]

    def _entry(self) -> list[str]:
        layout, params = self._layout, len(self._layout.kernel.params)
        memory = [*map(layout.bytes_text, layout.shared), *self._partials]
        lines = ['extern "C" void KERNEL(void** given, const i64* sizes, Runtime* runtime) {']
        lines += [f"  const i64 {name} = sizes[{k}];" for k, name in enumerate(layout.sizes.values())]
        lines.append(f"  i64 results[{max(len(layout.slots), 1)}];")
        if memory:
            lines += [f"  const Heap heap{k}({size});" for k, size in enumerate(memory)]
            lines.append(f"  void* buffers[{params + len(memory)}];")
            lines.append(f"  for (int k = 0; k < {params}; ++k) buffers[k] = given[k];")
            lines += [f"  buffers[{params + k}] = heap{k}.memory;" for k in range(len(memory))]
        lines.append(f"  Call call = {{{'buffers' if memory else 'given'}, sizes, results, runtime, 0, 0}};")
        return [*lines, *self._calls, "}"]

    # -- parallel loops -------------------------------------------------------------------------------------------

    def _parallel(self, loop: Loop, threads: Threads) -> None:
        chain = chain_of(loop)
        around, chunked = chain[: len(threads.loops)], None
        if threads.piece > 1:
            around, chunked = around[:-1], around[-1]
        total: Any = 1
        for outer in around:
            total = mul(total, outer.var.extent)
        if chunked is not None:
            total = mul(total, quotient(add(chunked.var.extent, threads.piece - 1), threads.piece))
        region = self._region(total, work_of(loop), [loop], frozenset(c.var for c in chain))
        region.iterate(around, chunked, threads.piece)

    # -- folds over everything ------------------------------------------------------------------------------------

    def _split(self, fold: Fold, each: int) -> None:
        loop = fold.body[0]
        assert isinstance(loop, Loop), loop
        chunks = quotient(add(loop.var.extent, each - 1), each)
        components = sum(len(component_dtypes(r.reducer, r.values[0].dtype)) for r in fold.reductions)
        memory = len(self._layout.kernel.params) + len(self._layout.shared) + len(self._partials)
        self._partials.append(f"{8 * components} * {self._layout.size_text(chunks)}")
        self._region(chunks, work_of(fold), [fold], frozenset({loop.var})).partial(fold, loop, each, memory)
        self._region(1, 1, []).joined(fold, memory, self._layout.size_text(chunks))
