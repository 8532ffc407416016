"""Rows of the outputs that read an element hold all of them, whatever outputs read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.compiler.lowering.readers import MOST_OUTPUTS, readers


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 40), out=st.integers(1, 120), left=st.integers(0, 3), right=st.integers(1, 3))
def test_every_reader_is_in_the_row(size, out, left, right):
    reads = [(o * size // out - left, o * size // out + right) for o in range(out)]
    row = readers(reads, size)
    if row is None:
        return
    for o, (start, stop) in enumerate(reads):
        for i in range(max(start, 0), min(stop, size)):
            assert row.first(i) <= o < row.first(i) + row.count


def test_a_whole_multiple_has_rows_without_spare():
    row = readers([(o // 3, o // 3 + 1) for o in range(12)], 4)
    assert row is not None and row.count == 3
    assert [row.first(i) for i in range(4)] == [0, 3, 6, 9]


def test_uneven_or_endless_reads_have_no_rows():
    assert readers([(0, 1)] * 100 + [(i, i + 1) for i in range(100)], 100) is None
    assert readers([(0, 1)] * (MOST_OUTPUTS + 1), 1) is None
    assert readers([], 3) is None
