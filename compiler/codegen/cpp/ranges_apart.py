"""A loop whose iterations choose by their number alone is written as one loop for each range with one choice.

for i < 58: y[i] = x[|i - 1|] if i < 57 else x[111 - i]   ->   y[0] = x[1]
                                                               for i < 56: y[i + 1] = x[i]
                                                               y[57] = x[54]

for i < 58: y[i] = x[i - 1] if 1 <= i < 57 else 0   ->   y[0] = 0; for i < 56: y[i + 1] = x[i]; y[57] = 0

Paddings of all kinds and rotations are such loops. Lanes of one range access neighbours, without masks and gathers.
A loop around rows is taken apart likewise, so that its rows are neighbours, and join (`joined_loops.py`).

for i < 56: for c < 32: y[32*i + c] = x[32*((i + 53) % 56) + c]   ->   for k < 96: y[k] = x[k + 1696]
                                                                       for k < 1696: y[k + 96] = x[k]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ...ir.accesses import statements, values
from ...ir.index.index import Atom, Least, Most, Quotient, Remainder, Var, add, atoms, sub, terms
from ...ir.kernel import Assign, Kernel, Loop, Statement
from ...ir.ops import ORDERS
from ...ir.simplify import Simplifier
from ...ir.value import Const, Number, Op, Rewriter, Value, indices_of
from .cost import GRAIN, work_of
from .plan import weight_of

_LONG = 16  # fewest iterations of a loop that is taken apart, as many as the widest vectors of 32 bits have lanes
_RANGES = 6  # most ranges of one loop
_CODE = 128  # most operations of all ranges together


def ranges_apart(kernel: Kernel, lanes: int) -> Kernel:
    """The kernel with loops over elements and rows taken apart where ranges of their iterations choose differently.

    Args:
        kernel: flat.
        lanes: of a vector of 32-bit numbers. Ranges that fill less than half of one are written element by element.
    """
    return replace(kernel, body=tuple(s for statement in kernel.body for s in _statement(statement, lanes, True)))


def _statement(statement: Statement, lanes: int, outermost: bool) -> tuple[Statement, ...]:
    if not isinstance(statement, Loop):
        return (statement,)
    if _length(statement) >= _LONG and (all(isinstance(s, Assign) for s in statement.body) or _is_of_rows(statement)):
        # Threads share the loops around what is taken apart: these must be enough for them.
        work = 0 if outermost or not isinstance(statement.body[0], Loop) else work_of(statement)
        if isinstance(work, int) and work <= GRAIN:
            return _apart(statement, lanes)
    return (replace(statement, body=tuple(s for inner in statement.body for s in _statement(inner, lanes, False))),)


def _length(loop: Loop) -> int:
    """The known iterations of a loop, or of it and the loop that is all of its body; 0 where they are not known."""
    (first, *_) = loop.body
    inner = first.var.extent if isinstance(first, Loop) else 1
    return loop.var.extent * inner if isinstance(loop.var.extent, int) and isinstance(inner, int) else 0


def _is_of_rows(loop: Loop) -> bool:
    """Whether all of a loop's body is a loop over elements, none of which choose differently from those beside them."""
    row = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(row, Loop) or row.parallel != loop.parallel:
        return False
    return all(isinstance(s, Assign) for s in row.body) and next(_cuts(row), None) is None


def _apart(loop: Loop, lanes: int) -> tuple[Statement, ...]:
    """The loop as one for each range; the loop itself where they would be too many, or too much code."""
    found: list[Loop] = []
    waiting = [loop]
    while waiting:
        whole = waiting.pop()
        cut = next(_cuts(whole), None)
        if cut is None:
            found.append(whole)
        else:
            waiting += [_range(whole, cut, whole.var.extent, "b"), _range(whole, 0, cut, "a")]
        if len(found) + len(waiting) > _RANGES:
            return (loop,)
    if len(found) == 1:
        return (loop,)
    made = tuple(s for part in found for s in _written(part, lanes))
    weight = sum(weight_of(v) for s in made for v in set(values([s])))
    return made if weight <= _CODE else (loop,)


