"""Offsets in digits, and which iterations can meet at one element."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.schedules import F32

from regraft.compiler.ir.index.index import Loaded, Size, Var, quotient
from regraft.compiler.ir.value import Load
from regraft.compiler.schedule.affine import OPAQUE, ascending, digits, never_meet, proportional, separate, variables_of

VI, VJ, VK = Var("i", 8), Var("j", 16), Var("k", 16)
i, j, k = VI.index(), VJ.index(), VK.index()
S = Size("s", 1, None).index()
R = Var("r", S)
r = R.index()
NONE = frozenset()


def test_digits_are_strides_of_variables():
    found = digits(16 * i + j + 5)
    assert found.constant == 5
    assert (found.stride(VI), found.stride(VJ), found.stride(VK)) == (16, 1, 0)


def test_symbolic_strides_stay_with_their_digit():
    assert digits(i * S + r).stride(VI) == S
    assert digits(i * S + r + S).constant == S


def test_what_is_read_from_memory_is_opaque():
    offset = Loaded(Load("ids", (i,), F32), 8, False).index() * 16 + j
    assert variables_of(offset) == {VJ, OPAQUE}


@pytest.mark.parametrize(("a", "b", "var", "fixed", "expected"), [
    (16 * i + j, 16 * i + k, VI, NONE, True),
    (16 * i + j, 16 * i + j, VJ, NONE, True),
    (16 * i + j, 16 * i + k, VJ, {VI}, False),
    (16 * i + j, 16 * i, VJ, {VI}, False),
    (16 * i + j, 16 * i + 15 - j, VJ, {VI}, False),
    (16 * i + j, 16 * i + j + 1, VJ, {VI}, False),
    (8 * i + j, 8 * i + j, VI, NONE, False),
    (16 * i + j, 16 * i + 15, VI, NONE, True),
    (16 * i + j, 16 * i + 16, VI, NONE, False),
    (15 - j - 16 * i, 14 - k - 16 * i, VI, NONE, False),
    (15 - j - 16 * i, 15 - k - 16 * i, VI, NONE, True),
    (i + 8 * j, i + 8 * j, VI, NONE, True),
    (i, 7 - i, VI, NONE, False),
    (i * S + r, i * S + Var("t", S).index(), VI, NONE, True),
    (i * S + r, i * S + r + 1, VI, NONE, False),
    (5, 5, VI, NONE, False),
    (i // 2 + 16 * j, i // 2 + 16 * j, VJ, NONE, True),
    (i // 2 + 16 * j, i // 2 + 16 * j, VI, {VJ}, False),
    (32 * i + j, 32 * i + j + 16, VJ, NONE, True),  # parts of a stack, whatever i is in each
    (31 * i + j, 31 * i + j + 16, VJ, NONE, False),
    (32 * i + j, 32 * i + j + 17, VJ, NONE, False),
])  # fmt: skip
def test_separate(a, b, var, fixed, expected):
    assert separate(a, b, var, frozenset(fixed)) is expected


@st.composite
def offsets(draw):
    strides = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 12, -1]), min_size=3, max_size=3))
    return sum(s * v.index() for s, v in zip(strides, SMALL, strict=True)) + draw(st.integers(0, 24))


SMALL = (Var("x", 2), Var("y", 3), Var("z", 2))


@given(offsets(), offsets())
def test_separate_is_right_by_enumeration(a, b):
    """No two iterations that differ in the variable touch one element if it says yes."""
    var, fixed = SMALL[0], frozenset(SMALL[1:2])
    if not separate(a, b, var, fixed):
        return
    points = list(itertools.product(*(range(v.extent) for v in SMALL)))
    for p, q in itertools.product(points, points):
        if p[1] == q[1] and _at(a, p) == _at(b, q):
            assert p[0] == q[0]


@given(offsets(), offsets())
def test_never_meet_is_right_by_enumeration(a, b):
    """No two iterations touch one element if it says yes."""
    points = list(itertools.product(*(range(v.extent) for v in SMALL)))
    if never_meet(a, b):
        assert not {_at(a, p) for p in points} & {_at(b, q) for q in points}


@pytest.mark.parametrize(("a", "b", "expected"), [
    (4 * i, 4 * j + 1, True), (4 * i, 4 * j + 4, False), (32 * i + j, 32 * i + k + 16, True), (3 * i, 3, False),
    (8 * (i // 2) + 2, 8 * j, True), (S * i, S * i + 1, False), (5, 5, False), (5, 6, True), (i + 16, j, True),
])  # fmt: skip
def test_never_meet(a, b, expected):
    assert never_meet(a, b) is expected


def _at(offset, point):
    found = digits(offset)
    return found.constant + sum(found.stride(v) * x for v, x in zip(SMALL, point, strict=True))


@pytest.mark.parametrize(("number", "expected"), [
    (16 * i + j, True), (i + j, False), (16 * i + j + k, True), (17 * i + j, False), (32 * i + 2 * j, True),
    (i // 3 + j, False), (i // 4, False), (k, True), (i * j, False), (S * 16 * i + S * j, True),
])  # fmt: skip
def test_proportional(number, expected):
    assert proportional(number, VI, VJ) is expected


def test_strides_that_cannot_be_compared_have_no_order():
    other = Size("t", 1, None).index()
    assert ascending([S * 8, 1, S]) == [1, S, S * 8]
    assert ascending([S, other]) is None


def test_pieces_of_a_concatenation_never_meet():
    """Pieces of 16 in rows of 48: whatever the iterations are, no element is in two of them."""
    first, later = 48 * i + j, 48 * i + j + 16
    assert separate(first, later, VJ, frozenset({VI})) and separate(later, first, VJ, frozenset({VI}))
    assert separate(first, later, VI, frozenset())
    nearer = 48 * i + j + 15  # the last element of one is the first of the other
    assert not separate(j + j // 2, j + j // 2 + 16, VJ, NONE)  # rows of 2 that lie 3 apart reach further
    assert not separate(first, nearer, VJ, frozenset({VI})) and not separate(nearer, first, VJ, frozenset({VI}))


SQ, TQ, UQ = (Size(name, 2, None).index() for name in "stu")


@pytest.mark.parametrize(
    ("extent", "dim"),
    [(quotient(SQ, 2), quotient(SQ + 1, 2)), (quotient(SQ + 1, 2), 2 * quotient(SQ + 3, 4)), (SQ - 1, SQ), (SQ, SQ)],
    ids=str,
)
def test_loops_shorter_than_the_dim_that_they_go_through(extent, dim):
    """Pieces of a joined tensor spell their sizes in their own way: they fit into the dims of the whole."""
    n, m, c = Var("n", TQ), Var("m", extent), Var("c", UQ)
    offset = 4 * n.index() * dim * TQ * UQ + 4 * m.index() * TQ * UQ + c.index() + UQ
    for var in (n, m, c):
        assert separate(offset, offset, var, NONE)
    assert not separate(offset, offset - 4 * TQ * UQ, m, frozenset((n,)))


def test_loops_longer_than_the_dim_meet():
    n, m = Var("n", TQ), Var("m", quotient(SQ + 2, 2))
    offset = n.index() * quotient(SQ, 2) + m.index()
    assert not separate(offset, offset, n, NONE)
