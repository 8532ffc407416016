"""Simplifies kernels for code generation: one offset per access, and index arithmetic in the narrowest integers.

x[i, j] of strides (768, 1)        ->  x[768*i + j]
le(Number(j, i64), Number(i, i64)) ->  le(Number(j, i32), Number(i, i32))       where both fit
eq(i64(a) + Number(j, i64), ...)   ->  eq(i32(a) + Number(j, i32), ...)         a of 16 bits
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from ..ir.index.bounds import bounds
from ..ir.index.index import Atom, Loaded
from ..ir.kernel import Assign, Fold, Kernel, Loop, Statement, Update
from ..ir.program import Buffer, Reduction, Store
from ..ir.value import Const, Load, Number, Op, Rewriter, Value

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_NARROW = (torch.int8, torch.int16, torch.int32, torch.uint8)
_CACHED = 1 << 12
_INT32 = torch.iinfo(torch.int32)


def flatten(kernel: Kernel) -> Kernel:
    """The kernel in which every `Load` and `Store` has one index, an offset in elements."""
    buffers = {b.name: b for b in [*(p.buffer for p in kernel.params), *kernel.scratch]}
    return _Flattening(buffers).kernel(kernel)


def flatten_value(value: Value, buffers: Iterable[Buffer]) -> Value:
    """A value that is simplified as those of a kernel are; it reads from `buffers`."""
    return _Flattening({b.name: b for b in buffers}).value(value)


class _Flattening:
    def __init__(self, buffers: dict[str, Buffer]) -> None:
        self._buffers = buffers
        self._rewrite = Rewriter(value=self._value, atom=self._atom)

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

    def _atom(self, atom: Atom) -> Any:
        """An index read from memory, in 32 bits if it was computed from narrower values."""
        if not isinstance(atom, Loaded):
            return None
        narrow = _narrowed(self._rewrite(atom.value))
        return None if narrow is None else Loaded(narrow, self._rewrite.index(atom.size), atom.wrap).index()

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


@lru_cache(_CACHED)
def _narrowed(value: Value) -> Value | None:
    """A 64-bit integer as a 32-bit one, if it and all its operands fit."""
    span = _span(value) if value.dtype == torch.int64 else None
    if span is None or not (span[0] >= _INT32.min and span[1] <= _INT32.max):
        return None
    if isinstance(value, Const):
        return Const(value.number, torch.int32)
    if isinstance(value, Number):
        return Number(value.index, torch.int32)
    assert isinstance(value, Op), value
    if value.name == "cast":
        source = value.args[0]
        return source if source.dtype == torch.int32 else Op("cast", (source,), torch.int32)
    parts = tuple(map(_narrowed, value.args))
    return Op(value.name, parts, torch.int32) if None not in parts else None


@lru_cache(_CACHED)
def _span(value: Value) -> tuple[int, int] | None:
    """The smallest and the largest value of an integer; None if they are not known."""
    if isinstance(value, (Const, Number)):
        low, high = bounds(value.number if isinstance(value, Const) else value.index)
        return None if low is None or high is None else (low, high)
    if isinstance(value, Op) and value.name == "cast" and value.args[0].dtype in _NARROW:
        return _span(value.args[0])
    spans = [_span(arg) for arg in value.args] if isinstance(value, Op) and value.name in _SPANS else [None]
    if isinstance(value, Op) and None not in spans:
        low, high = _SPANS[value.name](*spans)
        if value.dtype == torch.int64 or _INT32.min <= low <= high <= _INT32.max:
            return low, high
    kind = torch.iinfo(value.dtype) if value.dtype in _NARROW else None
    return (int(kind.min), int(kind.max)) if kind else None


_SPANS: dict[str, Callable[..., tuple[int, int]]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}


def _fits(number: Any, limit: int) -> bool:
    low, high = bounds(number)
    return low is not None and high is not None and -limit < low and high < limit
