"""Checks of values and stores: dtypes, arity, rank, scope and ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from .folds import component_dtypes
from .index.bounds import known_lt, known_nonnegative
from .index.index import Atom, Index, Loaded, Size, Var, atoms
from .index.positive import assuming_iterations
from .ops import OPS, SHIFTS
from .printer import dtype_text, index_text, value_text
from .program import Buffer, Reduction, Store
from .reducers import REDUCERS, algebra_of
from .value import Const, Guarded, Load, Op, Result, Value, compute_dtype, indices_of, operands, walk

Code = Literal["unknown", "name", "arity", "dtype", "rank", "scope", "range", "order", "access", "launch", "lanes"]

_TEXT = 120


@dataclass(frozen=True)
class ProgramFault:
    """Something wrong with a program or a kernel.

    Args:
        code: what kind of wrong: ``unknown`` operation, reducer or buffer; ``name`` taken twice or no identifier;
            ``arity``, ``dtype``, ``rank``; ``scope`` of variables, results, sizes; ``range``: an index is not provably
            within its buffer; ``order``: read before written; ``access``: not what a param allows; ``launch``: not
            one that covers the loops of a kernel once, or that a GPU can run; ``lanes``: the same of the vectors and
            threads of a CPU.
        where: the item or kernel.
        message: what, in words.
    """

    code: Code
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.code}: {self.message}"


@dataclass(frozen=True)
class NameScope:
    """The names that a statement may mention.

    Args:
        where: the item or kernel, for findings.
        buffers: by name.
        variables: loop variables.
        results: reductions whose results may be read, by name.
        sizes: symbolic sizes; None: any.
    """

    where: str
    buffers: Mapping[str, Buffer]
    variables: frozenset[Var] = frozenset()
    results: Mapping[str, Reduction] = field(default_factory=dict)
    sizes: frozenset[Size] | None = None

    def inside(self, *variables: Var) -> NameScope:
        """The scope within loops."""
        return replace(self, variables=self.variables.union(variables))

    def with_results(self, reductions: Iterable[Reduction]) -> NameScope:
        """The scope where these reductions are done."""
        return replace(self, results={**self.results, **{r.name: r for r in reductions}})

    def found(self, code: Code, message: str) -> ProgramFault:
        """A finding here."""
        return ProgramFault(code, self.where, message)

    @property
    def runs(self) -> bool:
        """Whether anything can run here: no loop around has a constant extent of 0."""
        return all(var.extent != 0 for var in self.variables)


def store_findings(store: Store, scope: NameScope) -> Iterator[ProgramFault]:
    """Findings on a store."""
    buffer = scope.buffers.get(store.buffer)
    yield from value_findings([store.value], scope)
    if buffer is None:
        yield scope.found("unknown", f"stores to {store.buffer}, which is no buffer")
        return
    if store.value.dtype != compute_dtype(buffer.dtype):
        stored, wanted = dtype_text(store.value.dtype), dtype_text(compute_dtype(buffer.dtype))
        yield scope.found("dtype", f"stores {stored} into {store.buffer}, which takes {wanted}")
    for index in store.indices:
        yield from _index_findings(index, scope)
        yield from value_findings([a.value for a in atoms(index) if isinstance(a, Loaded)], scope)
    yield from _rank_findings(buffer, store.indices, scope)
    yield from _range_findings(buffer, store.indices, scope)


def reduction_findings(reduction: Reduction, scope: NameScope) -> Iterator[ProgramFault]:
    """Findings on a reduction's operands."""
    yield from value_findings(reduction.values, scope)
    reducer = REDUCERS.get(reduction.reducer)
    if reducer is None:
        yield scope.found("unknown", f"{reduction.reducer} is no reducer")
    elif len(reduction.values) != reducer.operands:
        yield scope.found("arity", f"{reduction.reducer} takes {reducer.operands} operands: {reduction.name}")
    elif "int64" in reducer.components and reduction.values[1].dtype != torch.int64:
        yield scope.found("dtype", f"positions are int64: {reduction.name}")
    elif reducer.folds and len({value.dtype for value in reduction.values}) > 1:
        yield scope.found("dtype", f"components are of one dtype: {reduction.name}")
    elif REDUCERS[algebra_of(reduction.reducer)].floating and not reduction.values[0].dtype.is_floating_point:
        yield scope.found("dtype", f"{reduction.reducer} takes floating operands: {reduction.name}")


def value_findings(roots: Iterable[Value], scope: NameScope) -> Iterator[ProgramFault]:
    """Findings on values, those below them included."""
    roots = list(roots)
    for value in walk(roots):
        yield from _own_findings(value, scope)
        for index in indices_of(value):
            yield from _index_findings(index, scope)
    for value in _unguarded(roots):
        if isinstance(value, Load) and value.buffer in scope.buffers:
            yield from _range_findings(scope.buffers[value.buffer], value.indices, scope)


def _own_findings(value: Value, scope: NameScope) -> Iterator[ProgramFault]:
    if value.dtype != compute_dtype(value.dtype):
        yield scope.found("dtype", f"{dtype_text(value.dtype)} is not computed in: {_short(value)}")
    check = _CHECKS.get(type(value))
    if check is not None:
        yield from check(value, scope)


def _const(value: Const, scope: NameScope) -> Iterator[ProgramFault]:
    kind = bool if value.dtype == torch.bool else float if value.dtype.is_floating_point else int
    if type(value.number) is not kind and not (kind is int and isinstance(value.number, Index)):
        yield scope.found("dtype", f"{value.number!r} is no {dtype_text(value.dtype)}")


