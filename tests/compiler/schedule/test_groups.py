"""Definitions as members: axes, order of loops, what is touched; and aligning the axes of groups."""

from __future__ import annotations

import pytest
from support.schedules import Builder, op

from regraft.compiler.ir.index.index import Size, Var
from regraft.compiler.schedule.affine import digits
from regraft.compiler.schedule.align import alignments, exact, matched
from regraft.compiler.schedule.flat_access import flatten
from regraft.compiler.schedule.groups import Axes, Group, members_of, split_axes


def members(b, at=-1, axes=None):
    return members_of(flatten(b.low.items[at], b.low.buffers), 0, axes or Axes())


def extents(member):
    return [v.extent for v in member.outer], [v.extent for v in member.reduced]


def test_loops_over_dense_memory_are_one_axis():
    b = Builder()
    x = b.given("x", (2, 1, 4, 5))
    b.map("t", (2, 1, 4, 5), lambda i: op("exp", x.at(i)))
    (member,) = members(b)
    assert extents(member) == ([40], [])
    assert [a.offset for a in member.accesses] == [member.outer[0].index()] * 2


def test_a_broadcast_keeps_loops_apart():
    b = Builder()
    x, row = b.given("x", (4, 5, 6)), b.given("row", (6,))
    b.map("t", (4, 5, 6), lambda i: op("add", x.at(i), row.at(i[2:])))
    assert extents(members(b)[0]) == ([20, 6], [])


def test_outer_axes_are_ordered_by_stride():
    b = Builder()
    x = b.given("x", (4, 6))
    b.map("t", (6, 4), lambda i: op("exp", x.at((i[1], i[0]))), strides=(1, 8))
    assert extents(members(b)[0]) == ([4, 6], [])


@pytest.mark.parametrize(
    ("sizes", "strides", "innermost"),
    [
        ((6, 8, 5), (40, 1, 8), 8),  # channels last, folded along the last dim
        ((8, 6, 5), (1, 40, 8), 8),  # the slowest of the result is the fastest of what is read
        ((6, 8, 5), (1, 30, 6), 6),
        ((6, 8, 5), (40, 5, 1), 48),  # in the order of results, so that both loops are one
        ((6, 8, 5), (5, 30, 1), 6),
        ((8, 6, 32), (32, 256, 1), 6),  # long rows: results decide
        ((8, 6, 4), (4, 32, 1), 8),  # short pieces: what lies beside them decides
        ((6, 8, 2), (16, 1, 8), 8),  # few elements, in the order of results anyway
        ((8, 6, 2), (1, 16, 8), 6),  # few elements: results decide
    ],
)
def test_folds_read_memory_in_order(sizes, strides, innermost):
    b = Builder()
    x = b.given("x", sizes, strides)
    b.sum("s", sizes[:2], sizes[2:], lambda o, r: x.at((*o, *r)))
    fold, store = members(b)
    assert fold.outer[-1].extent == store.outer[-1].extent == innermost


def test_a_reduction_has_two_members():
    b = Builder()
    x = b.given("x", (4, 5, 6))
    b.sum("s", (4,), (5, 6), lambda o, r: x.at((*o, *r)))
    fold, store = members(b)
    assert (fold.part, *extents(fold)) == ("fold", [4], [30])
    assert (store.part, *extents(store)) == ("store", [4], [])
    assert store.uses == fold.folds and not fold.uses
    assert not fold.writes("s") and store.writes("s")


def test_reduced_axes_are_ordered_by_stride_too():
    b = Builder()
    x = b.given("x", (5, 4, 6), (1, 30, 5))
    b.sum("s", (), (5, 4, 6), lambda o, r: x.at(r))
    assert extents(members(b)[0]) == ([], [120])


def test_a_scan_is_one_member_in_order():
    b = Builder()
    x = b.given("x", (4, 5))
    b.scan("s", (4,), 5, x.at)
    (member,) = members(b)
    assert (member.part, *extents(member)) == ("scan", [4], [5])


def test_splitting_axes():
    b = Builder()
    x = b.given("x", (24,))
    b.map("t", (24,), lambda i: op("exp", x.at(i)))
    (member,) = members(b)
    outer, inner = Var("p", 4), Var("q", 6)
    (split,) = split_axes([member], {member.outer[0]: (outer, inner)})
    assert split.outer == (outer, inner)
    assert split.accesses[0].offset == 6 * outer.index() + inner.index()


A, B, C = Var("a", 8), Var("b", 6), Var("c", 48)


@pytest.mark.parametrize(("left", "right", "pairs"), [
    (6 * A.index() + B.index(), C.index(), [6, 8]),
    (6 * A.index() + B.index(), 6 * A.index(), [8]),
    (6 * A.index() + B.index(), Var("d", 4).index(), []),
    (48 * A.index() + C.index(), 48 * Var("d", 3).index() + C.index(), [48]),
    (6 * A.index() + B.index(), A.index() // 2, []),
])  # fmt: skip
def test_axes_match_by_stride(left, right, pairs):
    match = matched(digits(left), digits(right), Axes())
    assert [x.extent for x, _ in match.pairs] == pairs
    assert all(x.extent == y.extent for x, y in match.pairs)


def test_symbolic_axes_match_and_split():
    s = Size("s", 1, None).index()
    flat, row, inner = Var("f", 8 * s), Var("r", s), Var("i", 8)
    match = matched(digits(flat.index()), digits(8 * row.index() + inner.index()), Axes())
    assert [x.extent for x, _ in match.pairs] == [8, s]
    assert exact(8 * s, s) == 8 and exact(8 * s, 3) is None


def test_aligned_groups_share_axes():
    b, axes = Builder(), Axes()
    x = b.given("x", (8, 6))
    t = b.map("t", (8, 6), lambda i: op("exp", x.at(i)))
    b.sum("s", (8,), (6,), lambda o, r: t.at((*o, *r)))
    groups = [Group(m := members(b, k, axes), m[-1].outer, k) for k in range(2)]
    (aligned,) = alignments(*groups, ["t"], axes)
    assert aligned.chain_a == (*aligned.chain_b, *aligned.b[0].reduced)
    assert {a.offset for m in (*aligned.a, *aligned.b) for a in m.touched.get("t", ())} == {
        6 * aligned.chain_a[0].index() + aligned.chain_a[1].index()
    }
