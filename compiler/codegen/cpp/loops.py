"""Writes loops, folds and stores as C++, in the lanes that loops carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...ir.accesses import loop_variables, roots, statements, stored_buffers, updated, values
from ...ir.dependence import Sources
from ...ir.index.bounds import bounds
from ...ir.index.index import Index, Loaded, Var, atoms, mul
from ...ir.kernel import Assign, Fold, Loop, Statement, Update
from ...ir.lanes import Lanes, LoopTile, Turned
from ...ir.program import Reduction
from ...ir.reducers import REDUCERS
from ...ir.value import Guarded, Load, Op, Result, Value, indices_of, operands, walk
from .plan import weight_of
from .reductions import Accumulators
from .stores import exclusive, write_store
from .turned import IN_TURNS, WRITTEN
from .value_text import CppValues, Vectors, depends_on, may_fail
from .woven import columns, woven

_GROUP = 64  # number of runs that are joined into a group, before groups are joined
_Part = Callable[[Sequence[Accumulators], str, str], None]


class Loops:
    """Writes statements.

    Args:
        out: writes values.
        apart: whether functions transpose rows (`are_apart`).
        parallel: variables of loops whose iterations several threads run. Stores to the same element are then atomic.
    """

    def __init__(self, out: CppValues, apart: bool, parallel: frozenset[Var] = frozenset()) -> None:
        self._out, self._rows_apart, self._parallel = out, apart, parallel
        self._writer = out.writer
        self._folds: dict[str, Accumulators] = {}
        self._around: Fold | None = None  # the fold that is being written

    def block(self, body: Iterable[Statement]) -> None:
        """Write statements in order."""
        for statement in body:
            if isinstance(statement, Loop) and (states := self._long(statement)):
                self._in_runs(statement, states)
            elif isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, Fold):
                self.fold(statement)
            elif isinstance(statement, Update):
                self._update(statement.reduction)
            else:
                assert isinstance(statement, Assign), statement
                store = statement.store
                shared = bool(self._parallel) and not exclusive(store, self._parallel)
                write_store(self._out, store, shared and store.mode is not None)

    # -- loops ----------------------------------------------------------------------------------------------------

    def loop(self, loop: Loop, begin: str = "0ll", end: str | None = None) -> None:
        """Write a loop from `begin` to `end`, by default to its extent. In lanes `begin` is a multiple of the step."""
        self._out.prepare(loop.var.extent)
        if loop.var.extent == 0:
            return
        whole = end is None
        end = self._out.at(loop.var.extent) if end is None else end
        self._writer.forget(depends_on(self._out.dependence, _changed(loop)))
        strategy = loop.lanes if self._out.vectors is None else None
        if isinstance(strategy, LoopTile):
            self._tiles(loop, strategy, begin, end)
            return
        self._hoist(loop)
        if isinstance(strategy, Lanes):
            self._lanes(loop, strategy, begin, end, whole)
            return
        if isinstance(loop.lanes, Turned) and self._out.vectors is not None and not self._out.mask:
            self._in_rows(loop, loop.lanes, begin, end)
            return
        name = self._named(loop.var)
        with self._writer.block(f"for (i64 {name} = {begin}; {name} < {end}; ++{name})"):
            self.block(loop.body)

    def _named(self, var: Var) -> str:
        name = self._out.names.variables[var] = self._writer.fresh("v")
        return name

    def _lanes(self, loop: Loop, strategy: Lanes, begin: str, end: str, whole: bool) -> None:
        """Write iterations for all copies, for one copy, and the rest under a mask; omit parts that cannot run."""
        name, lanes = self._named(loop.var), strategy.lanes
        step, extent = lanes * strategy.copies, loop.var.extent
        # A chunk is a whole number of steps, so only the last chunk has a rest.
        left = extent % step if isinstance(extent, int) else None
        with self._writer.block():
            self._writer.line(f"i64 {name} = {begin};")
            if left is None or not whole or extent >= step:
                with self._writer.block(f"for (; {name} + {step} <= {end}; {name} += {step})"):
                    self._in_lanes(loop, strategy, strategy.copies, None)
            if strategy.copies > 1 and (left is None or left >= lanes):
                with self._writer.block(f"for (; {name} + {lanes} <= {end}; {name} += {lanes})"):
                    self._in_lanes(loop, strategy, 1, None)
            if left is None or left % lanes:
                with self._writer.block(f"if ({name} < {end})"):
                    mask = self._writer.define(f"V<i32, {lanes}>", f"first<{lanes}>({end} - {name})")
                    self._in_lanes(loop, strategy, 1, mask)

    def _in_lanes(self, loop: Loop, strategy: Lanes, copies: int, mask: str | None) -> None:
        lanes, expanded, dependence = strategy.lanes, strategy.expanded, self._out.dependence
        vectors = Vectors(loop.var, lanes, copies, varying_in(loop, expanded), expanded, spread=lanes)
        found = woven(loop.body, loop.var, dependence), columns(loop.body, loop.var, lanes, dependence)
        vectors = replace(vectors, woven=found[0], columns=found[1])
        self._with(vectors, mask, lambda: self.block(loop.body))

    def _with(self, vectors: Vectors, mask: str | None, write: Callable[[], None]) -> None:
        self._out.vectors = vectors
        with self._out.masked(mask):
            write()
        self._out.vectors = None

    # -- tiles ----------------------------------------------------------------------------------------------------

    def _tiles(self, loop: Loop, tile: LoopTile, begin: str, end: str) -> None:
        """Square tiles: transposed loads pass through registers or through memory on the stack, row by row."""
        inner = _inner(loop)
        lanes, block, column = tile.lanes, self._writer.fresh("v"), self._named(inner.var)
        self._out.prepare(inner.var.extent)
        limit, fixed = self._out.at(inner.var.extent), inner.var.extent
        step = lanes * tile.copies
        with self._writer.block(f"for (i64 {block} = {begin}; {block} < {end}; {block} += {step})"):
            last = self._writer.define("i64", f"least<i64>({block} + {step}, {end})")
            self._writer.line(f"i64 {column} = 0;")
            if not isinstance(fixed, int) or fixed >= lanes:
                with self._writer.block(f"for (; {column} + {lanes} <= {limit}; {column} += {lanes})"):
                    self._tile_column(loop, tile, block, last, f"{lanes}")
            if not isinstance(fixed, int) or fixed % lanes:
                with self._writer.block(f"if ({column} < {limit})"):
                    self._tile_column(loop, tile, block, last, self._writer.define("i64", f"{limit} - {column}"))

    def _tile_column(self, loop: Loop, tile: LoopTile, first: str, last: str, columns: str) -> None:
        row = self._named(loop.var)
        with self._writer.block(f"for (i64 {row} = {first}; {row} < {last}; {row} += {tile.lanes})"):
            rows = self._writer.define("i64", f"least<i64>({tile.lanes}, {last} - {row})")
            if not tile.unrolled or self._rows_apart or columns != f"{tile.lanes}":
                self._tile(loop, tile, rows, columns)
                return
            if isinstance(loop.var.extent, int) and loop.var.extent < tile.lanes:
                self._whole_tile(loop, tile, loop.var.extent)
                return
            with self._writer.block(f"if ({rows} == {tile.lanes})"):
                self._whole_tile(loop, tile, tile.lanes)
            with self._writer.block("else"):
                self._tile(loop, tile, rows, columns)

    def _whole_tile(self, loop: Loop, tile: LoopTile, count: int) -> None:
        """A tile in registers: its only load is transposed there, and its `count` rows are written one by one."""
        (load,), lanes, first = tile.loads, tile.lanes, self._out.names.variables[loop.var]
        kind, address, step = self._turned(load, loop, tile)
        rows, at = self._writer.fresh(), self._writer.fresh("v")
        self._writer.line(f"V<Raw<{kind}>, {lanes}> {rows}[{lanes}];")
        suffix, left = ("", "") if count == lanes else ("_if", f", {count}")
        self._writer.line(f"load_rows{suffix}({rows}, {address}, {step}{left});")
        self._writer.line(f"#pragma GCC unroll {count}")
        with self._writer.block(f"for (int {at} = 0; {at} < {count}; ++{at})"):
            self._writer.line(f"const i64 {self._named(loop.var)} = {first} + {at};")
            self._row(loop, tile, {load: f"Codec<{kind}>::up_lanes<{lanes}>({rows}[{at}])"}, None)
        self._out.names.variables[loop.var] = first

    def _row(self, loop: Loop, tile: LoopTile, turned: dict[Load, str], mask: str | None) -> None:
        inner = _inner(loop)
        vectors = Vectors(inner.var, tile.lanes, 1, varying_in(inner, frozenset()), tiles=turned)
        self._with(vectors, mask, lambda: self.block(inner.body))

    def _tile(self, loop: Loop, tile: LoopTile, rows: str, columns: str) -> None:
        lanes, first = tile.lanes, self._out.names.variables[loop.var]
        memory = {load: self._transposed(load, loop, tile, rows, columns) for load in tile.loads}
        row = self._named(loop.var)
        with self._writer.block(f"for (i64 {row} = {first}; {row} < {first} + {rows}; ++{row})"):
            turned = {load: f"load<{lanes}>({name} + ({row} - {first}) * {lanes})" for load, name in memory.items()}
            mask = None
            if columns != f"{lanes}":
                mask = self._writer.define(f"V<i32, {lanes}>", f"first<{lanes}>({columns})")
            self._row(loop, tile, turned, mask)
        self._out.names.variables[loop.var] = first

    def _transposed(self, load: Load, loop: Loop, tile: LoopTile, rows: str, columns: str) -> str:
        lanes, name = tile.lanes, self._writer.fresh()
        kind, address, step = self._turned(load, loop, tile)
        self._writer.line(f"alignas(64) {kind} {name}[{lanes * lanes}];")
        self._writer.line(f"load_tile<{lanes}>({name}, {address}, {step}, {columns}, {rows});")
        return name

    def _turned(self, load: Load, loop: Loop, tile: LoopTile) -> tuple[str, str, str]:
        """The source of a transposed load: type, address of its first element, number of elements between columns."""
        offset = load.indices[0]
        self._out.prepare(offset)
        step = self._out.at(self._out.dependence.stride(offset, _inner(loop).var, tile.lanes))
        kind = f"Bare<decltype(*{self._out.names.buffers[load.buffer]})>::type"
        return kind, self._out.address(load.buffer, offset), step

    # -- rows along a loop inside lanes ---------------------------------------------------------------------------

    def _in_rows(self, loop: Loop, turned: Turned, begin: str, end: str) -> None:
        """Write blocks of as many iterations as there are lanes, then the rest: as part of a block, or one by one."""
        around, extent = self._out.vectors, loop.var.extent
        assert around is not None
        lanes, first = around.lanes, self._named(loop.var)
        whole = isinstance(extent, int) and begin == "0ll" and end == self._out.at(extent)
        with self._writer.block():
            self._writer.line(f"i64 {first} = {begin};")
            if not whole or extent >= lanes:
                with self._writer.block(f"for (; {first} + {lanes} <= {end}; {first} += {lanes})"):
                    self._block_of_rows(loop, turned, first, lanes)
            if whole and extent % lanes:
                with self._writer.block():
                    self._block_of_rows(loop, turned, first, extent % lanes)
            elif not whole:
                with self._writer.block(f"for (; {first} < {end}; ++{first})"):
                    self.block(loop.body)

    def _block_of_rows(self, loop: Loop, turned: Turned, first: str, count: int) -> None:
        """Write a block of `count` iterations, at most one a lane: rows of `count` elements, transposed."""
        around = self._out.vectors
        assert around is not None
        loads = {load: self._rows(load.buffer, load.indices[0], around.lanes) for load in turned.loads}
        stores = {store: self._rows(store.buffer, store.indices[0], around.lanes) for store in turned.stores}
        for rows, address, step, _ in loads.values():
            self._move_rows("load", rows, address, step, count)
        at = self._writer.fresh("v")
        work = count * sum(map(weight_of, set(values(loop.body))))
        whole = any(self._in_turns(step, count) for _, _, step, _ in (*loads.values(), *stores.values()))
        unrolled = whole and work <= WRITTEN and not self._rows_apart
        self._writer.line(f"#pragma GCC unroll {count if unrolled else 1}")
        with self._writer.block(f"for (int {at} = 0; {at} < {count}; ++{at})"):
            self._writer.line(f"const i64 {self._named(loop.var)} = {first} + {at};")
            tiles = {v: f"Codec<{kind}>::up_lanes<{around.lanes}>({r}[{at}])" for v, (r, _, _, kind) in loads.items()}
            kept = {s: (f"{r}[{at}]", kind) for s, (r, _, _, kind) in stores.items()}
            self._out.vectors = replace(around, tiles=tiles, rows=kept)
            self.block(loop.body)
        self._out.vectors, self._out.names.variables[loop.var] = around, first
        for rows, address, step, _ in stores.values():
            self._move_rows("store", rows, address, step, count)

    def _move_rows(self, how: str, rows: str, address: str, step: str, count: int) -> None:
        """Load or store the rows of a block; rows of a few elements that follow one another are whole vectors."""
        assert self._out.vectors is not None
        apart = "_apart" if self._rows_apart else ""
        if self._in_turns(step, count):
            self._writer.line(f"{how}_turns{apart}<{count}>({rows}, {address});")
        else:
            suffix, left = ("", "") if count == self._out.vectors.lanes else ("_if", f", {count}")
            self._writer.line(f"{how}_rows{suffix}{apart}({rows}, {address}, {step}{left});")

    def _in_turns(self, step: str, count: int) -> bool:
        """Whether rows of `count` elements are taken apart as whole vectors: the next one begins where one ends."""
        return count in IN_TURNS and step == self._out.at(count)

    def _rows(self, buffer: str, offset: Any, lanes: int) -> tuple[str, str, str, str]:
        """Declare vectors for rows of a buffer: their name, the address of the first lane's row, the step, the type."""
        assert self._out.vectors is not None
        self._out.prepare(offset)
        rows, kind = self._writer.fresh(), f"Bare<decltype(*{self._out.names.buffers[buffer]})>::type"
        step = self._out.at(self._out.dependence.stride(offset, self._out.vectors.var, lanes))
        self._writer.line(f"V<Raw<{kind}>, {lanes}> {rows}[{lanes}];")
        return rows, self._out.address(buffer, offset), step, kind

    # -- folds ----------------------------------------------------------------------------------------------------

    def fold(self, fold: Fold) -> dict[tuple[str, int], str]:
        """Write a fold; its results are named after it. Outside of lanes the results are scalars, and returned."""
        return self.finish(self._started(fold, lambda: self.block(fold.body)))

    def part(self, fold: Fold, loop: Loop, begin: str, end: str) -> list[Accumulators]:
        """Write iterations `begin` to `end` of a fold's loop; copies and lanes are not joined."""
        return self._started(fold, lambda: self.loop(loop, begin, end))

    def _started(self, fold: Fold, write: Callable[[], None]) -> list[Accumulators]:
        made = [self._start(reduction, fold) for reduction in fold.reductions]
        around, self._around = self._around, fold
        write()
        self._around = around
        return made

    def _start(self, reduction: Reduction, fold: Fold) -> Accumulators:
        """Declare the accumulators of a reduction at the identity; later updates fold into them."""
        lanes, copies = self._shape(fold)
        made = Accumulators(self._writer, reduction, lanes, copies)
        made.start()
        self._current(made)
        return made

    def finish(self, made: Sequence[Accumulators]) -> dict[tuple[str, int], str]:
        """Join copies and lanes; the results are valid from here on."""
        results = self._out.names.results
        scalars: dict[tuple[str, int], str] = {}
        for state in made:
            name = state.reduction.name
            self._writer.forget(depends_on(self._out.dependence, frozenset({("result", name)})))
            if self._out.vectors is not None:
                continue
            state.join_copies()
            for component, text in enumerate(state.join_lanes()):
                results[name, component] = scalars[name, component] = text
        return scalars

    def _shape(self, fold: Fold) -> tuple[int | None, int]:
        if self._out.vectors is not None:
            return self._out.vectors.lanes, self._out.vectors.copies
        return shape_of(fold)

    def _current(self, state: Accumulators) -> None:
        """Within the block, updates go to `state`, and partial results are read from it."""
        name = state.reduction.name
        self._folds[name] = state
        for copy, names in enumerate(state.names):
            for component, text in enumerate(names):
                self._out.names.results[name, component, copy] = text
                if not copy:
                    self._out.names.results[name, component] = text

    def _update(self, reduction: Reduction) -> None:
        state, out = self._folds[reduction.name], self._out
        if out.vectors is None:
            state.update([out.get(v) for v in reduction.values], 0, None)
        else:
            for copy in range(out.vectors.copies):
                state.update([out.vector(v, copy) for v in reduction.values], copy, out.mask)
        self._writer.forget(depends_on(out.dependence, frozenset({("result", reduction.name)})))

    # -- long sums ------------------------------------------------------------------------------------------------

    def _long(self, loop: Loop) -> list[Accumulators]:
        """The accumulators of so many elements of a loop that rounding errors require partial results.

        Each loop of a nest is asked, from the outside. Scans have none, since their partial results are read.
        """
        fold = self._around
        if fold is None:
            return []
        scanned = {v.reduction for v in values(fold.body) if isinstance(v, Result)}
        folded = {r.name for r in fold.reductions} - scanned
        inside = {name: r for name, r in updated(loop.body).items() if name in folded and _run_of([r])}
        run, trips = _run_of(inside.values()), _trips(loop)
        long = run and (trips is None or trips > 2 * run * self._step(fold))
        return [self._folds[name] for name in inside] if long else []

    def _step(self, fold: Fold) -> int:
        lanes, copies = self._shape(fold)
        return 1 if self._out.vectors is not None or lanes is None else lanes * copies

    def _in_runs(self, loop: Loop, totals: Sequence[Accumulators]) -> None:
        """Fold runs apart: ``a += x[j]``  ->  ``b = 0``, for j in the run ``b += x[j]``, then ``a += b``.

        If there are very many runs, groups of runs are folded apart too.
        """
        inner, trips = _trips_inside(loop), _trips(loop)
        lanes = loop.lanes if self._out.vectors is None else None
        step = lanes.lanes * lanes.copies if isinstance(lanes, Lanes) else 1
        run = _run_of(t.reduction for t in totals) or 1
        each = max(1, run // max(1, inner if inner is not None else run)) * step
        self._out.prepare(loop.var.extent)
        end = self._out.at(loop.var.extent)
        self._writer.forget(depends_on(self._out.dependence, _changed(loop)))
        one: _Part = lambda _, begin, end: self.loop(loop, begin, end)  # noqa: E731
        group: _Part = lambda made, begin, end: self._apart(made, begin, end, each, one)  # noqa: E731
        if trips is not None and trips <= _GROUP * run * step:
            self._apart(totals, "0", end, each, one)
        else:
            self._apart(totals, "0", end, _GROUP * each, group)

    def _apart(self, totals: Sequence[Accumulators], start: str, end: str, each: int, write: _Part) -> None:
        """Fold parts of `each` iterations apart, and join them; `write` takes accumulators, begin and end of a part."""
        begin = self._writer.fresh("v")
        with self._writer.block(f"for (i64 {begin} = {start}; {begin} < {end}; {begin} += {each})"):
            parts = [Accumulators(self._writer, t.reduction, t.lanes, len(t.names)) for t in totals]
            for part in parts:
                part.start()
                self._current(part)
            write(parts, begin, self._writer.define("i64", f"least<i64>({begin} + {each}, {end})"))
            for total, part in zip(totals, parts, strict=True):
                for copy in range(len(total.names)):
                    total.join(part, copy)
        for total in totals:
            self._current(total)

    # -- loop invariants -----------------------------------------------------------------------------------------

    def _hoist(self, loop: Loop) -> None:
        """Compute the invariants of a loop before it."""
        changed, runs = _changed(loop) | frozenset({loop.var}), _runs(loop)
        stack, seen = [r for s in statements(loop.body) for r in roots(s)], set[Value]()
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if not self._out.dependence.of(value) & changed and self._worth(value, runs):
                for copy in self._copies(value):
                    self._out.get(value, copy)
            elif isinstance(value, Guarded):
                stack.append(value.condition)
            else:
                stack.extend(operands(value))
        if runs:
            self._hoist_checks(loop.body, changed)

    def _hoist_checks(self, body: Iterable[Statement], changed: Sources) -> None:
        """Read and check the indices of rows that a loop goes through before it: in each iteration, they are the same.

        Not those of loops inside that may not run, nor what only some iterations read.
        """
        for statement in body:
            if isinstance(statement, Fold) or (isinstance(statement, Loop) and _runs(statement)):
                self._hoist_checks(statement.body, changed)
            stack, seen = list(roots(statement)), set[Value]()
            numbers = list(statement.store.indices) if isinstance(statement, Assign) else []
            while stack:
                value = stack.pop()
                if value not in seen:
                    seen.add(value)
                    numbers += indices_of(value)
                    stack += [value.condition] if isinstance(value, Guarded) else operands(value)
            for atom in (atom for number in numbers if isinstance(number, Index) for atom in atoms(number)):
                if isinstance(atom, Loaded) and not self._out.dependence.of(atom.index()) & changed:
                    for copy in self._copies(atom.index()):
                        self._out.prepare(atom.index(), copy)

    def _copies(self, what: Any) -> range:
        """The vectors that something has: one if lanes agree on it."""
        vectors = self._out.vectors
        return range(vectors.copies if vectors is not None and self._out.varies(what) else 1)

    def _worth(self, value: Value, runs: bool) -> bool:
        if not isinstance(value, (Op, Load)):
            return False
        return runs or not any(map(may_fail, walk([value])))


def _inner(loop: Loop) -> Loop:
    """The loop that a loop is tiled with."""
    (inner,) = loop.body
    assert isinstance(inner, Loop), inner
    return inner


def varying_in(loop: Loop, expanded: frozenset[str]) -> Sources:
    """The values that differ from lane to lane in a loop in lanes."""
    folds = {("result", r.name) for s in statements(loop.body) if isinstance(s, Fold) for r in s.reductions}
    return frozenset({loop.var, *folds, *(("buffer", name) for name in expanded)})


def shape_of(fold: Fold) -> tuple[int | None, int]:
    """The lanes and copies of the accumulators of a fold whose own loop is not in lanes."""
    names = {r.name for r in fold.reductions}
    inside = [s for s in statements(fold.body) if isinstance(s, Loop) and names & updated(s.body).keys()]
    found = [s for loop in inside if isinstance(s := loop.lanes, Lanes)]
    return (found[0].lanes, max(s.copies for s in found)) if found else (None, 1)


def _run_of(reductions: Iterable[Reduction]) -> int | None:
    """The number of iterations of a run; None if the order of folding does not change the result."""
    runs = [REDUCERS[r.reducer].run for r in reductions if r.values[0].dtype.is_floating_point]
    return min((run for run in runs if run is not None), default=None)


def _changed(loop: Loop) -> Sources:
    """The variables, buffers and results that change while a loop runs."""
    results = {("result", name) for name in updated(loop.body)}
    results |= {("result", r.name) for s in statements(loop.body) if isinstance(s, Fold) for r in s.reductions}
    written = {("buffer", name) for name in stored_buffers(loop.body)}
    return frozenset({loop.var, *results, *written, *loop_variables(loop.body)})


def _runs(loop: Loop) -> bool:
    """Whether a loop is known to have an iteration."""
    low = bounds(loop.var.extent)[0]
    return low is not None and low > 0


def _trips(loop: Loop) -> int | None:
    inner = _trips_inside(loop)
    total = mul(loop.var.extent, 1 if inner is None else inner)
    return None if inner is None else bounds(total)[1]


def _trips_inside(loop: Loop) -> int | None:
    """An upper bound on the number of times that the updates of the body run in each iteration."""
    most = 1
    for statement in loop.body:
        if isinstance(statement, Loop):
            trips = _trips(statement)
            if trips is None:
                return None
            most = max(most, trips)
    return most
