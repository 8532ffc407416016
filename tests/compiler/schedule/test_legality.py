"""Which groups may become one kernel, and the typed reasons for the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.lowering import lowered
from support.schedules import Builder, op

from regraft.compiler.ir.kernel import Loop
from regraft.compiler.schedule import GPU, legality, schedule
from regraft.compiler.schedule.flat_access import flatten
from regraft.compiler.schedule.groups import Axes, Group, members_of
from regraft.compiler.schedule.legality import (
    MESSAGES,
    Fusion,
    FusionRefusal,
    can_fuse,
    columns_of,
    contiguous_axis,
    fusion_of,
    walks_across,
)  # fmt: skip
from regraft.compiler.schedule.profit import touched


def groups(b, axes):
    """One group for each definition."""
    found = []
    for place, item in enumerate(b.low.items):
        members = members_of(flatten(item, b.low.buffers), 2 * place, axes)
        found.append(Group(members, members[-1].outer, place))
    return found


def reason(b):
    axes = Axes()
    first, second = groups(b, axes)
    found = can_fuse(first, second, sorted(touched(first) & touched(second)), axes)
    return None if found is None else found.code


def two(read, sizes=(128, 96), first=(128, 96)):
    b = Builder()
    x = b.given("x", first)
    t = b.map("t", first, lambda i: op("exp", x.at(i)))
    b.map("u", sizes, lambda i: op("neg", t.at(read(i))))
    return b


def test_the_same_element():
    assert reason(two(lambda i: i)) is None


def test_a_collapsed_view():
    assert reason(two(lambda i: (i[0] // 96, i[0] % 96), (128 * 96,))) is None


def test_a_transposed_view_has_another_innermost_loop():
    assert reason(two(lambda i: (i[1], i[0]), (96, 128))) == "loop-order"


def test_a_permuted_view_with_the_same_innermost_loop():
    b = Builder()
    x = b.given("x", (16, 24, 32))
    t = b.map("t", (16, 24, 32), lambda i: op("exp", x.at(i)))
    b.map("u", (24, 16, 32), lambda i: op("neg", t.at((i[1], i[0], i[2]))))
    assert reason(b) is None


def test_a_neighbour_is_another_iteration():
    b = Builder()
    x = b.given("x", (128, 96))
    t = b.map("t", (128, 96), lambda i: op("exp", x.at(i)))
    b.map("u", (128, 96), lambda i: op("add", t.at(i), t.at((127 - i[0], i[1]))))
    assert reason(b) == "crossing"


def test_a_part_of_it_has_other_loops():
    assert reason(two(lambda i: (i[0] + 1, 0), (127,))) == "unaligned"


def test_rows_share_the_outer_loop():
    b = Builder()
    x = b.given("x", (128, 96))
    s = b.sum("s", (128,), (96,), lambda o, r: x.at((*o, *r)))
    b.map("u", (128, 96), lambda i: op("sub", x.at(i), s.at(i[:1])))
    axes = Axes()
    first, second = groups(b, axes)
    found = fusion_of(first, second, ["x", "s"], axes)
    assert [v.extent for v in found.chain] == [128]


def test_columns_would_cost_the_contiguous_loop():
    b = Builder()
    x = b.given("x", (128, 96))
    t = b.map("t", (128, 96), lambda i: op("exp", x.at(i)))
    b.sum("s", (96,), (128,), lambda o, r: t.at((*r, *o)))
    assert reason(b) == "loop-order"


def test_few_shared_iterations_would_leave_threads_idle():
    b = Builder()
    x = b.given("x", (2, 64, 512))
    t = b.map("t", (2, 64, 512), lambda i: op("exp", x.at(i)))
    b.sum("s", (2,), (64, 512), lambda o, r: t.at((*o, *r)))
    assert reason(b) == "parallelism"


def test_not_where_there_is_little_to_do():
    b = Builder()
    x = b.given("x", (2, 8, 16))
    t = b.map("t", (2, 8, 16), lambda i: op("exp", x.at(i)))
    b.sum("s", (2,), (8, 16), lambda o, r: t.at((*o, *r)))
    assert reason(b) is None


def test_kernels_stay_within_bounds(monkeypatch):
    monkeypatch.setattr(legality, "MAX_BUFFERS", 2)
    assert reason(two(lambda i: i)) == "too-large"
    monkeypatch.setattr(legality, "MAX_MEMBERS", 1)
    assert reason(two(lambda i: i)) == "too-large"


@pytest.mark.parametrize(("members", "fits"), [(128, True), (129, False)])
def test_a_kernel_has_up_to_128_members(members, fits):
    b, axes = two(lambda i: i), Axes()
    first, second = groups(b, axes)
    many = replace(first, members=first.members * (members - 1))
    found = fusion_of(many, second, ["t"], axes)
    assert isinstance(found, Fusion) if fits else found == FusionRefusal("too-large")


@pytest.mark.parametrize(("columns", "together"), [(7, False), (8, True)])
def test_eight_columns_side_by_side_are_processed_together(columns, together):
    b = Builder()
    x = b.given("x", (512, 128, columns))
    b.sum("s", (512, columns), (128,), lambda o, r: x.at((o[0], *r, o[1])))
    (found,) = groups(b, Axes())
    assert [axis.extent for axis in columns_of(found.members, GPU)] == [columns] * together
    assert walks_across(Fusion(found.members, found.chain[:1])) == together


@pytest.mark.parametrize("columns", [2304, 4096])
def test_parts_that_run_side_by_side_are_not_folded_in_the_program_of_their_results(columns):
    found = schedule(lowered(lambda x: x.amax(0) + x.sum(0), torch.empty(1024, columns)).program, target=GPU)
    parts, results = found.kernels
    assert all("_part" in p.buffer.name for p in parts.params if p.access == "write")
    assert all("_part" in p.buffer.name for p in results.params if p.access == "read")


def test_devices_do_not_mix():
    b = Builder()
    x = b.given("x", (64, 128))
    t = b.map("t", (64, 128), lambda i: op("exp", x.at(i)))
    b.low.device = torch.device("meta")
    u = b.map("u", (64, 128), lambda i: op("neg", x.at(i)))
    found = schedule(b.program(t, u))
    assert len(found.kernels) == 2 and "device" in found.log.refusals


def test_contiguous_axes():
    b = Builder()
    x = b.given("x", (8, 4))
    b.map("t", (8, 4), lambda i: x.at(i), strides=(1, 8))
    b.sum("s", (8,), (4,), lambda o, r: x.at((*o, *r)))
    (first, second) = groups(b, Axes())
    assert contiguous_axis(first.members[0]).extent == 8
    assert contiguous_axis(second.members[0]) is None


@pytest.mark.parametrize("code", sorted(MESSAGES))
def test_every_reason_reads_as_a_sentence(code):
    assert str(FusionRefusal(code, ("x", "y"))) == f"{code} (x, y): {MESSAGES[code]}"
    assert str(FusionRefusal(code)) == f"{code}: {MESSAGES[code]}"


def test_a_contiguous_loop_is_not_shared_around_one_that_crosses():
    """Elements are added along 8 of 8 x 8 x 19712 and read again: the loops over 8 and 19712 would keep 8 inside."""

    def program(x, i):
        return torch.zeros_like(x).scatter_add(1, i, x * 2) + (x * 3).exp()

    x, i = torch.empty(8, 8, 19712), torch.zeros(8, 8, 19712, dtype=torch.int64)
    found = schedule(lowered(program, x, i).program, target=GPU)
    assert all(parallel(kernel) == 8 * 8 * 19712 for kernel in found.kernels)


def parallel(kernel):
    """The iterations of a kernel that run side by side."""
    (loop,) = kernel.body
    count = 1
    while isinstance(loop, Loop) and loop.parallel:
        count *= loop.var.extent
        loop = loop.body[0]
    return count
