"""Kernels made plain for code generation: one offset an access, and index arithmetic no wider than it must be.

x[i, j] of strides (768, 1)        ->  x[768*i + j]
le(Number(j, i64), Number(i, i64)) ->  le(Number(j, i32), Number(i, i32))       where both fit
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from ..ir.index.bounds import bounds
from ..ir.kernel import Assign, Fold, Kernel, Loop, Statement, Update
from ..ir.program import Buffer, Reduction, Store
from ..ir.value import Const, Load, Number, Op, Rewriter, Value

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def flatten(kernel: Kernel) -> Kernel:
    """The kernel with every `Load` and `Store` at one index, an offset in elements."""
    buffers = {b.name: b for b in [*(p.buffer for p in kernel.params), *kernel.scratch]}
    return _Flattening(buffers).kernel(kernel)


def flatten_value(value: Value, buffers: Iterable[Buffer]) -> Value:
    """A value made plain like those of a kernel; it loads from `buffers`."""
    return _Flattening({b.name: b for b in buffers}).value(value)


class _Flattening:
    def __init__(self, buffers: dict[str, Buffer]) -> None:
        self._buffers = buffers
        self._rewrite = Rewriter(value=self._value)

    def value(self, value: Value) -> Value:
        return self._rewrite(value)

    def kernel(self, kernel: Kernel) -> Kernel:
        return replace(kernel, body=self._block(kernel.body))

    def _block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(map(self._statement, body))

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return Loop(statement.var, self._block(statement.body), statement.parallel)
        if isinstance(statement, Fold):
            return Fold(tuple(map(self._reduction, statement.reductions)), self._block(statement.body))
        if isinstance(statement, Update):
            return Update(self._reduction(statement.reduction))
        assert isinstance(statement, Assign), statement
        return Assign(self._store(statement.store))

    def _reduction(self, reduction: Reduction) -> Reduction:
        return replace(reduction, values=tuple(map(self._rewrite, reduction.values)))

    def _store(self, store: Store) -> Store:
        at = self._offset(store.buffer, tuple(map(self._rewrite.index, store.indices)))
        return replace(store, indices=(at,), value=self._rewrite(store.value))

    def _offset(self, buffer: str, indices: tuple[Any, ...]) -> Any:
        return sum((at * step for at, step in zip(indices, self._buffers[buffer].strides, strict=True)), 0)

    def _value(self, value: Value) -> Value | None:
        if isinstance(value, Load):
            return Load(value.buffer, (self._offset(value.buffer, value.indices),), value.dtype)
        if isinstance(value, Op) and value.name in _COMPARISONS:
            narrow = tuple(map(_narrowed, value.args))
            return Op(value.name, narrow, value.dtype) if None not in narrow else None
        if isinstance(value, Op) and value.name == "cast" and value.dtype == torch.float32:
            source = value.args[0]
            return (
                Number(source.index, value.dtype) if isinstance(source, Number) and _fits(source.index, 2**24) else None
            )
        return None


def _narrowed(value: Value) -> Value | None:
    if value.dtype == torch.int64 and isinstance(value, Const) and _fits(value.number, 2**31):
        return Const(value.number, torch.int32)
    if value.dtype == torch.int64 and isinstance(value, Number) and _fits(value.index, 2**31):
        return Number(value.index, torch.int32)
    return None


def _fits(number: Any, limit: int) -> bool:
    low, high = bounds(number)
    return low is not None and high is not None and -limit < low and high < limit
