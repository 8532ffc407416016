"""Lowering: a functional ATen graph becomes a loop program, node by node.

    %view = aten.view(%x, [8, 16])             (a view: no definition, an index map on x)
    %relu = aten.relu(%view)             ->    for i < 8, j < 16: relu[i, j] = maximum(x[16*i + j], 0)
    %fft  = aten._fft_r2c(%relu, ...)          extern fft

Each operator has one function, declared with `@lowers("aten.relu")`, that takes the node's arguments as `Tensor`s,
numbers and lists, and returns a `Tensor` (or a tuple of them), created by methods of `Lowering`. A lowering raises
`Unlowered(code, message)` for calls that it does not support; then a decomposition is tried, or the node stays a call.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..ir.index.index import Loaded, Var, add, atoms, mul
from ..ir.program import Buffer, Definition, Reduction, Store, StoreMode
from ..ir.reducers import REDUCERS
from ..ir.value import Const, Load, Op, Result, Rewriter, Value, compute_dtype
from .sizes import Unlowered, number

Indices = tuple[Any, ...]
TABLE_SPAN = "regraft_span"  # metadata of a constant of integers: the smallest and the largest of them
LOWERINGS: dict[str, Callable[..., Any]] = {}


def lowers(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the lowering of operators, named ``"aten.relu"`` (all overloads) or ``"aten.sum.dim_IntList"``.

    The function is called with the lowering in progress and the operator's arguments in the order of its schema, with
    defaults for missing arguments. Keyword-only arguments of the schema are passed by keyword.
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in LOWERINGS:
                raise ValueError(f"{name} has a lowering already: {LOWERINGS[name].__qualname__}")
            LOWERINGS[name] = function
        return function

    return declare


@dataclass(frozen=True)
class Tensor:
    """A lowered tensor: a buffer accessed through an index map.

    Args:
        buffer: the memory of the elements.
        sizes: integers or indices.
        where: maps the tensor's indices of an element to the buffer's.
        dtype: the dtype of the elements in eager (bfloat16 stays bfloat16 here).
        span: the smallest and the largest element, for integers whose range is known.
    """

    buffer: Buffer
    sizes: Indices
    where: Callable[[Indices], Indices]
    dtype: torch.dtype
    span: tuple[int, int] | None = field(default=None, kw_only=True)

    def at(self, indices: Sequence[Any]) -> Value:
        """The element at `indices`, in the dtype of the computation."""
        assert len(indices) == len(self.sizes), (indices, self.sizes)
        element = Load(self.buffer.name, self.where(tuple(indices)), compute_dtype(self.dtype))
        if self.span is None:
            return element
        # An operation that does not change the value carries its range: indices in range need no check.
        least, greatest = (Const(number, element.dtype) for number in self.span)
        return Op("minimum", (Op("maximum", (element, least), element.dtype), greatest), element.dtype)

    def viewed(self, sizes: Sequence[Any], back: Callable[[Indices], Indices]) -> Tensor:
        """A view: `back` gives this tensor's indices of an element of the view."""
        where = self.where
        return replace(self, sizes=tuple(sizes), where=lambda i: where(back(i)))

    @property
    def is_whole(self) -> bool:
        """Whether this is the buffer itself, not a view of it."""
        return self.where is _identity


def _identity(indices: Indices) -> Indices:
    return indices


def whole(buffer: Buffer) -> Tensor:
    """All of a buffer as a tensor."""
    return Tensor(buffer, buffer.sizes, _identity, buffer.dtype)


