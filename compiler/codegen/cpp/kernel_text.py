"""A kernel as C++: a function that runs one region after the other; threads share the iterations of each region.

    for i < 4096 parallel: ...         ->  region over i
    for j < 1000000 parallel: ...      ->  region over chunks of j, each a number of whole vectors
    fold sum: for j < 1000000: ...     ->  region over chunks, partial sums in memory; then a region that joins them

Chunks do not depend on the number of threads, so results do not either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.accesses import stored_buffers, values
from ...ir.dependence import Dependence
from ...ir.folds import component_dtypes
from ...ir.index.bounds import bounds
from ...ir.index.index import Var, add, mul, quotient
from ...ir.kernel import Fold, Kernel, Loop, Statement
from ...ir.value import Result
from ..flatten import flatten
from .components import unroll_components
from .cost import GRAIN, work_of, work_of_all
from .joined_loops import join_loops
from .layout import KernelLayout
from .moves import move_bits
from .plan import LoopPlan
from .ranges_apart import ranges_apart
from .region import RegionFunction
from .short_loops import unroll_short_loops
from .target import InstructionSet
from .tile_order import bring_tiles_together

_PIECES = 64  # number of outer iterations from which on the vector loop is not split


def kernel_text(kernel: Kernel, target: InstructionSet) -> str:
    """The functions of a kernel. The entry point is named ``KERNEL``; the other names begin with it.

    Kernels that are equal except for names have equal texts.
    """
    return _KernelText(prepared(kernel, target), target).text()


def prepared(kernel: Kernel, target: InstructionSet) -> Kernel:
    """The kernel with loops and values as they are planned and written."""
    if target.vector_bytes:
        kernel = ranges_apart(kernel, target.vector_bytes // 4)
    return bring_tiles_together(unroll_short_loops(unroll_components(move_bits(join_loops(flatten(kernel))))), target)


class _KernelText:
    def __init__(self, kernel: Kernel, target: InstructionSet) -> None:
        dependence = Dependence()
        self._plan = LoopPlan(kernel, target, dependence)
        self._layout = KernelLayout(kernel, self._plan, dependence)
        self._partials: list[str] = []  # bytes of memory for partial results
        self._regions: list[RegionFunction] = []
        self._calls: list[str] = []

    def text(self) -> str:
        for statement in self._layout.kernel.body:
            if isinstance(statement, Loop) and statement.parallel:
                self._parallel(statement)
            elif isinstance(statement, Fold) and self._splits(statement):
                self._split(statement)
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

    def _parallel(self, loop: Loop) -> None:
        chain = self._chain(loop)
        each = self._chunk(chain)
        loops, chunked = (chain[:-1], chain[-1]) if each else (chain, None)
        if chunked is None and len(chain) > 1 and self._plan.of(chain[-1]) is not None:
            loops = chain[:-1]
        total: Any = 1
        for around in loops:
            total = mul(total, around.var.extent)
        if chunked is not None:
            total = mul(total, quotient(add(chunked.var.extent, each - 1), each))
        region = self._region(total, work_of(loop), [loop], frozenset(c.var for c in chain))
        region.iterate(loops, chunked, each)

    def _chain(self, loop: Loop) -> list[Loop]:
        """The perfectly nested parallel loops, down to the first loop in lanes."""
        chain = [loop]
        while self._plan.of(chain[-1]) is None and len(chain[-1].body) == 1:
            inner = chain[-1].body[0]
            if not (isinstance(inner, Loop) and inner.parallel):
                break
            chain.append(inner)
        return chain

    def _chunk(self, chain: Sequence[Loop]) -> int:
        """The number of iterations of the innermost loop in a chunk; with 0, one thread runs all of them."""
        inner, strategy = chain[-1], self._plan.of(chain[-1])
        around: Any = 1
        for outer in chain[:-1]:
            around = mul(around, outer.var.extent)
        if strategy is None or (len(chain) > 1 and isinstance(around, int) and around >= _PIECES):
            return 0
        each = _chunk_length(inner, strategy, GRAIN // 4)
        whole = len(chain) > 1 and isinstance(inner.var.extent, int) and inner.var.extent <= each
        return 0 if whole else each

    # -- folds over everything ------------------------------------------------------------------------------------

    def _splits(self, fold: Fold) -> bool:
        """Whether splitting a fold into chunks is worthwhile and legal."""
        if len(fold.body) != 1 or not isinstance(fold.body[0], Loop):
            return False
        names, high = {r.name for r in fold.reductions}, bounds(work_of(fold))[1]
        quiet = not stored_buffers(fold.body) or fold.body[0].parallel
        scanned = any(isinstance(v, Result) and v.reduction in names for v in values(fold.body))
        return quiet and not scanned and (high is None or high >= 2 * GRAIN)

    def _split(self, fold: Fold) -> None:
        loop = fold.body[0]
        assert isinstance(loop, Loop), loop
        each = _chunk_length(loop, self._plan.of(loop), GRAIN // 2)
        chunks = quotient(add(loop.var.extent, each - 1), each)
        components = sum(len(component_dtypes(r.reducer, r.values[0].dtype)) for r in fold.reductions)
        memory = len(self._layout.kernel.params) + len(self._layout.shared) + len(self._partials)
        self._partials.append(f"{8 * components} * {self._layout.size_text(chunks)}")
        self._region(chunks, work_of(fold), [fold], frozenset({loop.var})).partial(fold, loop, each, memory)
        self._region(1, 1, []).joined(fold, memory, self._layout.size_text(chunks))


def _chunk_length(loop: Loop, strategy: Any, work: int) -> int:
    """The number of iterations with about this much work: a multiple of the lanes of all copies."""
    step = getattr(strategy, "lanes", 1) * getattr(strategy, "copies", 1)
    inside = bounds(work_of_all(loop.body))[1]
    return step * max(1, work // (step * max(inside or work, 1)))
