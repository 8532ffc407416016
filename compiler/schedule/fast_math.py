"""Values that reach memory only in 16 bits are computed by fast functions, a few units in float32's last place off.

y = bfloat16(exp(x - m) / s)            ->    y = bfloat16(fast_exp(x - m) / s, by a fast quotient)
z = float32(log(sum(exp(x - m))))       ->    unchanged, and so are other values made of these powers

Memory that holds 16 bits rounds by 2^-9 or 2^-12; fast functions are within 1e-5 of the result. Values that
decide something (comparisons, rounding to whole numbers, indices) stay precise: there, a small error may become large.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from ..ir.accesses import roots, statements
from ..ir.kernel import Assign, Fold, Kernel, Loop, Statement, Update
from ..ir.ops import OPS
from ..ir.program import Reduction
from ..ir.value import HALVES, Guarded, Load, Op, Result, Rewriter, Value, operands, walk


def with_fast_functions(kernel: Kernel) -> Kernel:
    """A kernel that computes the same values, to the precision of the dtypes that it stores."""
    every = list(walk([root for s in statements(kernel.body) for root in roots(s)]))
    if not any(map(_has_fast, every)):
        return kernel
    precise = _precise(kernel, every)
    if all(value in precise for value in every if _has_fast(value)):
        return kernel
    return replace(kernel, body=_Rewritten(precise).body(kernel.body))


def fast_values(stored: Sequence[tuple[Value, torch.dtype]]) -> list[Value]:
    """Values that are stored as these dtypes, each computed to the precision that is left of it."""
    every = list(walk([value for value, _ in stored]))
    todo = [value for value, dtype in stored if dtype not in HALVES]
    todo += [part for value in every for part in _decisive(value)]
    rewrite = _rewriter(_parts(todo, {}, {}))
    return [rewrite(value) for value, _ in stored]


def _has_fast(value: Value) -> bool:
    return isinstance(value, Op) and OPS[value.name].fast != "" and value.dtype == torch.float32


# -- values that have to be precise -----------------------------------------------------------------------------------


def _precise(kernel: Kernel, every: Sequence[Value]) -> Collection[Value]:
    """Values that memory of more than 16 bits, a decision or an index is made of."""
    rounded = {p.buffer.name for p in kernel.params if p.buffer.dtype in HALVES}
    held = {buffer.name for buffer in kernel.scratch}
    stored = [s.store for s in statements(kernel.body) if isinstance(s, Assign)]
    inside: dict[str, list[Value]] = {}  # the values that scratch buffers and reductions are computed from
    for store in stored:
        inside.setdefault(store.buffer, []).append(store.value)
    for statement in statements(kernel.body):
        if isinstance(statement, Update):
            inside.setdefault(statement.reduction.name, []).extend(statement.reduction.values)
    todo = [store.value for store in stored if store.buffer not in rounded | held]
    todo += [part for statement in statements(kernel.body) for part in _indexing(statement)]
    todo += [part for value in every for part in _decisive(value)]
    return _parts(todo, {name: values for name, values in inside.items() if name in held}, inside)


def _parts(
    todo: list[Value], held: Mapping[str, Sequence[Value]], reduced: Mapping[str, Sequence[Value]]
) -> set[Value]:
    """All operands of values, directly or not, also through scratch buffers and reductions, whose values are given."""
    found: set[Value] = set()
    while todo:
        value = todo.pop()
        if value in found:
            continue
        found.add(value)
        todo += operands(value)
        if isinstance(value, Load):
            todo += held.get(value.buffer, ())
        elif isinstance(value, Result):
            todo += reduced.get(value.reduction, ())
    return found


def _indexing(statement: Statement) -> tuple[Value, ...]:
    """The values that the place of a store is computed from."""
    return roots(statement)[:-1] if isinstance(statement, Assign) else ()


def _decisive(value: Value) -> Iterator[Value]:
    """Operands of which a small error may become a large one."""
    if isinstance(value, Guarded):
        yield value.condition
    elif isinstance(value, Load):
        yield from operands(value)
    elif isinstance(value, Op) and (not value.dtype.is_floating_point or OPS[value.name].decides):
        yield from value.args


# -- kernels rewritten ------------------------------------------------------------------------------------------------


class _Rewritten:
    """Statements with fast functions for values that need not be precise."""

    def __init__(self, precise: Collection[Value]) -> None:
        self._rewrite = _rewriter(precise)

    def body(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple(map(self._statement, body))

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return replace(statement, body=self.body(statement.body))
        if isinstance(statement, Fold):
            reductions = tuple(map(self._reduction, statement.reductions))
            return Fold(reductions, self.body(statement.body))
        if isinstance(statement, Update):
            return Update(self._reduction(statement.reduction))
        return Assign(replace(statement.store, value=self._rewrite(statement.store.value)))

    def _reduction(self, reduction: Reduction) -> Reduction:
        return replace(reduction, values=tuple(map(self._rewrite, reduction.values)))


def _rewriter(precise: Collection[Value]) -> Rewriter:
    # Parts of precise values are precise, so that none of them is rewritten: they are found as they were.
    return Rewriter(lambda value: _fast(value) if value not in precise else None)


def _fast(value: Value) -> Value | None:
    return Op(OPS[value.name].fast, value.args, value.dtype) if isinstance(value, Op) and _has_fast(value) else None
