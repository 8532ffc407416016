"""Ranges of memory that are looked at again and again, beside a comparison of every pair in every call."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from regraft.compiler.runtime import ranges
from regraft.compiler.runtime.ranges import Ranges, ranges_meet

SIZES = st.lists(st.integers(0, 3), min_size=1, max_size=6)


def meet(places: list[int], sizes: list[int]) -> bool:
    """Whether two of them have an element in common, one by one."""
    each = [set(range(begin, begin + size)) if begin else set[int]() for begin, size in zip(places, sizes, strict=True)]
    return sum(map(len, each)) > len(set().union(*each))


@given(st.data(), SIZES)
def test_two_ranges_have_a_part_in_common(data: st.DataObject, sizes: list[int]) -> None:
    places = data.draw(st.lists(st.integers(0, 12), min_size=len(sizes), max_size=len(sizes)))
    assert ranges_meet(places, sizes) == meet(places, sizes)


@given(st.data(), SIZES, st.integers(0, 3))
def test_only_ranges_that_lie_elsewhere_are_looked_at(data: st.DataObject, sizes: list[int], most: int) -> None:
    """In any order of calls, with any number of ranges that move: the answer is that of all pairs."""
    count = len(sizes)
    places = data.draw(st.lists(st.integers(0, 25), min_size=count, max_size=count))
    known = Ranges(sizes)
    with mock.patch.object(ranges, "_MOVING", most):
        for _ in range(6):
            assert known.are_apart(list(places)) == (not meet(places, sizes))
            for k in data.draw(st.lists(st.integers(0, count - 1), max_size=3)):
                places[k] = data.draw(st.integers(0, 25))


def test_many_ranges_of_which_one_moves_are_not_put_in_order_again() -> None:
    known = Ranges([4] * 100)
    places = [8 * k + 8 for k in range(100)]
    assert known.are_apart(list(places))
    with mock.patch.object(ranges, "ranges_meet", wraps=ranges_meet) as called:
        for at in (2000, 2008, 3000):
            places[50] = at
            assert known.are_apart(list(places))
        assert all(len(list(call.args[0])) == 1 for call in called.call_args_list)
    places[50] = 10
    assert not known.are_apart(list(places))
