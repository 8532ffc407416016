"""Kernels up to names: equal layers of a model give equal kernels, whose text is written once.

k3: add_3[i] = x_3[i] + y_3[i]        k9: add_9[i] = x_9[i] + y_9[i]        ->  one canonical kernel

`sized` also takes out how many iterations the outermost loops have: kernels over 10 and over 589824 elements are one.
`beginnings` are where a kernel first touches its buffers: kernels of the columns of a table are one from there on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from .accesses import accesses, statements
from .index.index import Atom, Index, Size, Var
from .kernel import Assign, Fold, Kernel, Loop, Statement, Update
from .launch import Launch
from .program import Buffer, Reduction, Store
from .value import Load, Result, Rewriter, Value

COUNT = "n"  # what `sized` calls the number of iterations
MOST_ITERATIONS = 1 << 28  # of it: 32 bits hold all indices, and what lanes outside of the loop make of them


def canonical(kernel: Kernel, moved: Mapping[str, int] | None = None) -> Kernel:
    """`kernel` with its buffers and reductions named by position; kernels equal up to names become equal objects.

    Args:
        kernel: what computes it.
        moved: elements that buffers begin later at, by name: see `beginnings`.
    """
    return _Renaming(kernel, moved=moved).run()


def beginnings(kernel: Kernel) -> dict[str, int]:
    """The first element that a kernel touches of each buffer; left out: 0, and those whose accesses may go down.

    y[i] = x[4*i + 8] + x[4*i + 9]   ->   {"x": 8}
    """
    first: dict[str, int | None] = {p.buffer.name: None for p in kernel.params if not p.buffer.scalar}
    for access in accesses(kernel.body):
        if access.buffer not in first:
            continue
        least, known = _least(access.offset), first[access.buffer]
        if least is None:
            del first[access.buffer]
        else:
            first[access.buffer] = least if known is None else min(known, least)
    return {name: element for name, element in first.items() if element}


def _least(offset: Any) -> int | None:
    """The value of an index at its first place, where all that is added to it counts up from 0."""
    if not isinstance(offset, Index):
        return offset if isinstance(offset, int) else None
    if any(coefficient < 0 for _, coefficient in offset.terms):
        return None
    return next((coefficient for monomial, coefficient in offset.terms if not monomial), 0)


def sized(
    kernel: Kernel, most: int = MOST_ITERATIONS, moved: Mapping[str, int] | None = None
) -> tuple[Kernel, int | None]:
    """A kernel up to names and up to the number of iterations of its outermost loops, and that number.

    for k < 589824 parallel: y[k] = f(x[k])   ->   (for k < n parallel: p0[k] = f(p1[k]), 589824)

    Args:
        kernel: what computes it.
        most: iterations that the result is written for.
        moved: as of `canonical`.

    Returns:
        a canonical kernel with the one size `COUNT`, and the value that it has in `kernel`; None where it stays a
        number: outermost loops differ, are too long, or their number is no integer.
    """
    plain = tuple(replace(p, buffer=replace(p.buffer, kind="made")) for p in kernel.params)
    kernel = replace(kernel, params=plain)
    outermost = list(_outermost(kernel.body))
    var = outermost[0].var if outermost else None
    if var is None or kernel.sizes or any(loop.var is not var for loop in outermost):
        return canonical(kernel, moved), None
    inside = (s for loop in outermost for s in statements(loop.body))
    again = any(isinstance(s, Loop) and s.var is var for s in inside)
    if again or not isinstance(var.extent, int) or not 1 < var.extent <= most:
        return canonical(kernel, moved), None
    size = Size(COUNT, 1, most)
    made = _Renaming(kernel, {var: Var(var.name, size.index())}, {var.extent: size.index()}, moved).run()
    return replace(made, sizes=(size,)), var.extent


def _outermost(body: Iterable[Statement]) -> Iterator[Loop]:
    """Loops that no other loop is around."""
    for statement in body:
        if isinstance(statement, Loop):
            yield statement
        elif isinstance(statement, Fold):
            yield from _outermost(statement.body)


class _Renaming:
    """Names by position; `variables` become others, and so do the sizes of buffers in `extents`; some are `moved`."""

    def __init__(
        self,
        kernel: Kernel,
        variables: Mapping[Var, Var] | None = None,
        extents: Mapping[Any, Any] | None = None,
        moved: Mapping[str, int] | None = None,
    ) -> None:
        self._kernel, self._variables, self._extents = kernel, variables or {}, extents or {}
        self._moved = moved or {}
        self._buffers = {p.buffer.name: f"p{k}" for k, p in enumerate(kernel.params)}
        self._buffers |= {buffer.name: f"s{k}" for k, buffer in enumerate(kernel.scratch)}
        # All at once: what a fold adds up may be the results of folds inside it.
        folds = [s for s in statements(kernel.body) if isinstance(s, Fold)]
        self._reductions = {r.name: f"f{k}" for k, r in enumerate(r for fold in folds for r in fold.reductions)}
        self._rename = Rewriter(value=self._value, atom=self._atom) if self._variables else Rewriter(value=self._value)

    def run(self) -> Kernel:
        kernel = self._kernel
        params = tuple(replace(p, buffer=self._buffer(p.buffer)) for p in kernel.params)
        scratch = tuple(map(self._scratch, kernel.scratch))
        parts = tuple(map(self._part, kernel.parts))
        body = self._body(kernel.body)
        more: dict[str, Any] = {"early": kernel.early, "examples": kernel.examples, "launches": self._launches(kernel)}
        return Kernel("", params, kernel.sizes, scratch, body, parts=parts, shared=kernel.shared, **more)

    def _launches(self, kernel: Kernel) -> tuple[Launch, ...]:
        """Launches over the loops of the result."""
        if not self._variables:
            return kernel.launches
        return tuple(one.over([self._variables.get(var, var) for var in one.loops]) for one in kernel.launches)

    def _part(self, part: Kernel) -> Kernel:
        """A part by the names of the whole."""
        params = tuple(replace(p, buffer=self._buffer(p.buffer)) for p in part.params)
        scratch, body = tuple(map(self._scratch, part.scratch)), self._body(part.body)
        return Kernel("", params, part.sizes, scratch, body, examples=part.examples, launches=part.launches)

    def _buffer(self, buffer: Buffer) -> Buffer:
        sizes = tuple(self._extents.get(size, size) for size in buffer.sizes)
        return replace(buffer, name=self._buffers[buffer.name], sizes=sizes)

    def _scratch(self, buffer: Buffer) -> Buffer:
        return replace(buffer, name=self._buffers[buffer.name])

    def _atom(self, atom: Atom) -> Any:
        made = self._variables.get(atom) if isinstance(atom, Var) else None
        return None if made is None else made.index()

    def _body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(map(self._statement, body))

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return Loop(
                self._variables.get(statement.var, statement.var), self._body(statement.body), statement.parallel
            )
        if isinstance(statement, Assign):
            return Assign(self._store(statement.store))
        if isinstance(statement, Fold):
            return Fold(tuple(map(self._reduction, statement.reductions)), self._body(statement.body))
        assert isinstance(statement, Update), statement
        return Update(self._reduction(statement.reduction))

    def _store(self, store: Store) -> Store:
        indices = self._at(store.buffer, tuple(map(self._rename.index, store.indices)))
        return Store(self._buffers[store.buffer], indices, self._rename(store.value), store.mode)

    def _reduction(self, reduction: Reduction) -> Reduction:
        values = tuple(map(self._rename, reduction.values))
        return Reduction(self._reductions[reduction.name], reduction.reducer, values)

    def _at(self, buffer: str, indices: tuple[Any, ...]) -> tuple[Any, ...]:
        """Indices into a buffer that begins later."""
        by = self._moved.get(buffer, 0)
        return tuple(index - by for index in indices) if by else indices

    def _value(self, value: Value) -> Value | None:
        if isinstance(value, Load):
            return Load(self._buffers[value.buffer], self._at(value.buffer, value.indices), value.dtype)
        if isinstance(value, Result):
            return Result(self._reductions[value.reduction], value.component, value.dtype)
        return None