class Lowering:
    """The program being built, and the methods with which lowerings extend it.

    Names, devices and strides come from the current node's name and metadata, so that lowerings only contain formulas.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.items: list[Any] = []
        self.current: Any = None  # the fx node being lowered, for its metadata
        self.output: int | None = None  # index of the current result, for lowerings that compute results one by one
        self.origin: Any = None  # the node of the graph: the current node, or the one being decomposed
        self.device = torch.device("cpu")
        self.numbers: dict[Any, Value] = {}  # Python numbers that the graph computes, by symbolic expression
        self._names: dict[tuple[str, str], int] = {}

    # -- building blocks ------------------------------------------------------------------------------------------

    def loops(self, sizes: Sequence[Any], prefix: str = "i") -> tuple[Var, ...]:
        """One variable for each size."""
        return tuple(Var(f"{prefix}{d}", size) for d, size in enumerate(sizes))

    def pointwise(
        self,
        compute: Callable[[Indices], Value],
        sizes: Sequence[Any],
        dtype: torch.dtype,
        *,
        strides: Sequence[Any] | None = None,
        output: int | None = None,
    ) -> Tensor:
        """A new tensor whose element at (i, j, ...) is ``compute((i, j, ...))``; output `output` of the node's."""
        loops = self.loops(sizes)
        at = tuple(v.index() for v in loops)
        made = self.buffer(sizes, dtype, strides, output)
        self.define(loops, [Store(made.name, at, compute(at))])
        return whole(made)

    def reduce(  # noqa: PLR0913
        self,
        reducer: str,
        compute: Callable[[Indices, Indices], Value | tuple[Value, ...]],
        sizes: Sequence[Any],
        reduced: Sequence[Any],
        finish: Callable[[Indices, tuple[Value, ...]], Value | tuple[Value, ...]],
        dtypes: Sequence[torch.dtype],
        *,
        shapes: Sequence[Sequence[Any]] | None = None,
        strides: Sequence[Any] | None = None,
        output: int | None = None,
    ) -> tuple[Tensor, ...]:
        """New tensors from one reduction.

        Args:
            reducer: one of `REDUCERS`.
            compute: the reducer's operands, given the outer and the reduced indices.
            sizes: extents of the outer loops.
            reduced: extents of the reduced loops.
            finish: the stored values, given the outer indices and the components: one for each of `dtypes`.
            dtypes: the dtypes of the new tensors.
            shapes: their sizes if they differ from `sizes` (keepdim: with inserted 1s); dims of size 1 get index 0,
                others
                the loops in order.
            strides: those of the new tensors, if they are not those of the node's results.
            output: the index of the first tensor among the node's outputs, if there are several.
        """
        loops, folded = self.loops(sizes), self.loops(reduced, "r")
        outer, inner = tuple(v.index() for v in loops), tuple(v.index() for v in folded)
        operands = compute(outer, inner)
        operands = operands if isinstance(operands, tuple) else (operands,)
        reduction = Reduction(self.name("fold", "fold"), reducer, operands)
        kinds = REDUCERS[reducer].components
        components = tuple(
            Result(reduction.name, k, torch.int64 if kind == "int64" else operands[0].dtype)
            for k, kind in enumerate(kinds)
        )
        values = finish(outer, components)
        values = values if isinstance(values, tuple) else (values,)
        made, stores = [], []
        for k, (value, dtype) in enumerate(zip(values, dtypes, strict=True)):
            shape = shapes[k] if shapes is not None else sizes
            position = k + (output or 0) if len(dtypes) > 1 or output is not None else None
            buffer = self.buffer(shape, dtype, strides, output=position)
            stores.append(Store(buffer.name, _spread(outer, sizes, shape), value))
            made.append(whole(buffer))
        self.define(loops, stores, folded, (reduction,))
        return tuple(made)

    def store(
        self,
        into: Tensor,
        loops: Sequence[Var],
        indices: Indices,
        value: Value,
        mode: StoreMode | None = None,
    ) -> None:
        """Write (or combine) `value` into part of a tensor, at `indices` of it, for every iteration of `loops`.

        For scatters (with mode), parts of a concatenation (`into` is then new memory from `buffer`), writes to inputs.

        Raises:
            Unlowered: results depend on the order of stores, which a GPU does not define, and deterministic algorithms
                are on.
        """
        if self.device.type != "cpu" and torch.are_deterministic_algorithms_enabled():
            self._require_no_order(indices, value, mode)
        self.define(tuple(loops), [Store(into.buffer.name, into.where(indices), value, mode)])

    def _require_no_order(self, indices: Indices, value: Value, mode: StoreMode | None) -> None:
        """Accept stores whose order does not matter: sums of integers, equal values, maxima and minima."""
        if mode in ("add", "mul"):
            shows = value.dtype.is_floating_point
        else:
            shows = mode is None and not isinstance(value, Const) and any(map(_is_read, indices))
        if shows:
            raise Unlowered("order", "stores to one place in no fixed order, with deterministic algorithms on")

    def define(
        self,
        loops: tuple[Var, ...],
        stores: Sequence[Store],
        reduced: tuple[Var, ...] = (),
        reductions: tuple[Reduction, ...] = (),
        scan: bool = False,
    ) -> None:
        """Add a definition; values are in compute dtypes and are converted to the buffers' dtypes when stored."""
        kept = tuple(replace(s, value=cast(s.value, compute_dtype(self.buffers[s.buffer].dtype))) for s in stores)
        name, rule = self.name(self._node_name(), "item"), getattr(self.origin, "meta", {}).get("regraft_rule", "")
        nodes = (self._node_name(),)
        self.items.append(Definition(name, loops, kept, reduced, reductions, scan, nodes, rule))

    def buffer(
        self,
        sizes: Sequence[Any],
        dtype: torch.dtype,
        strides: Sequence[Any] | None = None,
        output: int | None = None,
    ) -> Buffer:
        """New memory.

        Strides are by default those of the current node's metadata (its output `output`, of a tuple) where sizes fit
        it, else contiguous.
        """
        strides = strides if strides is not None else self._strides(tuple(sizes), output)
        name = self.name(self._node_name())
        made = Buffer(name, dtype, tuple(sizes), tuple(strides), self.device)
        self.buffers[name] = made
        return made

    def name(self, base: str, space: str = "buffer") -> str:
        """A name that is not used among the buffers (items, folds)."""
        count = self._names.get((space, base), 0)
        self._names[space, base] = count + 1
        return base if count == 0 else f"{base}_{count}_"

    def _node_name(self) -> str:
        return getattr(self.origin, "name", "value")

    # -- what a lowering did, as a whole ---------------------------------------------------------------------------

    def mark(self) -> tuple[int, int]:
        """The current state, for `roll_back` and `rename`."""
        return len(self.buffers), len(self.items)

    def roll_back(self, mark: tuple[int, int]) -> None:
        """Remove everything that was added since."""
        for name in list(self.buffers)[mark[0] :]:
            del self.buffers[name]
        del self.items[mark[1] :]
        for space in ("buffer", "item"):
            self._names.pop((space, self._node_name()), None)

    def made_since(self, mark: tuple[int, int]) -> list[str]:
        """Buffers added since."""
        return list(self.buffers)[mark[0] :]

    def rename(self, names: dict[str, str], mark: tuple[int, int]) -> None:
        """Rename buffers that were added since; a buffer whose name is needed for another gets a new one."""
        if all(old == new for old, new in names.items()):
            return
        taken = {new for old, new in names.items() if new in self.buffers and new not in names and old != new}
        names = {**names, **{name: self.name(name) for name in taken}}
        fresh = {name: self.buffers.pop(name) for name in self.made_since(mark)}
        self.buffers.update((names.get(n, n), replace(b, name=names.get(n, n))) for n, b in fresh.items())
        renamed = Renamed(names)
        self.items[mark[1] :] = [renamed(item) for item in self.items[mark[1] :]]

    def _strides(self, sizes: Indices, output: int | None) -> Indices:
        meta, output = getattr(self.current, "meta", {}).get("val"), self.output if output is None else output
        meta = meta[output] if output is not None and isinstance(meta, (tuple, list)) else meta
        if isinstance(meta, torch.Tensor) and tuple(map(number, meta.shape)) == sizes:
            return tuple(map(number, meta.stride()))
        return contiguous(sizes)