def _written(part: Loop, lanes: int) -> tuple[Statement, ...]:
    """A range as a loop, or element by element; a single row as a loop over its elements."""
    if part.var.extent > 1 and (isinstance(part.body[0], Loop) or 2 * part.var.extent >= lanes):
        return (part,)
    return tuple(s for place in range(part.var.extent) for s in _with(part, place))


def _range(loop: Loop, begin: int, end: int, side: str) -> Loop:
    """Iterations `begin` to `end` of a loop."""
    var = Var(loop.var.name + side, end - begin)
    return Loop(var, _with(loop, add(var.index(), begin)), loop.parallel)


def _with(loop: Loop, place: Any) -> tuple[Statement, ...]:
    """The body of a loop in one place."""
    by: dict[Any, Any] = {loop.var: place}
    renamed, simplify = Rewriter(atom=by.get), Simplifier()
    return tuple(_simplified(statement, renamed, simplify) for statement in loop.body)


def _simplified(statement: Statement, renamed: Rewriter, simplify: Simplifier) -> Statement:
    if isinstance(statement, Loop):
        return replace(statement, body=tuple(_simplified(s, renamed, simplify) for s in statement.body))
    assert isinstance(statement, Assign), statement
    store = statement.store
    indices = tuple(simplify.index(renamed.index(at)) for at in store.indices)
    return Assign(replace(store, indices=indices, value=simplify(renamed(store.value))))


def _cuts(loop: Loop) -> Iterator[int]:
    """First iterations of ranges that choose differently from the one before."""
    stored = [at for s in statements(loop.body) if isinstance(s, Assign) for at in s.store.indices]
    found = list(values(loop.body))
    numbers = [*stored, *(number for value in found for number in indices_of(value))]
    cuts = [cut for value in found for cut in _of_comparison(value, loop.var)]
    cuts += [cut for number in numbers for atom in atoms(number) for cut in _of_atom(atom, loop.var)]
    yield from (cut for cut in cuts if 0 < cut < loop.var.extent)


def _of_comparison(value: Value, var: Var) -> tuple[int, ...]:
    """The steps at which a comparison of numbers known to the loop changes."""
    if not isinstance(value, Op) or value.name not in ORDERS:
        return ()
    a, b = (_number(arg) for arg in value.args)
    if a is None or b is None:
        return ()
    return _sign_changes(a, b, var) if value.name in ("lt", "ge") else _sign_changes(b, a, var)


def _number(value: Value) -> Any:
    """A whole number that is an index; None for other values."""
    if value.dtype not in (torch.int32, torch.int64):
        return None
    return value.number if isinstance(value, Const) else value.index if isinstance(value, Number) else None


def _of_atom(atom: Atom, var: Var) -> tuple[int, ...]:
    """The steps at which the smaller or larger of two numbers becomes the other, or a quotient the next."""
    if isinstance(atom, (Least, Most)):
        return _sign_changes(atom.a, atom.b, var)
    if not isinstance(atom, (Quotient, Remainder)) or not isinstance(atom.divisor, int):
        return ()
    step, start = _line(atom.dividend, var)
    if step <= 0:
        return ()
    return (-((start - (start // atom.divisor + 1) * atom.divisor) // step),)


def _sign_changes(a: Any, b: Any, var: Var) -> tuple[int, ...]:
    """The first iteration with ``a >= b``, or after the last one, where `a` and `b` depend on `var` alone."""
    step, start = _line(sub(a, b), var)
    if not step:
        return ()
    return (-(start // step),) if step > 0 else (start // -step + 1,)


def _line(number: Any, var: Var) -> tuple[int, int]:
    """Step and start of a number that depends on `var` alone, linearly; a step of 0 for other numbers."""
    step = start = 0
    for monomial, coefficient in terms(number):
        if monomial == (var,):
            step = coefficient
        elif not monomial:
            start = coefficient
        else:
            return 0, 0
    return step, start


__all__ = ["ranges_apart"]
