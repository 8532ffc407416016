"""Functions of what rows are folded to have a loop of their own, in lanes across rows.

for i < 4000: { fold s: for j < 64: ...;  y[i] = exp(s) }   ->   for b < 32: { for k < 125: { fold s: ...;  t[k] = s }
                                                                               for k < 125: y[125*b + k] = exp(t[k]) }

Where lanes lie along `j`, functions of the sum would be computed one by one, each of which takes as long as a row.
Where they lie across rows, and elements of 64 bits are only in what is made of the sum (an index of a class), rows of
32 bits would have half the lanes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...ir.accesses import loaded_buffers, rewritten, roots, statements, stored_buffers, updated, values
from ...ir.index.index import Var, add, mul
from ...ir.kernel import Assign, Fold, Kernel, Loop, Statement, Update
from ...ir.lanes import Lanes
from ...ir.ops import OPS
from ...ir.program import Buffer, Store
from ...ir.value import Load, Op, Result, Rewriter, Value, walk
from .cost import GRAIN, work_of_all
from .dtypes import lane_bytes
from .plan import LoopPlan

_FEWEST, _MOST = 16, 128  # rows of a block: vectors of functions, and what the first cache holds beside the rows
_ACROSS = 64  # fewest rows of a block in lanes across rows


def functions_apart(kernel: Kernel, plan: LoopPlan, lanes: int) -> Kernel:
    """The kernel with functions of folds in loops of their own; the kernel itself where there are none.

    Args:
        kernel: as it is planned.
        plan: its plan, which says which loops have lanes.
        lanes: of a vector of 32-bit numbers.
    """
    apart = _Apart(kernel, plan, lanes)
    body = tuple(map(apart.visit, kernel.body))
    return replace(kernel, body=body, scratch=(*kernel.scratch, *apart.scratch)) if apart.scratch else kernel


class _Apart:
    """Takes loops apart; `scratch` are the buffers that rows are folded to."""

    def __init__(self, kernel: Kernel, plan: LoopPlan, lanes: int) -> None:
        self.scratch: list[Buffer] = []
        self._plan, self._lanes = plan, lanes
        self._names = {b.name for b in (*kernel.scratch, *(p.buffer for p in kernel.params))}

    def visit(self, statement: Statement) -> Statement:
        """A statement with the loops in it taken apart."""
        if isinstance(statement, Fold):
            body = tuple(map(self.visit, statement.body))
            now = updated(body)
            return Fold(tuple(now.get(r.name, r) for r in statement.reductions), body)
        if not isinstance(statement, Loop):
            return statement
        made = self._split(statement)
        if made is None and self._plan.of(statement) is not None:
            return statement
        return replace(statement, body=tuple(map(self.visit, statement.body))) if made is None else made

    def _split(self, loop: Loop) -> Loop | None:
        last = max((k for k, s in enumerate(loop.body) if isinstance(s, Fold)), default=-1)
        rows, rest = loop.body[: last + 1], loop.body[last + 1 :]
        if not _is_apart(rows, rest):
            return None
        made = [v for s in rest for v in walk(roots(s))]
        found = dict.fromkeys(v for v in made if isinstance(v, Result) and v.reduction in _names(rows))
        across = self._plan.of(loop) is not None
        pays = self._is_narrowed(loop, rows) if across else self._in_lanes(rows) and any(map(_is_function, made))
        block = _block(loop, rows, _ACROSS if across else _FEWEST)
        if not found or not pays or block is None:
            return None
        around, row = Var(f"{loop.var.name}b", loop.var.extent // block), Var(f"{loop.var.name}k", block)
        kept = {result: self._buffer(result.dtype, block) for result in found}
        place: dict[Any, Any] = {loop.var: add(mul(around.index(), block), row.index())}
        here = Rewriter(atom=place.get)
        loads: dict[Value, Value] = {r: Load(b.name, (row.index(),), r.dtype) for r, b in kept.items()}
        there = Rewriter(value=loads.get, atom=place.get)
        stores = tuple(Assign(Store(b.name, (row.index(),), r)) for r, b in kept.items())
        first = Loop(row, (*(rewritten(s, here) for s in rows), *stores), loop.parallel)
        second = Loop(row, tuple(rewritten(s, there) for s in rest), loop.parallel)
        return Loop(around, (first, second), loop.parallel)

    def _in_lanes(self, rows: tuple[Statement, ...]) -> bool:
        """Whether lanes lie along the rows that are folded."""
        inner = [s for s in statements(rows) if isinstance(s, Loop)]
        return any(isinstance(self._plan.of(s), Lanes) for s in inner)

    def _is_narrowed(self, loop: Loop, rows: tuple[Statement, ...]) -> bool:
        """Whether rows would have more lanes without what is made of them."""
        how = self._plan.of(loop)
        narrow = all(lane_bytes(v.dtype) <= 4 for v in values(rows))
        return narrow and isinstance(how, Lanes) and how.lanes < self._lanes

    def _buffer(self, dtype: torch.dtype, size: int) -> Buffer:
        name = next(n for k in range(len(self._names) + 1) if (n := f"folded{k}") not in self._names)
        self._names.add(name)
        self.scratch.append(Buffer(name, dtype, (size,), (1,), torch.device("cpu")))
        return self.scratch[-1]


def _is_apart(rows: tuple[Statement, ...], rest: tuple[Statement, ...]) -> bool:
    """Whether all rows may be folded before anything is made of them."""
    if not all(isinstance(s, Fold) for s in rows) or not all(isinstance(s, (Assign, Update)) for s in rest):
        return False
    read = {v.reduction for v in values(rows) if isinstance(v, Result)}
    return not (stored_buffers(rows) or stored_buffers(rest) & loaded_buffers(rows) or read & updated(rest).keys())


def _names(rows: tuple[Statement, ...]) -> set[str]:
    return {r.name for s in rows if isinstance(s, Fold) for r in s.reductions}


def _block(loop: Loop, rows: tuple[Statement, ...], fewest: int) -> int | None:
    """The number of rows of a block, of which there is a whole number, each of work that two threads are given."""
    extent, work = loop.var.extent, work_of_all(rows)
    if not isinstance(extent, int) or not isinstance(work, int):
        return None
    most = min(_MOST, 2 * GRAIN // max(work, 1))
    return next((n for n in range(most, fewest - 1, -1) if extent % n == 0), None)


def _is_function(value: Value) -> bool:
    return isinstance(value, Op) and OPS[value.name].costly


__all__ = ["functions_apart"]