class Renamed:
    """Definitions with other names of buffers; other items stay as they are."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names, self._values = names, Rewriter(value=self._load)

    def __call__(self, item: Any) -> Any:
        """The item."""
        if not isinstance(item, Definition):
            return item
        stores = tuple(map(self._store, item.stores))
        reductions = tuple(replace(r, values=tuple(map(self._values, r.values))) for r in item.reductions)
        return replace(item, stores=stores, reductions=reductions)

    def _store(self, store: Store) -> Store:
        indices = tuple(map(self._values.index, store.indices))
        name = self._names.get(store.buffer, store.buffer)
        return replace(store, buffer=name, indices=indices, value=self._values(store.value))

    def _load(self, value: Value) -> Value | None:
        if isinstance(value, Load) and value.buffer in self._names:
            return Load(self._names[value.buffer], value.indices, value.dtype)
        return None


def contiguous(sizes: Sequence[Any]) -> Indices:
    """Row-major strides."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step = mul(step, size)
    return tuple(reversed(strides))


def cast(value: Value, dtype: torch.dtype) -> Value:
    """`value` converted to a compute dtype; the value itself if it has that dtype."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Const) and (dtype.is_floating_point or math.isfinite(value.number)):
        return const(value.number, dtype)
    return Op("cast", (value,), dtype)


def const(number: bool | int | float, dtype: torch.dtype) -> Const:
    """A constant of a compute dtype, as a Python number of that dtype: rounded, or wrapped around."""
    if dtype == torch.bool:
        return Const(bool(number), dtype)
    if dtype.is_floating_point:
        return Const(ctypes.c_float(number).value if dtype == torch.float32 else float(number), dtype)
    info = torch.iinfo(dtype)
    return Const((int(number) - info.min) % (info.max - info.min + 1) + info.min, dtype)


def _is_read(index: Any) -> bool:
    """Whether an index is read from memory, in whole or in part."""
    return any(isinstance(atom, Loaded) for atom in atoms(index))


def _spread(indices: Indices, extents: Sequence[Any], shape: Sequence[Any]) -> Indices:
    """Indices of a buffer with dims of size 1 that have no loop: their index is 0."""
    rest = list(zip(indices, extents, strict=True))
    spread = tuple(rest.pop(0)[0] if rest and rest[0][1] == size else 0 for size in shape)
    assert not rest, f"loops of {extents} do not fit the shape {shape}"
    return spread


__all__ = [
    "LOWERINGS", "Lowering", "Tensor", "Unlowered", "add", "cast", "const", "contiguous", "lowers", "number", "whole",
]  # fmt: skip
