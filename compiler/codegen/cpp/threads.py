"""How threads share the statements of a kernel: the loops whose iterations they take, and in which pieces.

for i < 4096 parallel: ...                    i, one iteration at a time
for j < 1000000 parallel, 16 lanes: ...       j, in pieces of whole vectors
fold sum: for j < 1000000: ...                the same; the partial results of pieces are joined afterwards

Pieces do not depend on the number of threads, so results do not either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.accesses import stored_buffers, values
from ...ir.index.bounds import bounds
from ...ir.index.index import mul
from ...ir.kernel import Fold, Loop, Statement
from ...ir.lanes import Threads
from ...ir.value import Result
from .cost import GRAIN, work_of, work_of_all

_PIECES = 64  # number of outer iterations from which on the vector loop is not split


def threads_of(statement: Statement) -> Threads:
    """How threads share a statement whose loops know their lanes."""
    if isinstance(statement, Loop) and statement.parallel:
        chain = chain_of(statement)
        piece = _piece(chain)
        whole = not piece and len(chain) > 1 and chain[-1].lanes is not None
        return Threads(tuple(loop.var for loop in (chain[:-1] if whole else chain)), piece or 1)
    if isinstance(statement, Fold) and _splits(statement):
        loop = statement.body[0]
        assert isinstance(loop, Loop), loop
        return Threads((loop.var,), _length(loop, GRAIN // 2))
    return Threads(())


def chain_of(loop: Loop) -> list[Loop]:
    """The perfectly nested parallel loops, down to the first loop in lanes."""
    chain = [loop]
    while chain[-1].lanes is None and len(chain[-1].body) == 1:
        inner = chain[-1].body[0]
        if not (isinstance(inner, Loop) and inner.parallel):
            break
        chain.append(inner)
    return chain


def _piece(chain: Sequence[Loop]) -> int:
    """The number of iterations of the innermost loop in a piece; with 0, one thread runs all of them."""
    inner, around = chain[-1], 1
    for outer in chain[:-1]:
        around = mul(around, outer.var.extent)
    if inner.lanes is None or (len(chain) > 1 and isinstance(around, int) and around >= _PIECES):
        return 0
    each = _length(inner, GRAIN // 4)
    whole = len(chain) > 1 and isinstance(inner.var.extent, int) and inner.var.extent <= each
    return 0 if whole else each


def _splits(fold: Fold) -> bool:
    """Whether splitting a fold into pieces is worthwhile and legal."""
    if len(fold.body) != 1 or not isinstance(fold.body[0], Loop):
        return False
    names, high = {r.name for r in fold.reductions}, bounds(work_of(fold))[1]
    quiet = not stored_buffers(fold.body) or fold.body[0].parallel
    scanned = any(isinstance(v, Result) and v.reduction in names for v in values(fold.body))
    return quiet and not scanned and (high is None or high >= 2 * GRAIN)


def _length(loop: Loop, work: int) -> int:
    """The number of iterations with about this much work: a multiple of the lanes of all copies."""
    how: Any = loop.lanes
    step = getattr(how, "lanes", 1) * getattr(how, "copies", 1)
    inside = bounds(work_of_all(loop.body))[1]
    return step * max(1, work // (step * max(inside or work, 1)))


__all__ = ["chain_of", "threads_of"]
