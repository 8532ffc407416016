"""Finds where the sign of a zero shows: 0.0 and -0.0 are equal, and a fold of extrema alone may give either.

exp(x - m), m > 0, abs(m)      show no sign of a zero m
x * m, x + m                   show it where they are read so
abs(x), exp(x), x * x          have no sign that could show

Unlike a sum, which has one result whatever its zeros are, an extremum of values and places gives the first of equals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from ..ir.program import Definition, Item, Program
from ..ir.value import Const, Load, Op, Result, Value, operands, walk
from .dependences import effects, roots, values_in

_HIDE = frozenset(
    {"exp", "exp2", "abs", "cos", "cosh", "eq", "ne", "lt", "le", "gt", "ge"}
    | {"isnan", "isinf", "logical_and", "logical_or", "logical_not"}
)
_PASS = frozenset({"add", "sub", "mul", "neg", "maximum", "minimum", "round_bfloat16", "round_float16"})
_UNSIGNED = frozenset({"abs", "exp", "exp2", "cosh", "erfc", "sigmoid", "normal_cdf", "normal_pdf"})
_KEEP_UNSIGNED = _PASS - {"sub", "neg"} | {"div", "sqrt", "log1p", "reciprocal", "rsqrt", "floor", "ceil", "round"}


def seen_signs(items: Sequence[Item], program: Program) -> set[Value | str]:
    """The buffers, and results of folds, of which somebody may see the sign of a zero."""
    seen: set[Value | str] = {*program.outputs, *(n for n, b in program.buffers.items() if b.kind != "made")}
    for item in reversed(items):
        if not isinstance(item, Definition):
            seen |= effects(item).reads
            continue
        hidden = [s for s in item.stores if s.mode is None and s.buffer not in seen]
        _look(roots(replace(item, stores=tuple(s for s in item.stores if s not in hidden))), False, seen)
        _look([v for s in hidden for v in values_in(s.indices)], False, seen)
        _look([s.value for s in hidden], True, seen)
    return seen


def _look(values: Iterable[Value], hidden: bool, seen: set[Value | str]) -> None:
    """Adds the zeros that are seen below values, whose own signs of zeros are `hidden` or not."""
    stack, met = [(v, hidden) for v in values], set()
    while stack:
        value, blind = stack.pop()
        if (value, blind) in met:
            continue
        met.add((value, blind))
        if not blind and isinstance(value, Load | Result):
            seen.add(value.buffer if isinstance(value, Load) else value)
        stack += [(v, _is_hidden(value, v, blind)) for v in operands(value)]


def _is_hidden(value: Value, operand: Value, blind: bool) -> bool:
    """Whether `value`, of which nobody sees the sign of zero if `blind`, shows that of an operand."""
    if not isinstance(value, Op):
        return False
    if value.name in _HIDE or (value.name == "cast" and not value.dtype.is_floating_point):
        return True
    if value.name == "div":
        return blind and operand is not value.args[1]
    return blind and (
        value.name in _PASS or value.name == "cast" or (value.name == "where" and operand is not value.args[0])
    )


def unsigned_buffers(items: Iterable[Item], program: Program) -> set[str]:
    """The made buffers of floats that hold no negative number and no -0.0."""
    found: set[str] = set()
    spoiled = {name for name, buffer in program.buffers.items() if buffer.kind != "made"}
    for item in items:
        if not isinstance(item, Definition):
            spoiled |= effects(item).writes
            continue
        for store in item.stores:
            plain = store.mode is None and not item.reductions and is_unsigned(store.value, found)
            (found if plain else spoiled).add(store.buffer)
            if not plain:
                found.discard(store.buffer)
    return found - spoiled


def is_unsigned(value: Value, buffers: set[str]) -> bool:
    """Whether a value has no sign: it is an integer, NaN or at least 0.0."""
    known: set[Value] = set()
    for part in walk([value]):
        if _has_no_sign(part, known, buffers):
            known.add(part)
    return value in known


def _has_no_sign(value: Value, known: set[Value], buffers: set[str]) -> bool:
    if not value.dtype.is_floating_point:
        return value.dtype == torch.bool
    if isinstance(value, Const):
        return isinstance(value.number, int | float) and not str(value.number).startswith("-")
    if isinstance(value, Load):
        return value.buffer in buffers
    if not isinstance(value, Op):
        return False
    if value.name in _UNSIGNED or (value.name == "mul" and value.args[0] is value.args[1]):
        return True
    args = value.args[1:] if value.name == "where" else value.args
    return value.name in _KEEP_UNSIGNED | {"where", "cast"} and all(arg in known for arg in args)


__all__ = ["is_unsigned", "seen_signs", "unsigned_buffers"]
