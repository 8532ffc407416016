"""Programs that touch short pieces of memory: on GPUs, two kernels take less time where others touch the neighbours."""

from __future__ import annotations

import pytest
from support.schedules import SMALL_GPU, Builder, assert_same, op

from regraft.compiler.ir.index.index import add
from regraft.compiler.schedule import CPU, GPU, schedule


def of_groups(samples, groups, channels, positions, last=True):
    """y = x / the sum of its group, with channels last, or as x lies."""
    b = Builder()
    x = b.given("x", (samples, groups, channels, positions))
    s = b.sum("s", (samples, groups), (channels, positions), lambda i, r: x.at((*i, *r)))
    if last:
        sizes = (samples, positions, groups, channels)
        y = b.map("y", sizes, lambda i: op("div", x.at((i[0], i[2], i[3], i[1])), s.at((i[0], i[2]))))
    else:
        y = b.map("y", (samples, groups, channels, positions), lambda i: op("div", x.at(i), s.at(i[:2])))
    return b.program(y)


@pytest.mark.parametrize(
    ("sizes", "last", "kernels"),
    [
        ((16, 32, 2, 4096), True, 2),
        ((16, 32, 8, 4096), True, 1),  # a sector of one group
        ((512, 1, 2, 4096), True, 1),  # no other program has neighbours
        ((16, 32, 2, 4096), False, 1),
        ((1 << 14, 32, 2, 2), True, 1),  # a program takes many of these rows
        ((2, 32, 2, 128), True, 1),  # a launch takes longer
    ],
)
def test_stores_in_pieces_are_left_to_kernels_that_fill_sectors(sizes, last, kernels):
    found = schedule(of_groups(*sizes, last), target=GPU)
    assert len(found.kernels) == kernels
    assert ("pieces" in found.log.refusals) == (kernels == 2)


def test_processors_have_caches_for_pieces():
    assert "pieces" not in schedule(of_groups(16, 32, 2, 4096), target=CPU).log.refusals


def behind_a_row(samples, rows, columns):
    """The first row of each sample as it is, twice the others: rows that a call reads, as attention after rotation."""
    b = Builder()
    x = b.given("x", (samples, rows + 1, columns))
    t = b.made("t", (samples, rows + 1, columns))
    b.write("first", t, (samples, columns), lambda i: (i[0], 0, i[1]), lambda i: op("neg", x.at((i[0], 0, i[1]))))
    later = lambda i: (i[0], add(i[1], 1), i[2])  # noqa: E731
    b.write("others", t, (samples, rows, columns), later, lambda i: op("add", x.at(later(i)), x.at(later(i))))
    return b.program(t)


@pytest.mark.parametrize(
    ("sizes", "shared"),
    [
        ((96, 196, 64), False),  # one program a sample would go through all rows
        ((1000, 400, 64), False),
        ((1000, 400, 4), True),  # half a sector each
        ((2, 6, 64), True),  # a launch takes longer
    ],
)
def test_rows_that_only_one_kernel_touches_are_no_reason_to_share_loops(sizes, shared):
    found = schedule(behind_a_row(*sizes), target=GPU)
    assert ("serial" in found.log.refusals) != shared
    assert_same(behind_a_row(3, 5, sizes[2]), target=GPU)


@pytest.mark.parametrize("target", [GPU, SMALL_GPU])
def test_values(target):
    assert_same(of_groups(2, 3, 2, 5), target=target)
