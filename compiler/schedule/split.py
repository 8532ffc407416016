"""Long reductions over few outer iterations, in two stages: partial results side by side, then their fold.

sum:  for j < 768:                              partial:  for s < 32, j < 768:
          fold sum over r < 8192 of x[r, j] ->                fold sum over r < 256 of x[256*s + r, j]
          y[j] = sum                                          p[s, j] = sum
                                                sum:      for j < 768: fold sum over s < 32 of p[s, j]: y[j] = sum

The order of additions is fixed: no atomics. A reduction of components that are no elements (a mean with its count) is
folded on by the reducer of its states. Folds over rows that other reductions make are cut into single rows, so that
they can be computed where the rows are.

loss:  fold sum over n < 8192 of lse[n] - x[n, t[n]]   ->   p[n] = lse[n] - x[n, t[n]];   fold sum over n < 8192 of p[n]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..ir.folds import component_dtypes, identity
from ..ir.index.bounds import bounds
from ..ir.index.index import Index, Loaded, Var, add, atoms, mul, quotient, remainder
from ..ir.iteration_space import extent_of
from ..ir.program import Buffer, Definition, Item, Program, Reduction, Store
from ..ir.reducers import folding_states
from ..ir.value import Const, Guarded, Load, Number, Op, Result, Rewriter, Value, walk
from .affine import OPAQUE, digits, variables_of
from .flat_access import flatten
from .groups import by_stride
from .join_folds import with_joined_folds
from .profit import guess
from .second_stages import join_second_stages
from .split_scans import constant, parts_of, scan_in_parts
from .target import NARROWEST, Target

_LEAST = 4  # parts that a second kernel is worth
_SMALLER = 4  # times as many parts, if there is a second kernel anyway and the machine is not busy
_IDLE = 2  # a machine with one part in so many busy is worth a second kernel
_SHORTEST = 384  # columns that a second kernel is worth
_EVEN = 512  # elements of parts in whose multiples no block has a rest
_SCANS = 2  # times as many parts of a scan
_INT32 = 1 << 31


def split_reductions(program: Program, target: Target) -> Program:
    """A program that computes the same, with reductions split where that gives the target enough to do at once.

    Args:
        program: the program to split; not changed.
        target: the device; one that asks for no parallelism gets the program as it is.
    """
    if not target.programs:
        return program
    splitter = _Splitter(program, target)
    items = [made for item in program.items for made in splitter.split(item)]
    return Program(splitter.buffers, join_second_stages(items, splitter.seconds), program.outputs, program.examples)


@dataclass(frozen=True)
class _Cut:
    """One reduced loop in parts: ``var = inner.extent * outer + inner``.

    Args:
        exact: whether the parts cover exactly the iterations of the loop.
    """

    var: Var
    outer: Var
    inner: Var
    exact: bool

    @property
    def index(self) -> Any:
        """The value of the loop's variable."""
        return add(mul(self.outer.index(), self.inner.extent), self.inner.index())


