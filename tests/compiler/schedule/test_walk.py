"""Programs that walk through loops with few neighbours in each step: on GPUs, two kernels take less time."""

from __future__ import annotations

import pytest
import torch
from support.lowering import trace
from support.schedules import SMALL_GPU, Builder, assert_same, op

from regraft.compiler.ir.kernel import Loop
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, GPU, schedule

NARROW, WIDE, MANY = (1536, 49, 32), (1536, 49, 512), (1 << 15, 49, 32)


def divided_then_turned(windows, rows, columns):
    """y = x / the sum of its row; z = y with rows and columns of each window exchanged: both could share windows."""
    b = Builder()
    x = b.given("x", (windows, rows, columns))
    s = b.sum("s", (windows, rows), (columns,), lambda i, r: x.at((*i, *r)))
    y = b.map("y", (windows, rows, columns), lambda i: op("div", x.at(i), s.at(i[:2])))
    z = b.map("z", (windows, columns, rows), lambda i: op("neg", y.at((i[0], i[2], i[1]))))
    return b.program(y, z)


def scheduled(sizes, target=GPU):
    return schedule(divided_then_turned(*sizes), target=target)


@pytest.mark.parametrize("sizes, kernels", [(NARROW, 2), (WIDE, 1), (MANY, 2)])
def test_narrow_rows_are_left_to_kernels_in_which_all_of_them_run_side_by_side(sizes, kernels):
    found = scheduled(sizes)
    assert len(found.kernels) == kernels
    assert ("walk" in found.log.refusals) == (kernels == 2)


def sums_then_their_share(rows, columns, depth):
    """s = sums over the depth; z = s / the sum of a row of them: a program could go through a row sum by sum."""
    b = Builder()
    x = b.given("x", (rows, columns, depth))
    s = b.sum("s", (rows, columns), (depth,), lambda i, r: x.at((*i, *r)))
    t = b.sum("t", (rows,), (columns,), lambda i, r: s.at((*i, *r)))
    z = b.map("z", (rows, columns), lambda i: op("div", s.at(i), t.at(i[:1])))
    return b.program(z)


@pytest.mark.parametrize("columns, kernels", [(64, 2), (2, 1)])
def test_many_folds_one_after_the_other_take_longer_than_a_launch_however_little_they_read(columns, kernels):
    found = schedule(sums_then_their_share(256, columns, 128), target=GPU)
    assert len(found.kernels) == kernels
    assert ("walk" in found.log.refusals) == (kernels == 2)


def test_scans_are_no_lanes_of_the_loops_around_them():
    """y = the largest so far along 8; z = x turned: both could share images, and scan their columns one by one."""

    def program(x):
        return x.cummax(1)[0], torch.cat([x, x.flip(1)], 2)

    x = torch.randn(8, 8, 77, 256)
    (kernel,) = schedule(lower(trace(program, x), strict=True).program, target=GPU).kernels
    (loop,) = kernel.body
    parallel = []
    while isinstance(loop, Loop) and loop.parallel:
        parallel.append(loop.var.extent)
        loop = loop.body[0]
    assert parallel == [8, 77 * 256]


def test_processors_have_no_lanes_to_lose():
    assert "walk" not in scheduled(NARROW, CPU).log.refusals


@pytest.mark.parametrize("target", [GPU, SMALL_GPU])
def test_values(target):
    assert_same(divided_then_turned(3, 5, 4), target=target)
