"""Programs that touch short pieces of memory: on GPUs, two kernels take less time where others touch the neighbours."""

from __future__ import annotations

import pytest
from support.schedules import SMALL_GPU, Builder, assert_same, op

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


@pytest.mark.parametrize("target", [GPU, SMALL_GPU])
def test_values(target):
    assert_same(of_groups(2, 3, 2, 5), target=target)