class _Splitter:
    def __init__(self, program: Program, target: Target) -> None:
        self.buffers = dict(program.buffers)
        self._target = target
        self._items = {item.name for item in program.items}
        self._folds = {r.name for i in program.items if isinstance(i, Definition) for r in i.reductions}
        self._rows: set[str] = set()  # buffers that reductions side by side have written
        self.seconds: set[str] = set()  # definitions that fold partial results

    def split(self, item: Item) -> list[Item]:
        """The item, or the stages that compute it."""
        if not isinstance(item, Definition):
            return [item]
        if not item.reductions or 0 in {v.extent for v in (*item.loops, *item.reduced)}:
            return [item]
        if item.scan:
            return self._scan(item)
        item = self._in_memory_order(item)
        if item.loops:
            self._rows |= {store.buffer for store in item.stores}
        single = list(item.reduced) if _folds_rows(item, self._rows) else self._rows_with_more(item)
        if not single:
            return self._staged(item, self._outermost(item, self._wanted(item)))
        rows, total = self._staged(item, [self._cut(item, var, var.extent) for var in single])
        assert isinstance(total, Definition)
        return [rows, *self._staged(total, self._outermost(total, self._wanted(total)))]

    def _in_memory_order(self, item: Definition) -> Definition:
        """The item with its folded loops as memory lies, those over one piece of it joined: parts are long pieces then.

        fold over n < 8, h < 56, w < 56 of x[3136*n + 56*h + w]   ->   fold over r < 25088 of x[r]
        """
        flat = flatten(item, self.buffers)
        loads = [load.indices[0] for load in _loads(flat) if load.indices]
        return with_joined_folds(replace(item, reduced=tuple(by_stride(item.reduced, loads))), flat)

    def _scan(self, item: Definition) -> list[Item]:
        """The scan, or the definitions that compute it in parts: each row is a program of its own."""
        parts = parts_of(item, guess(extent_of(item.loops)), _SCANS * self._target.programs)
        if parts == 1:
            return [item]
        taken = self._items | self._folds

        def fresh(name: str) -> str:
            self._items.add(made := _fresh(name, taken))
            self._folds.add(made)
            return made

        return [*scan_in_parts(item, parts, self._partial, fresh)]

    def _rows_with_more(self, item: Definition) -> list[Var]:
        """The loops over rows that a fold to few numbers goes through, where other reductions made numbers of each row.

        Nothing if parts do not pay, or if rows are fewer than the parts that would keep the machine busy.
        """
        if item.loops or self._target.lanes == 1:
            return []
        made = [load for load in _loads(item) if load.buffer in self._rows]
        found = [v for v in item.reduced if v.extent != 1 and any(_steps(load, [v]) for load in made)]
        enough = guess(extent_of(tuple(found))) >= self._wanted(item) > 1
        return found if len(found) < len(item.reduced) and enough else []

    # -- how far ------------------------------------------------------------------------------------------------------

    def _wanted(self, item: Definition) -> int:
        """Parts that would keep the target busy, each with enough to do; 1 where splitting does not pay."""
        target = self._target
        outer = guess(extent_of(item.loops))
        across = _is_across(item, self.buffers)
        lanes = min(target.lanes, outer) if across else 1
        if across and outer > NARROWEST and guess(extent_of(item.reduced)) < _SHORTEST:
            return 1
        programs = -(-outer // lanes)
        if programs * _IDLE > target.programs:
            return 1
        most = guess(extent_of(item.reduced)) * lanes // target.chunk
        return min(target.programs // programs, _SMALLER * most) if most >= _LEAST else 1

    def _outermost(self, item: Definition, wanted: int) -> list[_Cut]:
        """Cuts of the outermost reduced loops into `wanted` parts altogether."""
        cuts: list[_Cut] = []
        loops = [var for var in item.reduced if var.extent != 1]
        for place, var in enumerate(loops):
            if wanted < 2:
                break
            if (extent := guess(var.extent)) <= wanted:
                cuts.append(self._cut(item, var, var.extent))
                wanted //= max(extent, 1)
            else:
                even = next((v for v in loops[place:] if _divides(_parts(v.extent, wanted), v.extent)), var)
                cuts.append(self._cut(item, even, _parts(even.extent, wanted)))
                break
        return cuts

    def _cut(self, item: Definition, var: Var, parts: Any) -> _Cut:
        taken = {v.name for v in (*item.loops, *item.reduced)}
        outer = next(name for k in range(len(taken) + 1) if (name := f"{var.name}_part{k or ''}") not in taken)
        if parts == var.extent:
            return _Cut(var, Var(outer, parts), Var(var.name, 1), True)
        length = quotient(add(var.extent, parts - 1), parts)
        return _Cut(var, Var(outer, parts), Var(var.name, length), mul(length, parts) == var.extent)

    # -- stages -------------------------------------------------------------------------------------------------------

    def _staged(self, item: Definition, cuts: Sequence[_Cut]) -> list[Item]:
        if not cuts:
            return [item]
        self.seconds.add(item.name)
        return [*self._stages(item, cuts)]

    def _stages(self, item: Definition, cuts: Sequence[_Cut]) -> tuple[Definition, Definition]:
        parts = tuple(cut.outer for cut in cuts)
        inner = {cut.var: cut.inner for cut in cuts}
        by = {cut.var: cut.index for cut in cuts}
        rewriter = Rewriter(atom=by.get)  # type: ignore[arg-type]
        inside = [_below(cut.index, cut.var.extent) for cut in cuts if not cut.exact]
        loops = (*parts, *item.loops)
        folds, stores, totals = [], [], []
        for reduction in item.reductions:
            values = tuple(map(rewriter, reduction.values))
            fold = _guarded(Reduction(_fresh(f"{reduction.name}_part", self._folds), reduction.reducer, values), inside)
            made = [self._partial(item, loops, dtype) for dtype in component_dtypes(fold.reducer, fold.values[0].dtype)]
            at = tuple(v.index() for v in loops)
            folds.append(fold)
            stores += [Store(b.name, at, Result(fold.name, k, b.dtype)) for k, b in enumerate(made)]
            states = tuple(Load(b.name, at, b.dtype) for b in made)
            totals.append(Reduction(reduction.name, folding_states(reduction.reducer), states))
        reduced = tuple(inner.get(v, v) for v in item.reduced)
        name = _fresh(f"{item.name}_part", self._items)
        first = replace(item, name=name, loops=loops, stores=tuple(stores), reduced=reduced, reductions=tuple(folds))
        return first, replace(item, reduced=parts, reductions=tuple(totals))

    def _partial(self, item: Definition, loops: tuple[Var, ...], dtype: torch.dtype) -> Buffer:
        name = _fresh(f"{item.name}_part", {*self.buffers})
        sizes = tuple(v.extent for v in loops)
        strides = tuple(extent_of(loops[d + 1 :]) for d in range(len(loops)))
        self.buffers[name] = Buffer(name, dtype, sizes, strides, self.buffers[item.stores[0].buffer].device)
        return self.buffers[name]


def _fresh(wanted: str, taken: set[str]) -> str:
    """A name that is not `taken`; now it is."""
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name


def _parts(extent: Any, wanted: int) -> int:
    """How many parts a loop is cut into: about `wanted`.

    If some divide the loop, neither half nor over twice of `wanted`, the ones whose length has the most factors of two:
    lanes go through it without tests.
    """
    fitting = [n for n in (*range(wanted, wanted // 2, -1), *range(wanted + 1, 2 * wanted + 1)) if _divides(n, extent)]
    if fitting:
        return max(fitting, key=lambda n: _twos(extent, n))
    power = 1 << (wanted.bit_length() - 1)
    length = -(-extent // power) if isinstance(extent, int) else 0
    return -(-extent // length) if length else power


def _divides(parts: int, extent: Any) -> bool:
    return bool(remainder(extent, parts) == 0)


def _twos(extent: Any, parts: int) -> int:
    """The largest power of two that divides the length of parts, no larger than a block needs."""
    return next(n for n in (_EVEN, 64, 32, 16, 8, 4, 2, 1) if remainder(extent, parts * n) == 0)


def _guarded(fold: Reduction, inside: Sequence[Value]) -> Reduction:
    """A fold that counts nothing where it is not `inside` of the loop that was cut."""
    if not inside:
        return fold
    (condition,) = inside
    reducer, values = fold.reducer, fold.values
    if reducer == "welford":  # no element counts nothing, a state does
        reducer, values = folding_states(reducer), _welford_element(values[0])
    nothing = identity(reducer, values[0].dtype)[: len(values)]  # of softmax: an element of minus infinity
    kept = tuple(Guarded(condition, v, constant(n, v.dtype), v.dtype) for v, n in zip(values, nothing, strict=True))
    return Reduction(fold.name, reducer, kept)


def _welford_element(x: Value) -> tuple[Value, ...]:
    """Mean, sum of squared differences and count of one element."""
    finite = Op("lt", (Op("abs", (x,), x.dtype), constant(torch.inf, x.dtype)), torch.bool)
    zero, lost, one = (constant(n, x.dtype) for n in (0.0, torch.nan, 1.0))
    return x, Op("where", (finite, zero, lost), x.dtype), one


def _below(index: Any, extent: Any) -> Value:
    """The condition ``index < extent``."""
    high = bounds(extent)[1]
    dtype = torch.int32 if high is not None and 2 * high < _INT32 else torch.int64
    limit: Value = Number(extent, dtype) if isinstance(extent, Index) else Const(extent, dtype)
    return Op("lt", (Number(index, dtype), limit), torch.bool)


# -- reads of a definition ---------------------------------------------------------------------------------------------


def _loads(item: Definition) -> list[Load]:
    return [v for v in walk([v for r in item.reductions for v in r.values]) if isinstance(v, Load)]


def _is_across(item: Definition, buffers: Mapping[str, Buffer]) -> bool:
    """Whether some of the memory that both step is contiguous along the outer loops, and not along the reduced ones."""
    outer, inner = ({v for v in side if v.extent != 1} for side in (item.loops, item.reduced))
    for load in _loads(flatten(item, buffers)):
        moved = variables_of(load.indices[0]) if load.indices else frozenset()
        if moved & outer and moved & inner:
            along = {v for v in moved - {OPAQUE} if digits(load.indices[0]).stride(v) == 1}
            if along & outer and not along & inner:
                return True
    return False


def _folds_rows(item: Definition, rows: Iterable[str]) -> bool:
    """Whether a fold to few numbers gathers by, or computes with, what other reductions made of each of its rows."""
    if item.loops or all(v.extent == 1 for v in item.reduced):
        return False
    loads = _loads(item)
    made = [load for load in loads if load.buffer in rows and _steps(load, item.reduced)]
    gathers = any(isinstance(atom, Loaded) for load in loads for i in load.indices for atom in atoms(i))
    return bool(made) and (gathers or len(loads) > 1)


def _steps(load: Load, loops: Sequence[Var]) -> bool:
    """Whether each iteration of `loops` loads an element of its own."""
    seen = frozenset().union(*map(variables_of, load.indices))
    return all(v in seen for v in loops if v.extent != 1)


__all__ = ["split_reductions"]
