"""Two loops that can be tiled together become neighbours: the one along which loads are contiguous moves inwards.

for i < 32: for j < 16: for k < 16: y[256*i + 16*j + k] = x[i + 4096*j + 32*k]

for j < 16: for i < 32: for k < 16: ...      tiles of i and k: whole vectors of both
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...ir.accesses import values
from ...ir.dependence import Dependence
from ...ir.kernel import Kernel, Loop, Statement
from ...ir.lanes import LoopTile
from ...ir.value import Load
from .plan import LoopPlan
from .short_loops import parallel_chain
from .target import InstructionSet
from .turned import ANYWHERE


def bring_tiles_together(kernel: Kernel, target: InstructionSet) -> Kernel:
    """The kernel in which parallel loops that are nested in one another are in an order that can be tiled."""
    if not target.vector_bytes:
        return kernel
    return replace(kernel, body=tuple(_ordered(statement, kernel, target) for statement in kernel.body))


def _ordered(statement: Statement, kernel: Kernel, target: InstructionSet) -> Statement:
    if not isinstance(statement, Loop) or not statement.parallel:
        return statement
    chain = list(parallel_chain(statement))
    for outer in _contiguous(chain, target.vector_bytes // 4):
        made = _nest([loop for loop in chain if loop is not outer], outer)
        whole = replace(kernel, body=tuple(made if s is statement else s for s in kernel.body))
        if _is_tiled(made, LoopPlan(whole, target, Dependence())):
            return made
    return statement


def _contiguous(chain: Sequence[Loop], lanes: int) -> list[Loop]:
    """Loops farther out than the innermost two along which loads are contiguous, which they are not along those two.

    Both sides of a tile must be filled: of short loops, parts of vectors in the present order are no slower.
    """
    dependence = Dependence()
    loads = [v.indices[0] for v in values(chain[-1].body) if isinstance(v, Load)]
    near = {at for at in loads for loop in chain[-2:] if dependence.stride(at, loop.var, ANYWHERE) == 1}
    far = [at for at in loads if at not in near]
    long = [loop for loop in chain if not isinstance(loop.var.extent, int) or loop.var.extent >= lanes]
    if chain[-1] not in long:
        return []
    return [loop for loop in chain[:-2] if loop in long and _is_along(loop, far, dependence)]


def _is_along(loop: Loop, offsets: Iterable[Any], dependence: Dependence) -> bool:
    return any(dependence.stride(at, loop.var, ANYWHERE) == 1 for at in offsets)


def _nest(chain: Sequence[Loop], moved: Loop) -> Loop:
    """Loops in one another, `moved` around the innermost one."""
    *around, made = chain
    for loop in (moved, *reversed(around)):
        made = replace(loop, body=(made,))
    return made


def _is_tiled(loop: Loop, plan: LoopPlan) -> bool:
    return any(isinstance(plan.of(inner), LoopTile) for inner in parallel_chain(loop))


__all__ = ["bring_tiles_together"]
