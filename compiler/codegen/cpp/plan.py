"""The plan of a kernel: which of its loops run in lanes, and how. It is made before any code is written.

for i: for j: y[768*i + j] = ...              ->  j in vectors
for j: fold (for i: update with x[768*i+j])   ->  j in strips of several vectors, the fold inside, lane by lane
for i: for j: y[64*i + j] = x[i + 64*j]       ->  tiles of i and j, transposed on the way in
for i: fold (for j: update with x[768*i+j])   ->  j in several vectors at a time, lanes joined after the fold
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

import torch

from ...ir.accesses import Access, accesses, index_values, loop_variables, statements, stored_buffers, updated, values
from ...ir.dependence import Dependence, Sources
from ...ir.index.bounds import bounds
from ...ir.index.index import Var, sub, terms
from ...ir.kernel import Assign, Fold, Kernel, Loop, Statement, Update
from ...ir.lanes import Lanes, LoopTile, Turned
from ...ir.ops import OPS
from ...ir.program import Store
from ...ir.reducers import REDUCERS
from ...ir.value import Guarded, Load, Op, Result, Value, indices_of, operands
from .dtypes import lane_bytes
from .short_rows import outermost_loops, rows_pay
from .stores import is_widened
from .target import InstructionSet
from .turned import NEAR, is_row, turned_inside
from .woven import in_turns

_ACCUMULATORS = 4  # number of independent vectors of a fold, whose latencies overlap
_TALL = 1024  # iterations of a tiled loop from which on pages of memory matter more than pieces for threads
_COPIES = 4  # tiles below each other, there and where rows do not begin with cache lines; else as many as one holds
_LINE = 64  # bytes of a cache line
_SCATTERED = 2  # number of contiguous accesses that take as long as one scattered access
_TOO_SHORT = 100  # the same for a loop that fills no vector; larger than the number of accesses of any loop
_FEW = 4  # operations on what is added at selected places that save less in lanes than taking these apart costs
_UNROLLED = 12  # number of operations up to which a tile is written row by row
SMALL = 24  # number of operations of a loop's body up to which a fold has all its accumulators


Strategy = Lanes | LoopTile


class LoopPlan:
    """The strategies of the loops of a kernel; a loop without a strategy runs element by element."""

    def __init__(self, kernel: Kernel, target: InstructionSet, dependence: Dependence) -> None:
        self._width, self._dependence = target.vector_bytes, dependence
        self._scratch = {b.name for b in kernel.scratch}
        self._bytes = {b.name: b.dtype.itemsize for b in (*kernel.scratch, *(p.buffer for p in kernel.params))}
        self._strategies: dict[int, Strategy] = {}
        self._turned: dict[int, Turned] = {}
        self._whole = kernel.body
        if target.vector_bytes:
            for statement in kernel.body:
                self._visit(statement)

    def of(self, loop: Loop) -> Strategy | None:
        """The strategy of a loop of the kernel."""
        return self._strategies.get(id(loop))

    def turned(self, loop: Loop) -> Turned | None:
        """The accesses that a loop inside a loop in lanes makes row by row."""
        return self._turned.get(id(loop))

    def planned(self, body: tuple[Statement, ...], inside: bool = False) -> tuple[Statement, ...]:
        """Statements of the kernel whose loops carry their strategies; `inside`: of a loop in lanes."""
        return tuple(self._planned(statement, inside) for statement in body)

    def _planned(self, statement: Statement, inside: bool) -> Statement:
        if isinstance(statement, Loop):
            how = self.turned(statement) if inside else self.of(statement)
            body = self.planned(statement.body, inside or isinstance(how, Lanes))
            return replace(statement, body=body, lanes=how)
        if isinstance(statement, Fold):
            return replace(statement, body=self.planned(statement.body, inside))
        return statement

    def _visit(self, statement: Statement) -> None:
        if isinstance(statement, Fold):
            for inner in statement.body:
                self._visit(inner)
            self._settle_fold(statement)
        elif isinstance(statement, Loop) and not self._tile(statement):
            self._visit_loop(statement)

    def _visit_loop(self, loop: Loop) -> None:
        variables = loop_variables(loop.body)
        score = self._score(loop)
        # Joining the lanes takes longer than folding two or three elements one by one.
        worth = variables or not (self._is_short(loop, 2) and updated(loop.body))
        if self._only_combines(loop):
            return
        found = self._lanes(loop) if score is not None and worth else None
        if found is not None:
            rows = turned_inside(loop, found.lanes, self._dependence)
            pays = not variables or self._beats_inner(loop, score)  # type: ignore[arg-type]
            if pays or rows_pay(loop, found.lanes, rows, self._dependence, found.expanded, self._bytes):
                self._strategies[id(loop)] = replace(found, copies=1) if rows else found
                self._turned |= rows
                return
        for inner in loop.body:
            self._visit(inner)

    # -- whether and how ------------------------------------------------------------------------------------------

    def _only_combines(self, loop: Loop) -> bool:
        """Whether iterations do little more than to add to elements that indices select, which is done one by one."""
        stores = [s.store for s in loop.body if isinstance(s, Assign)]
        found = set(values(loop.body))
        return (
            len(stores) == len(loop.body)
            and all(
                s.mode and self._dependence.stride(s.indices[0], loop.var, self._width // 4) is None for s in stores
            )
            and sum(isinstance(v, Op) for v in found) <= _FEW
            and not any(isinstance(v, Guarded) for v in found)
            and not self._costly(loop)
        )

    def _beats_inner(self, loop: Loop, score: int) -> bool:
        """Whether lanes along a loop are better than lanes along those inside it.

        Contiguous accesses outside of these make up for no scattered ones inside, which are made far more often.
        """
        inner, often = self._inner_score(loop), self._score(loop, inside=True)
        return score > inner and (often is None or often >= min(inner, 0))

    def _score(self, loop: Loop, inside: bool = False) -> int | None:
        """The contiguous accesses minus the scattered ones, with lanes along the loop; None if lanes would be wrong.

        Only those that inner loops move, if `inside`.
        """
        expanded = self._expanded(loop)
        if not self._independent(loop, expanded):
            return None
        rows = {inner.var for inner in statements(loop.body) if isinstance(inner, Loop) and loop.parallel}
        contiguous = scattered = turned = far = 0
        found = [a for a in accesses(loop.body, loop.var) if not inside or self._moves(a, loop)]
        varying = frozenset(("buffer", name) for name in expanded)
        near = set().union(
            *(in_turns([a for a in found if a.stored == s], loop.var, self._dependence) for s in (False, True))
        )
        for access in found:
            stride = self._dependence.stride(access.offset, loop.var, self._width // 4, varying)
            in_turn = (access.buffer, access.offset) in near
            contiguous += stride == 1 or access.buffer in expanded or in_turn
            scattered += stride not in (0, 1) and not in_turn
            far += not isinstance(stride, int) or stride > NEAR
            turned += access.inner in rows and is_row(access.offset, access.inner, loop.var, self._dependence)
        score = contiguous - _SCATTERED * scattered - _TOO_SHORT * self._is_short(loop)
        if contiguous or scattered <= turned or self._costly(loop):
            return score
        # Steps of a fold await each other: lanes pay even there, though no more than those of a loop that is too short
        # if each lane is read by itself.
        folds = any(isinstance(s, Update) for s in loop.body)
        alone = far or bounds(loop.var.extent)[0] in range(_ACCUMULATORS * self._width // 4)
        return score - _TOO_SHORT * bool(alone) if folds else None

    def _moves(self, access: Access, loop: Loop) -> bool:
        """Whether a loop inside of a loop accesses other elements in each iteration."""
        return access.inner is not loop.var and access.inner in self._dependence.of(access.offset)

    def _is_short(self, loop: Loop, times: int = 1) -> bool:
        """Whether `times` runs of a loop together are known to fill less than half a vector."""
        return isinstance(loop.var.extent, int) and times * loop.var.extent < self._width // 8

    def _inner_score(self, loop: Loop) -> int:
        """The score of lanes along the best inner loops instead."""
        total = 0
        for inner in outermost_loops(loop.body):
            own = self._score(inner)
            own = -_TOO_SHORT if own is None else own
            total += max(own, self._inner_score(inner)) if loop_variables(inner.body) else own
        return total

    def _costly(self, loop: Loop) -> bool:
        """Whether lanes pay although nothing is contiguous: for functions, and for folds that keep a position."""
        folds = (r for s in statements(loop.body) if isinstance(s, Fold) for r in s.reductions)
        if any(len(REDUCERS[r.reducer].components) > 1 for r in folds):
            return True
        return any(isinstance(v, Op) and OPS[v.name].costly for v in values(loop.body))

    def _expanded(self, loop: Loop) -> frozenset[str]:
        """The scratch buffers that only this loop uses, at places that do not depend on its variable."""
        inside = list(accesses(loop.body, loop.var))
        names = {a.buffer for a in inside if a.stored and a.buffer in self._scratch}
        outside = [a.buffer for a in accesses(self._whole)]
        found = set()
        for name in names:
            own = [a for a in inside if a.buffer == name]
            if outside.count(name) == len(own) and not any(loop.var in self._dependence.of(a.offset) for a in own):
                found.add(name)
        return frozenset(found)

    def _independent(self, loop: Loop, expanded: frozenset[str]) -> bool:
        """Whether iterations are independent, statement by statement."""
        own = updated(loop.body)
        started = {r.name for s in statements(loop.body) if isinstance(s, Fold) for r in s.reductions}
        carried = own.keys() - started
        if any(isinstance(v, Result) and v.reduction in carried for v in values(loop.body)):
            return False
        # Lanes fold a reduction of the loop separately only if no other loop is in between.
        if carried and (self._is_short(loop) if loop_variables(loop.body) else False):
            return False
        if any(carried & updated(s.body).keys() for s in statements(loop.body) if isinstance(s, Loop)):
            return False
        inside = list(accesses(loop.body, loop.var))
        return all(self._apart(loop, name, inside) for name in {a.buffer for a in inside if a.stored} - expanded)

    def _apart(self, loop: Loop, name: str, inside: Sequence[Any]) -> bool:
        touching = [a for a in inside if a.buffer == name]
        offsets = {a.offset for a in touching}
        # The place may be a result of the iteration: `out[place of the greatest] = greatest`.
        folded = frozenset(
            ("result", r.name) for s in statements(loop.body) if isinstance(s, Fold) for r in s.reductions
        )
        strides = {self._dependence.stride(o, loop.var, self._width // 4, folded) for o in offsets}
        if len(touching) == 1 and touching[0].stored:
            # A single store writes its lanes in order, wherever they go; loops in between would change the order.
            in_order = touching[0].mode is not None or loop.parallel or touching[0].inner == loop.var
            if None in strides and not in_order:
                return False
            return strides != {0} or touching[0].mode is not None or loop.parallel
        if len(offsets) == 1 and strides <= {1} and not loop_variables(loop.body):
            return True
        apart = loop.parallel or _lattice(loop.var, offsets) or _take_turns(strides, offsets)
        return None not in strides and 0 not in strides and apart

    def _lanes(self, loop: Loop) -> Lanes | None:
        expanded = self._expanded(loop)
        varying: Sources = frozenset({loop.var, *(("buffer", name) for name in expanded)})
        varying |= {("result", r.name) for s in statements(loop.body) if isinstance(s, Fold) for r in s.reductions}
        widest = 4
        operations = 0
        widened = self._widened(loop)
        for value in values(loop.body):
            if self._dependence.of(value) & varying:
                widest = max(widest, lane_bytes(torch.int32 if value in widened else value.dtype))
                operations += weight_of(value)
        lanes = self._width // widest
        if lanes < 2:
            return None
        return Lanes(lanes, self._copies(loop, lanes, operations, expanded), expanded)

    def _widened(self, loop: Loop) -> set[Value]:
        """The 32-bit integers that are only stored, in whole vectors, as 64-bit integers."""
        stores = [s.store for s in statements(loop.body) if isinstance(s, Assign)]
        found: set[Value] = {s.value for s in stores if is_widened(s) and self._is_along(s, loop.var)}
        others = [s.value for s in stores if not self._is_along(s, loop.var)]
        return found - {arg for value in values(loop.body) for arg in operands(value)} - set(others)

    def _is_along(self, store: Store, var: Var) -> bool:
        return store.mode is None and self._dependence.stride(store.indices[0], var, self._width // 4) == 1

    def _copies(self, loop: Loop, lanes: int, operations: int, expanded: frozenset[str]) -> int:
        folds = bool(updated(loop.body))
        if not folds or expanded:
            return 1
        wanted = _ACCUMULATORS if operations <= SMALL else 2 if operations <= 2 * SMALL else 1
        high = bounds(loop.var.extent)[1]
        while wanted > 1 and high is not None and high < wanted * lanes:
            wanted //= 2
        return wanted

    def _settle_fold(self, fold: Fold) -> None:
        """Give the same number of lanes to all loops that update the reductions of this fold, or lanes to none."""
        names = {r.name for r in fold.reductions}
        loops = [s for s in statements(fold.body) if isinstance(s, Loop) and id(s) in self._strategies]
        carrying = [loop for loop in loops if names & updated(loop.body).keys()]
        in_lanes = sum(len(_updates(loop.body, names)) for loop in carrying)
        if in_lanes < len(_updates(fold.body, names)) or any(isinstance(self.of(loop), LoopTile) for loop in carrying):
            for loop in carrying:
                del self._strategies[id(loop)]
            return
        found = [s for loop in carrying if isinstance(s := self.of(loop), Lanes)]
        if found:
            lanes = min(s.lanes for s in found)
            for loop, strategy in zip(carrying, found, strict=True):
                self._strategies[id(loop)] = replace(strategy, lanes=lanes)

    # -- tiles ----------------------------------------------------------------------------------------------------

    def _tile(self, loop: Loop) -> bool:
        """Tile two perfectly nested loops if some loads are contiguous along the outer one only."""
        inner = loop.body[0] if len(loop.body) == 1 else None
        if not isinstance(inner, Loop) or not (loop.parallel and _assigns_only(inner)):
            return False
        lanes = self._width // 4
        if self._score(inner) is None or not self._independent(loop, frozenset()):
            return False
        if not all(
            self._dependence.stride(a.offset, inner.var, lanes) == 1
            and self._dependence.stride(a.offset, loop.var, lanes) is not None
            for a in accesses(inner.body, inner.var)
            if a.stored and a.mode is None
        ) or any(a.mode is not None for a in accesses(inner.body)):
            return False
        found = self._lanes(inner)
        loads = [
            v for v in values(inner.body) if isinstance(v, Load) and self._transposed(v, loop.var, inner.var, lanes)
        ]
        guarded = any(isinstance(v, Guarded) for v in values(inner.body))
        if not loads or found is None or guarded:
            return False
        written = stored_buffers(inner.body)
        if any(load.buffer in written for load in loads):
            return False
        high = bounds(loop.var.extent)[1]
        tall = high is None or high >= _TALL
        copies = _COPIES if tall else max(self._below(load, inner.var, found.lanes) for load in loads)
        unrolled = len(loads) == 1 and sum(map(weight_of, set(values(inner.body)))) <= _UNROLLED
        self._strategies[id(loop)] = LoopTile(found.lanes, tuple(loads), copies, unrolled)
        return True

    def _below(self, load: Load, inner: Var, lanes: int) -> int:
        """How many tiles below each other read whole cache lines: more would only need more of the first cache."""
        size, step = self._bytes.get(load.buffer, 4), self._plain_stride(load.indices[0], inner)
        return max(_LINE // (lanes * size), 1) if isinstance(step, int) and step * size % _LINE == 0 else _COPIES

    def _transposed(self, load: Load, outer: Var, inner: Var, lanes: int) -> bool:
        at = load.indices[0]
        along = self._dependence.stride(at, inner, lanes)
        return (
            self._plain_stride(at, outer) == 1
            and along not in (None, 0, 1)
            and self._plain_stride(at, inner) is not None
        )

    def _plain_stride(self, number: Any, var: Var) -> Any:
        """The coefficient of a variable that occurs in this term only, so that it is the stride for any offset."""
        return self._dependence.stride(number, var, 1 << 40)


def weight_of(value: Value) -> int:
    """The amount of code of a value."""
    if isinstance(value, Guarded) or (isinstance(value, Op) and OPS[value.name].costly):
        return SMALL // 3
    return 1 + 4 * any(map(index_values, indices_of(value)))


def _assigns_only(loop: Loop) -> bool:
    return all(isinstance(s, Assign) for s in loop.body)


def _updates(body: Iterable[Statement], names: set[str]) -> list[Update]:
    return [s for s in statements(body) if isinstance(s, Update) and s.reduction.name in names]


def _take_turns(strides: set[Any], offsets: set[Any]) -> bool:
    """Whether places of equal stride never meet, as those of {4*j, 4*j + 1, 4*j + 3} do not: not modulo the stride."""
    (stride, *others), (first, *_) = strides, offsets
    away = [sub(offset, first) for offset in offsets]
    if others or not isinstance(stride, int) or not all(isinstance(a, int) for a in away):
        return False
    return len({a % stride for a in away}) == len(away)


def _lattice(var: Var, offsets: Iterable[Any]) -> bool:
    """Whether equal elements imply equal `var`: all other terms are multiples of a number greater than its span.

    {j + 64*r, j + 64*q + 128}, j < 64   ->   True
    """
    steps, grid, constants = set(), 0, []
    for offset in offsets:
        constants.append(0)
        for monomial, coefficient in terms(offset):
            if monomial == (var,):
                steps.add(coefficient)
            elif monomial:
                grid = gcd(grid, coefficient)
            else:
                constants[-1] = coefficient
    grid = gcd(grid, *(c - constants[0] for c in constants))
    if len(steps) != 1 or not isinstance(var.extent, int):
        return False
    return grid == 0 or abs(steps.pop()) * (var.extent - 1) < grid
