"""Sizes that guards hold equal have one name in loop programs, and only what guards say is taken for equal."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, Mod

from regraft.compiler.lowering.equal_sizes import EqualSizes

from ...support.equal_sizes import PROGRAMS
from ...support.lowering import agree
from ...support.thorough import examples

S, T, U = sympy.symbols("s t u", integer=True, nonnegative=True)


def known(*guards: Any, symbols: str = "stu") -> EqualSizes:
    return EqualSizes(guards, set(symbols))


@pytest.mark.parametrize(
    ("guards", "expression", "other"),
    [
        ([sympy.Eq(FloorDiv(S + 3, 4), T)], T, FloorDiv(S + 3, 4)),
        ([sympy.Eq(T, FloorDiv(S + 3, 4)), sympy.Eq(T + 1, U)], U, FloorDiv(S + 3, 4) + 1),
        ([sympy.Eq(FloorDiv(S + 2, 3), 192), sympy.Eq(S - 2 * FloorDiv(S + 2, 3), 192)], S, sympy.Integer(576)),
        ([sympy.Eq(Max(1, FloorDiv(S, 2)), FloorDiv(S, 2))], Max(1, FloorDiv(S, 2)), FloorDiv(S, 2)),
        ([sympy.Eq(2 * T * U, S)], S, 2 * T * U),
        ([sympy.Eq(Mod(S, 8), 0), sympy.Eq(FloorDiv(S, 8), 7)], S, sympy.Integer(56)),
        ([sympy.Eq(S - FloorDiv(S + 1, 2), T)], T, S - FloorDiv(S + 1, 2)),
        ([sympy.Eq((FloorDiv(S, 16) + 1) ** 2, T)], T, FloorDiv(S, 16) ** 2 + 2 * FloorDiv(S, 16) + 1),
    ],
)
def test_what_guards_equate(guards: list[Any], expression: Any, other: Any) -> None:
    found = known(*guards).replaced
    assert found[expression] == other
    few = range(1, examples(10, 20))
    for numbers in itertools.product(range(1, 20), few, few):
        at = dict(zip((S, T, U), numbers, strict=True))
        if all(guard.subs(at) for guard in guards):
            assert all(one.subs(at) == two.subs(at) for one, two in found.items())


@pytest.mark.parametrize(
    "guards",
    [
        [sympy.Ne(S, T), S >= T, sympy.Or(sympy.Eq(S, T), sympy.Eq(S, 1), evaluate=False)],
        [sympy.Eq(2 * S, 3 * T)],
        [sympy.Eq(S * T, 12), sympy.Eq(FloorDiv(S, 7) ** 2, 4)],  # strides have the factors
        [sympy.Eq(Max(1, S - 1), S - 1)],  # a sum is no factor of a stride
        [sympy.Eq(S**2, T**2)],
        [sympy.Eq(FloorDiv(S, T), FloorDiv(T, U))],
    ],
)
def test_nothing_is_known(guards: list[Any]) -> None:
    found = known(*guards)
    assert not found.replaced and not found.divisors


def test_what_inputs_do_not_tell_is_not_named() -> None:
    assert not known(sympy.Eq(FloorDiv(S + 3, 4), T), symbols="tu").replaced
    assert not known(sympy.Eq(Mod(S, 7), 0), symbols="tu").divisors


@pytest.mark.parametrize(
    ("guards", "divisor"),
    [
        ([sympy.Eq(Mod(S, 6), 0), sympy.Eq(4 * FloorDiv(S, 4), S)], 12),
        ([sympy.Eq(S - 3 * FloorDiv(S + 3, 4), T), sympy.Eq(FloorDiv(S + 3, 4), T)], 4),
        ([sympy.Eq(FloorDiv(S + 1, 2), T), sympy.Eq(FloorDiv(S, 2), T)], 2),
        ([sympy.Eq(FloorDiv(S + 3, 4), FloorDiv(S + 1, 4))], 1),
        ([sympy.Eq(FloorDiv(S + 2, 3), FloorDiv(S + 1, 2))], 1),
        ([sympy.Eq(3 * FloorDiv(S, 4), S)], 1),
        ([sympy.Eq(Mod(S, T), 0)], 1),
    ],
)
def test_divisors(guards: list[Any], divisor: int) -> None:
    found = known(*guards)
    assert found.divisors.get(S, 1) == divisor
    for s, t in itertools.product(range(1, 50), repeat=2):
        if all(guard.subs({S: s, T: t}) == True for guard in guards):  # noqa: E712
            assert s % divisor == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_equal_sizes_become_loops(name: str) -> None:
    """`tests/compiler/test_equal_sizes.py` compiles them."""
    function, sizes, inputs = PROGRAMS[name]
    torch.manual_seed(0)
    agree(function, *inputs(*sizes[0]), dynamic=True, atol=1e-5, rtol=1e-5)
