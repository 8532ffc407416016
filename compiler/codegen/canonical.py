"""Kernels up to names: equal layers of a model give equal kernels, whose text is written once.

k3: add_3[i] = x_3[i] + y_3[i]        k9: add_9[i] = x_9[i] + y_9[i]        ->  one canonical kernel
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.accesses import statements
from ..ir.kernel import Assign, Fold, Kernel, Loop, Statement, Update
from ..ir.program import Buffer, Reduction, Store
from ..ir.value import Load, Result, Rewriter, Value


def canonical(kernel: Kernel) -> Kernel:
    """`kernel` with its buffers and reductions named by position; kernels equal up to names become equal objects."""
    return _Renaming(kernel).run()


class _Renaming:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._buffers = {p.buffer.name: f"p{k}" for k, p in enumerate(kernel.params)}
        self._buffers |= {buffer.name: f"s{k}" for k, buffer in enumerate(kernel.scratch)}
        # All at once: what a fold adds up may be the results of folds inside it.
        folds = [s for s in statements(kernel.body) if isinstance(s, Fold)]
        self._reductions = {r.name: f"f{k}" for k, r in enumerate(r for fold in folds for r in fold.reductions)}
        self._rename = Rewriter(value=self._value)

    def run(self) -> Kernel:
        kernel = self._kernel
        params = tuple(replace(p, buffer=self._buffer(p.buffer)) for p in kernel.params)
        scratch = tuple(map(self._buffer, kernel.scratch))
        return Kernel("", params, kernel.sizes, scratch, self._body(kernel.body))

    def _buffer(self, buffer: Buffer) -> Buffer:
        return replace(buffer, name=self._buffers[buffer.name])

    def _body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(map(self._statement, body))

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return Loop(statement.var, self._body(statement.body), statement.parallel)
        if isinstance(statement, Assign):
            return Assign(self._store(statement.store))
        if isinstance(statement, Fold):
            return Fold(tuple(map(self._reduction, statement.reductions)), self._body(statement.body))
        assert isinstance(statement, Update), statement
        return Update(self._reduction(statement.reduction))

    def _store(self, store: Store) -> Store:
        indices = tuple(map(self._rename.index, store.indices))
        return Store(self._buffers[store.buffer], indices, self._rename(store.value), store.mode)

    def _reduction(self, reduction: Reduction) -> Reduction:
        values = tuple(map(self._rename, reduction.values))
        return Reduction(self._reductions[reduction.name], reduction.reducer, values)

    def _value(self, value: Value) -> Value | None:
        if isinstance(value, Load):
            return Load(self._buffers[value.buffer], value.indices, value.dtype)
        if isinstance(value, Result):
            return Result(self._reductions[value.reduction], value.component, value.dtype)
        return None