def _load(value: Load, scope: NameScope) -> Iterator[ProgramFault]:
    buffer = scope.buffers.get(value.buffer)
    if buffer is None:
        yield scope.found("unknown", f"loads {value.buffer}, which is no buffer")
        return
    if value.dtype != compute_dtype(buffer.dtype):
        yield scope.found("dtype", f"loads {dtype_text(buffer.dtype)} as {dtype_text(value.dtype)}: {_short(value)}")
    yield from _rank_findings(buffer, value.indices, scope)


def _operation(value: Op, scope: NameScope) -> Iterator[ProgramFault]:
    info = OPS.get(value.name)
    if info is None:
        yield scope.found("unknown", f"{value.name} is no operation")
    elif len(value.args) != info.arity:
        yield scope.found("arity", f"{value.name} takes {info.arity} operands, got {len(value.args)}")
    else:
        wrong = _wrong_dtypes(value)
        if wrong:
            yield scope.found("dtype", f"{wrong}: {_short(value)}")


def _wrong_dtypes(value: Op) -> str | None:
    info, dtypes = OPS[value.name], [arg.dtype for arg in value.args]
    if value.name == "where":
        if dtypes.pop(0) != torch.bool:
            return "a condition is bool"
    elif value.name in SHIFTS and dtypes.pop().is_floating_point:
        return "the amount of a shift is an integer"
    if len(set(dtypes)) > 1:
        return f"{value.name} of {', '.join(map(dtype_text, dtypes))}"
    if info.floating and not dtypes[-1].is_floating_point:
        return f"{value.name} takes floats"
    if info.bits and dtypes[-1].is_floating_point:
        return f"{value.name} takes integers"
    if value.name == "bitcast" and value.dtype.itemsize != dtypes[-1].itemsize:
        return "bitcast keeps the width"
    expected = {"same": dtypes[-1], "bool": torch.bool, "given": value.dtype}[info.result]
    return None if value.dtype == expected else f"{value.name} gives {dtype_text(expected)}"


def _guarded(value: Guarded, scope: NameScope) -> Iterator[ProgramFault]:
    if value.condition.dtype != torch.bool:
        yield scope.found("dtype", f"a condition is bool: {_short(value)}")
    if not value.dtype == value.value.dtype == value.other.dtype:
        yield scope.found("dtype", f"both branches are of the dtype of the whole: {_short(value)}")


def _result(value: Result, scope: NameScope) -> Iterator[ProgramFault]:
    reduction = scope.results.get(value.reduction)
    if reduction is None:
        yield scope.found("scope", f"the result of {value.reduction} is not there yet, or no more")
        return
    if reduction.reducer not in REDUCERS or not reduction.values:
        return
    dtypes = component_dtypes(reduction.reducer, reduction.values[0].dtype)
    if value.component >= len(dtypes):
        yield scope.found("arity", f"{value.reduction} has {len(dtypes)} components, not {value.component + 1}")
    elif value.dtype != dtypes[value.component]:
        yield scope.found("dtype", f"{value.reduction} gives {dtype_text(dtypes[value.component])}")


_CHECKS: dict[type[Value], Callable[[Any, NameScope], Iterator[ProgramFault]]] = {
    Const: _const, Load: _load, Op: _operation, Guarded: _guarded, Result: _result,
}  # fmt: skip


def _index_findings(index: Any, scope: NameScope) -> Iterator[ProgramFault]:
    for atom in atoms(index):
        if isinstance(atom, Var) and atom not in scope.variables:
            yield scope.found("scope", f"the variable {atom.name} < {index_text(atom.extent)} has no loop here")
        elif isinstance(atom, Loaded):
            if atom.value.dtype.is_floating_point or atom.value.dtype == torch.bool:
                yield scope.found("dtype", f"an index is an integer: {_short(atom.value)}")
            yield from _index_findings(atom.size, scope)
        else:
            yield from size_findings(atom, scope)


def size_findings(atom: Atom, scope: NameScope) -> Iterator[ProgramFault]:
    """Findings on the mention of a symbolic size."""
    if isinstance(atom, Size) and scope.sizes is not None and atom not in scope.sizes:
        yield scope.found("scope", f"the size {atom.name} is not passed")


def _rank_findings(buffer: Buffer, indices: tuple[Any, ...], scope: NameScope) -> Iterator[ProgramFault]:
    if len(indices) != len(buffer.sizes):
        yield scope.found("rank", f"{len(indices)} indices of {buffer.name}, which has {len(buffer.sizes)} dims")


def _range_findings(buffer: Buffer, indices: tuple[Any, ...], scope: NameScope) -> Iterator[ProgramFault]:
    if not scope.runs:
        return
    for dim, (index, size) in enumerate(zip(indices, buffer.sizes, strict=False)):
        (place, end), _ = assuming_iterations((index, size))
        if not (known_nonnegative(place) and known_lt(place, end)):
            yield scope.found("range", f"{index_text(index)} may leave dim {dim} of {buffer.name}, {index_text(size)}")


def _unguarded(roots: Iterable[Value]) -> Iterator[Value]:
    """The values that are evaluated in every iteration."""
    seen: set[Value] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        stack.extend([value.condition] if isinstance(value, Guarded) else operands(value))


def _short(value: Value) -> str:
    text = value_text(value)
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."


__all__ = ["NameScope", "ProgramFault", "reduction_findings", "size_findings", "store_findings", "value_findings"]
