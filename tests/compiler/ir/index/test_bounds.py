"""Ranges; their soundness on random indices is tested with the indices."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.compiler.ir.index.bounds import bounds, known_le, known_lt, known_nonnegative
from regraft.compiler.ir.index.index import Loaded, Size, Var, least, most, quotient, remainder

I, J, E = Var("i", 8).index(), Var("j", 16).index(), Var("e", 0).index()  # noqa: E741
S, B = Size("s", 1, None).index(), Size("b", 2, 5).index()
U = Var("u", S).index()
ROW = Loaded("value", S, True).index()


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (7, (7, 7)),
        (16 * I + J, (0, 127)),
        (3 - 2 * I, (-11, 3)),
        (E, (0, 0)),
        (S, (1, None)),
        (-S, (None, -1)),
        (U, (0, None)),
        (B * I, (0, 35)),
        (B * S, (2, None)),
        (quotient(16 * I + J, 3), (0, 42)),
        (quotient(-I, 3), (-3, 0)),
        (quotient(127, B), (25, 63)),
        (quotient(I, S), (0, 7)),
        (remainder(16 * I + J, 100), (0, 99)),
        (remainder(I, S), (0, 7)),
        (remainder(-I, S), (0, None)),
        (least(S, 4), (1, 4)),
        (most(S, 4), (4, None)),
        (least(S, I), (0, 7)),
        (ROW, (0, None)),
    ],
)
def test_bounds(index, expected):
    assert bounds(index) == expected


@pytest.mark.parametrize(
    ("a", "b"), [(I, 8), (U, S), (16 * U + J, 16 * S), (U * S + U, S * S), (ROW, S), (remainder(J, S), S), (-S, 0)]
)
def test_less_than_is_proven(a, b):
    assert known_lt(a, b)
    assert known_le(a, b)
    assert not known_lt(b, a)


@pytest.mark.parametrize(("a", "b"), [(I, 7), (U, S - 1), (S, B), (16 * U + J, 16 * S - 1), (U, I)])
def test_what_may_fail_is_not_proven(a, b):
    assert not known_lt(a, b)


def test_nonnegative():
    assert known_nonnegative(S - 1)
    assert known_nonnegative(S - U - 1)
    assert not known_nonnegative(S - 2)
    assert not known_nonnegative(-1)


P, Q, R = (Size(name, 2, None).index() for name in "pqr")
Z = Size("z", 0, None).index()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (P, P * Q - 1), (P * Q, P * Q * R), (P * (Q - 1) + P - 1, P * Q), (3 * P * Q - P, 4 * P * Q),
        (Var("a", P).index() * Q * R + Var("b", Q).index() * R + Var("c", R).index(), P * Q * R),
    ],
)  # fmt: skip
def test_products_of_sizes_are_compared(a, b):
    assert known_lt(a, b)
    assert not known_lt(b, a)


@pytest.mark.parametrize(("a", "b"), [(P, P * Z), (P * Q, P * R), (P * Q + 4, P * Q * S), (P * Q - 1, P + Q)])
def test_products_that_may_be_smaller_are_not_proven(a, b):
    assert not known_lt(a, b)


@given(st.lists(st.tuples(st.integers(-6, 6), st.lists(st.integers(0, 2), max_size=3)), max_size=5), st.data())
def test_what_is_proven_of_products_holds(polynomial, data):
    """A sum of products of sizes that is known not to be negative is not, whatever the sizes are."""
    lows = data.draw(st.tuples(*[st.integers(0, 3)] * 3))
    sizes = [Size(name, low, None).index() for name, low in zip("pqr", lows, strict=True)]
    number = sum((c * math.prod(sizes[i] for i in chosen) for c, chosen in polynomial), 0)
    if not known_nonnegative(number):
        return
    for values in itertools.product(*(range(low, low + 4) for low in lows)):
        assert sum(c * math.prod(values[i] for i in chosen) for c, chosen in polynomial) >= 0


W = Var("w", 2 * S).index()
FOLDED = most(W - S + 1, S - 1 - W)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (quotient(W, 2), S),
        (S * quotient(J, 4) + U, 4 * S),
        (quotient(Var("f", S * B).index(), S), B),
        (least(W, S - 1), S),
        (least(ROW + 1, S - 1), S),
        (most(0, S - 2), S),
        (least(W, 2 * S - 2 - W), S),
        (-1, FOLDED),
        (FOLDED, S + 1),
        (least(least(J, 30 - J), 12), 13),
        (quotient(S + 1, 2), 2 * quotient(S + 3, 4) + 1),
        (quotient(S, 2), quotient(S + 3, 2)),
        (3 * quotient(S, 3), S + 1),
    ],
)
def test_choices_and_quotients_are_proven(a, b):
    assert known_lt(a, b)
    assert not known_lt(b, a)


@pytest.mark.parametrize(("a", "b"), [(quotient(W, 2), S - 1), (least(W, S), S), (least(W, 2 * S - W), S)])
def test_choices_and_quotients_that_may_fail_are_not_proven(a, b):
    assert not known_lt(a, b)
