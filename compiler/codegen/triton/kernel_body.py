"""Writes the statements of a launch as Triton: stores, folds, and loops inside programs, with iterations in lanes.

fold sum:                                  s_lanes = tl.full([1, 1024], 0.0, tl.float32)
    for j < 5000: update with x[j]   ->    for first in range(0, 4096, 1024): s_lanes = join_sum(s_lanes, ...)
                                           s = tl.reduce(s_lanes, 1, join_sum, keep_dims=True)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...ir.accesses import accesses, loaded_buffers, statements, stored_buffers, updated
from ...ir.index.index import Var, mul
from ...ir.iteration_space import are_apart, extent_of, is_indirect, number_of, power_of_two
from ...ir.kernel import Assign, Fold, Loop, Statement, Update
from ...ir.launch import Blocks
from ...ir.program import Buffer, Reduction, Store
from ...ir.value import Load, compute_dtype
from ...ir.verify_launch import THREADS
from ...schedule.launches.plan import is_independent, is_scan, nest_of
from .dtypes import type_name
from .hoist import loaded_ahead
from .reductions import (
    added,
    begun,
    carriers,
    components_added,
    counted,
    elements,
    folded,
    initial,
    joined,
    neutral,
    scanned,
)
from .values import TileAxis, TritonValues, UnservedError
from .writer import TritonWriter, factor

_ATOMICS = ("add", "max", "min", "or", "and")
_ATOMIC_BYTES = 4  # of integers
_HELD = 64  # most values of a lane that wait in registers for the first store


class UnsupportedStoreError(Exception):
    """A store combines with the old value by an operation that is not available atomically on GPUs."""


class _State:
    """A fold in progress: its components are variables that are assigned repeatedly."""

    def __init__(self, reduction: Reduction, names: list[str], shape: str) -> None:
        self.reduction, self.names, self.shape, self.started = reduction, names, shape, False

    def results(self) -> list[str]:
        """The components as values; truth values are stored as numbers."""
        if self.reduction.values[0].dtype != torch.bool:
            return self.names
        return [f"({self.names[0]} != 0)", *self.names[1:]]


@dataclass(frozen=True)
class _Accumulators:
    """Partial results of each lane, while a loop runs in blocks.

    Args:
        names: the variables of the components, by reduction.
        number: the number of the current block, counted from 1, which is the number of elements that a lane has
            folded. It is a text if it is not known.
    """

    names: dict[str, list[str]]
    number: str | int

    def share(self, reduction: Reduction) -> str:
        """The weight of one element among all elements so far: one number for all lanes."""
        if isinstance(self.number, int):
            return repr(1.0 / self.number)
        return f"1.0 / (tl.full([1, 1], 0.0, {type_name(carriers(reduction)[0])}) + {self.number})"


class BodyWriter:
    """Writes the body of a program whose iterations are known.

    Args:
        out: takes the lines.
        values: the values that were computed, and the lanes.
        whole: all statements of the launch.
        params: the tensors that are passed to the launch.
        blocks: the maximum number of lanes of an inner loop, and the number of its steps that are pipelined.
    """

    def __init__(
        self,
        out: TritonWriter,
        values: TritonValues,
        whole: Sequence[Statement],
        params: Sequence[Buffer],
        blocks: Blocks,
    ) -> None:
        self._out, self._values, self._blocks = out, values, blocks
        self._read, self._written = loaded_buffers(whole), stored_buffers(whole)
        self._touches = Counter(access.buffer for access in accesses(whole))
        self._sizes = {b.name: b.sizes[0] if b.sizes else 1 for b in params}
        self._states: dict[str, _State] = {}
        self._axes: dict[Any, TileAxis] = {}

    def write(self, body: Sequence[Statement]) -> None:
        """Write statements."""
        self._before_stores(body)
        for statement in body:
            self._statement(statement)

    def _before_stores(self, body: Sequence[Statement]) -> None:
        """Load the values of several stores before the first store: the compiler moves no load across a store.

        y[i] = x[i];  y[i + 64] = z[i]     ->   t1 = x[i];  t2 = z[i];  y[i] = t1;  y[i + 64] = t2
        """
        rows, columns = (int(axis.length) if axis else 1 for axis in (self._values.rows, self._values.columns))
        held = len(body) * max(1, rows * columns // (THREADS * self._blocks.warps))
        if len(body) > 1 and held <= _HELD and all(isinstance(s, Assign) and s.store.mode is None for s in body):
            self.ahead(body, frozenset())

    def bound(self, name: str, loops: tuple[Var, ...], block: int, extent: Any) -> TileAxis:
        """The axis of lanes `name`, which numbers iterations; lanes from `extent` on are outside."""
        mask = None
        if not (isinstance(extent, int) and extent and extent % block == 0):
            mask = f"{name}_inside"
            self._out.line(f"{mask} = {name} < {self._values.at(extent)}")
        self.decode(name, loops)
        if len(loops) == 1:
            return TileAxis(frozenset(loops), str(block), mask)
        position = Var(f"{name}.position", extent)
        self._values.names.variables[position] = name
        return TileAxis(frozenset(loops), str(block), mask, number_of(loops), position)

    def decode(self, flat: str, loops: Sequence[Var]) -> None:
        """Compute the variables of loops, outermost first, from a position in all loops together."""
        stale = frozenset(loops)
        self._forget(stale)
        inner: Any = 1
        for position, var in reversed(list(enumerate(loops))):
            text = flat if inner == 1 else f"{factor(flat)} // {self._values.at(inner)}"
            if position:
                text = f"{factor(text)} % {self._values.at(var.extent)}"
            inner = mul(inner, var.extent)
            name = text
            if text != flat or not flat.isidentifier():
                name = self._out.fresh("i")
                self._out.line(f"{name} = {text}")
            self._values.names.variables[var] = name

    # -- statements -----------------------------------------------------------------------------------------------

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Assign):
            self._assign(statement.store)
        elif isinstance(statement, Update):
            self._update(statement.reduction)
        elif isinstance(statement, Fold):
            self._fold(statement)
        else:
            self._loop(statement)

    def _assign(self, store: Store) -> None:
        values, buffer, offset = self._values, store.buffer, store.indices[0]
        value = values.get(store.value)
        load = Load(buffer, store.indices, compute_dtype(values.names.dtypes[buffer]))
        if buffer in values.names.scratch:
            if store.mode is not None:  # several iterations may add to one place: in memory, where they see each other
                raise UnservedError(buffer)
            self._overwrite(buffer, offset)
            self._out.name(load, value)
            return
        pointer, mask = values.pointer(buffer, offset), values.mask(always=True)
        where = f", mask={mask}" if mask else ""
        held = type_name(values.names.dtypes[buffer])
        values.touch(buffer, offset, store.mode or "write")
        if store.mode is None:
            text = value if store.value.dtype == values.names.dtypes[buffer] else f"{value}.to({held})"
            self._out.line(f"tl.store({pointer}, {text}{where})")
        else:
            self._combine(store, pointer, value, held, where)
        self._forget_memory({buffer})
        if buffer in self._read and store.mode is None and not is_indirect(offset):
            kept = values.kept(value, buffer)
            self._out.name(load, kept if kept == value else self._out.define("", kept))

    def _combine(self, store: Store, pointer: str, value: str, held: str, where: str) -> None:
        kind = self._values.names.dtypes[store.buffer]
        served = store.mode == "add" if kind.is_floating_point else kind.itemsize >= _ATOMIC_BYTES
        if store.mode not in _ATOMICS or not served:
            raise UnsupportedStoreError(f"there is no atomic '{store.mode}' of {kind} on GPUs")
        whole = f"tl.broadcast_to({value}, {self._values.shape()}).to({held})"
        self._out.line(f'tl.atomic_{store.mode}({pointer}, {whole}{where}, sem="relaxed")')

    def _forget(self, sources: frozenset[Any]) -> None:
        """Forget the values that depend on any of `sources`."""
        self._out.forget(
            lambda key: bool(self._values.dependence.of(key[0] if isinstance(key, tuple) else key) & sources)
        )

    def _forget_memory(self, buffers: set[str]) -> None:
        self._forget(frozenset(("buffer", name) for name in buffers))

    def _overwrite(self, buffer: str, offset: Any) -> None:
        """Forget the values read from a scratch buffer, except at places that certainly differ from this one."""
        source = frozenset({("buffer", buffer)})
        self._out.forget(
            lambda key: (
                bool(self._values.dependence.of(key[0] if isinstance(key, tuple) else key) & source)
                and not (isinstance(key, Load) and are_apart(key.indices[0], offset))
            )
        )

    # -- folds ----------------------------------------------------------------------------------------------------

    def _fold(self, fold: Fold) -> None:
        stale = frozenset(("result", r.name) for r in fold.reductions)
        self._forget(stale)
        for reduction in fold.reductions:
            names = [f"{reduction.name}_{k}" for k in range(len(carriers(reduction)))]
            self._states[reduction.name] = _State(reduction, names, self._shape())
        for statement in fold.body:
            self._statement(statement)
        for reduction in fold.reductions:
            state = self._states.pop(reduction.name)
            self._start(state)
            self._publish(reduction, state.results())

    def _publish(self, reduction: Reduction, names: Sequence[str]) -> None:
        for component, name in enumerate(names):
            self._values.names.results[reduction.name, component] = name

    def _shape(self) -> str:
        """The shape of values that are the same for all iterations of inner loops."""
        rows = self._values.rows.length if self._values.rows else "1"
        columns = self._values.columns.length if self._values.columns else "1"
        return f"[{rows}, {columns}]"

    def _start(self, state: _State) -> None:
        if not state.started:
            for name, text in zip(state.names, initial(state.reduction, state.shape), strict=True):
                self._out.line(f"{name} = {text}")
            state.started = True

    def _join(self, state: _State, partial: list[str]) -> None:
        listed = ", ".join(state.names)
        if state.started:
            self._out.line(f"{listed} = {joined(state.reduction, state.names, partial)}")
        else:
            self._out.line(f"{listed} = {', '.join(begun(state.reduction, partial))}")
        state.started = True

    def _update(self, reduction: Reduction) -> None:
        """Fold the value of every lane; the lanes are iterations of loops around the fold."""
        state = self._states[reduction.name]
        operands = [self._values.get(value) for value in reduction.values]
        whole = [self._values.is_whole(value) for value in reduction.values]
        partial = [self._named(text) for text in elements(reduction, operands, state.shape, whole)]
        self._join(state, partial)
        self._publish(reduction, state.results())

    # -- loops inside a program -----------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        loops, body = nest_of(loop)
        if self._values.columns is None and is_independent(loops, body, self._own(body)):
            self._lanes(loops, body)
        else:
            self._serial(loop)

    def _own(self, body: Sequence[Statement]) -> frozenset[str]:
        """Scratch buffers that no other statements touch, and that each iteration stores to before it reads.

        for j < 500: { s[0] = f(x[j]);  y[j] = s[0] * s[0] }
        """
        inside = [access for access in accesses(body) if access.buffer in self._values.names.scratch]
        first = {access.buffer: access for access in reversed(inside)}
        counts = Counter(access.buffer for access in inside)
        return frozenset(
            name
            for name, access in first.items()
            if access.stored and access.mode is None and counts[name] == self._touches[name]
        )

    def _serial(self, loop: Loop) -> None:
        self._before(loop.body)
        self._forget(frozenset({loop.var}))  # an earlier loop over this variable was a different one
        self._forget_axes((loop.var,), None)
        name, before = self._out.fresh("i"), self._values.touched.copy()
        with self._out.block(f"for {name} in range({self._values.at(loop.var.extent)})"):
            self._barrier(loop.body)
            self._values.names.variables[loop.var] = name
            for statement in loop.body:
                self._statement(statement)
        self._values.perhaps(before, loop.var.extent)

    def _before(self, body: Sequence[Statement]) -> None:
        """Assign variables that a loop changes before it, and forget values that become stale inside."""
        for name in updated(body):
            if name in self._states:
                self._start(self._states[name])
        self._forget_memory(stored_buffers(body))
        own = frozenset(("result", name) for name in updated(body))
        self._forget(own)

    def _barrier(self, body: Sequence[Statement]) -> None:
        """Synchronize iterations: each sees the stores of earlier ones, and stores after them."""
        stores = Counter(s.store.buffer for s in statements(body) if isinstance(s, Assign))
        loaded = loaded_buffers(body)
        memory = stores.keys() - self._values.names.scratch
        if any(name in loaded or stores[name] > 1 for name in memory):
            self._values.barrier()

    def _lanes(self, loops: tuple[Var, ...], body: tuple[Statement, ...]) -> None:
        extent, most = extent_of(loops), self._blocks.column_block
        if isinstance(extent, int) and extent <= most:
            self._at_once(loops, body, extent)
        else:
            self._in_blocks(loops, body, extent, most)
        self._values.columns = None

    def _at_once(self, loops: tuple[Var, ...], body: tuple[Statement, ...], extent: int) -> None:
        block = max(power_of_two(extent), min(self._blocks.column_block, self._fewest_lanes()))
        key = ("axis", *loops)
        found = self._out.find(key)
        if found is None:
            name = self._out.name(key, self._out.fresh("r"))
            self._out.line(f"{name} = tl.arange(0, {block})[None, :]")
            self._forget_axes(loops, key)
            self._axes[key] = self.bound(name, loops, block, extent)
        self._values.columns = self._axes[key]
        self._lane_body(body, None, self._values.at(extent))

    def _fewest_lanes(self) -> int:
        """The fewest lanes of a row that give each thread an element, so that Triton loads each element once.

        Triton assumes that loads of fewer elements than threads are cheap. If the result of such a block meets a longer
        block, it repeats the load and the fold in the longer block's layout: every thread does all of it.
        """
        return THREADS * self._blocks.warps // int(self._values.rows.length if self._values.rows else 1)

    def _forget_axes(self, loops: tuple[Var, ...], but: Any) -> None:
        """Forget the other axes over a loop variable, so that the variable has one meaning."""
        taken = frozenset(loops)
        self._out.forget(lambda key: _is_axis(key) and key != but and bool(taken & frozenset(key[1:])))

    def _in_blocks(self, loops: tuple[Var, ...], body: tuple[Statement, ...], extent: Any, block: int) -> None:
        carried = [self._states[n] for n in updated(body) if n in self._states]
        scan = is_scan(body)
        lanes: dict[str, list[str]] = {}
        if scan:
            self._before(body)
        else:
            self._forget_memory(stored_buffers(body))
            lanes = {s.reduction.name: self._accumulators(s, block) for s in carried}
        if isinstance(extent, int) and extent:
            self.ahead(body, frozenset(loops))
        whole = extent if scan or not isinstance(extent, int) else extent // block * block
        first, before = self._out.fresh("first"), self._values.touched.copy()
        steps = f"range(0, {self._values.at(whole)}, {block})"
        if block == 1 and isinstance(extent, int):
            steps = f"tl.static_range({extent})"
        with self._out.block(f"for {first} in {steps}"):
            if scan:
                self._barrier(body)
            self._one_block(loops, body, (first, block, whole), _Accumulators(lanes, f"({first} // {block} + 1)"))
        self._values.perhaps(before, whole)
        if whole != extent:  # the other blocks need no mask, which would make accesses narrow
            self._forget_memory(stored_buffers(body))
            if scan:
                self._barrier(body)
            with self._out.apart():
                last = _Accumulators(lanes, whole // block + 1)
                self._one_block(loops, body, (str(whole), block, extent), last)
        for state in carried if not scan else ():
            own, text = lanes[state.reduction.name], self._values.at(extent)
            for line in counted(state.reduction, own, self._lanes_shape(block), text, block):
                self._out.line(line)
            self._reduce(state, own, text)

    def _one_block(
        self,
        loops: tuple[Var, ...],
        body: tuple[Statement, ...],
        lanes: tuple[str, int, Any],
        accumulators: _Accumulators,
    ) -> None:
        """Write a body over `lanes`: their beginning, their number, and the end of the last one."""
        first, block, extent = lanes
        name = self._out.fresh("r")
        self._out.line(f"{name} = {first} + tl.arange(0, {block})[None, :]")
        self._forget_axes(loops, None)
        self._values.columns = self.bound(name, loops, block, extent)
        self._lane_body(body, accumulators)
        self._values.columns = None
        stale = frozenset(loops)
        self._forget(stale)

    def ahead(self, body: Sequence[Statement], lanes: frozenset[Var]) -> None:
        """Write the values that are the same for all of `lanes`."""
        changed = lanes | {("buffer", name) for name in self._written}
        changed |= {("result", name) for name in updated(body)}
        for value in loaded_ahead(body, changed, self._values.dependence, self._sizes):
            self._values.get(value)

    def _accumulators(self, state: _State, block: int) -> list[str]:
        """Declare partial results of each lane, at the identity."""
        names = [f"{name}_lanes" for name in state.names]
        for name, text in zip(names, initial(state.reduction, self._lanes_shape(block)), strict=True):
            self._out.line(f"{name} = {text}")
        return names

    def _lanes_shape(self, block: int) -> str:
        rows = self._values.rows.length if self._values.rows else "1"
        return f"[{rows}, {block}]"

    def _reduce(self, state: _State, lanes: Sequence[str], number: str) -> None:
        """Join the partial results of lanes, which have this many elements together."""
        partial = [self._out.fresh() for _ in lanes]
        self._out.line(f"{', '.join(partial)} = {folded(state.reduction, lanes, number)}")
        self._join(state, partial)
        self._publish(state.reduction, state.results())

    def _lane_body(self, body: tuple[Statement, ...], lanes: _Accumulators | None, number: str = "") -> None:
        """Write statements of a loop whose iterations are lanes.

        `lanes` are the accumulators if the loop runs in blocks. Otherwise the loop has `number` iterations.
        """
        scan = is_scan(body)
        self._before_stores(body)
        for statement in body:
            if not isinstance(statement, Update) or statement.reduction.name not in self._states:
                self._statement(statement)
                continue
            reduction = statement.reduction
            state = self._states[reduction.name]
            partial = self._masked(reduction, None if lanes is None or scan else components_added(reduction))
            if scan:
                self._scan(state, partial)
            elif lanes is None:
                self._reduce(state, partial, number)
            else:
                inside = self._values.columns.mask if self._values.columns else None
                self._out.line(added(reduction, lanes.names[reduction.name], partial, lanes.share(reduction), inside))

    def _masked(self, reduction: Reduction, most: int | None) -> list[str]:
        """The initial components for the element of each lane; the identity for lanes outside of the loop."""
        columns = self._values.columns
        assert columns is not None
        shape = self._values.shape()
        operands = [self._values.get(value) for value in reduction.values]
        whole = [self._values.is_whole(value) for value in reduction.values]
        found = [self._named(text) for text in elements(reduction, operands, shape, whole)[:most]]
        if columns.mask is None:
            return found
        pairs = zip(found, neutral(reduction), strict=False)
        return [self._out.define("", f"tl.where({columns.mask}, {name}, {none})") for name, none in pairs]

    def _named(self, text: str) -> str:
        return text if text.isidentifier() else self._out.define("", text)

    def _scan(self, state: _State, partial: list[str]) -> None:
        """Compute the partial results in every lane; the state becomes the result of all lanes."""
        so_far = [self._out.fresh() for _ in partial]
        self._out.line(f"{', '.join(so_far)} = {scanned(state.reduction, partial)}")
        if state.started:
            self._out.line(f"{', '.join(so_far)} = {joined(state.reduction, state.names, so_far)}")
        else:
            self._out.line(f"{', '.join(so_far)} = {', '.join(begun(state.reduction, so_far))}")
        self._forget_results(state.reduction)
        held = _State(state.reduction, so_far, "")
        self._publish(state.reduction, held.results())
        whole = [self._out.fresh() for _ in partial]
        self._out.line(f"{', '.join(whole)} = {folded(state.reduction, partial)}")
        self._join(state, whole)

    def _forget_results(self, reduction: Reduction) -> None:
        own = frozenset({("result", reduction.name)})
        self._forget(own)


def _is_axis(key: Any) -> bool:
    return isinstance(key, tuple) and key[0] == "axis"
