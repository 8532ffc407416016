"""Kernels that share a launch: which may, and what they cost in memory and order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.lowering import lowered
from support.schedules import Builder, assert_same, number, op

from regraft.compiler.ir.index.index import add
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.ir.printer import kernel_text
from regraft.compiler.schedule import CPU, GPU, check_schedule, overwrites, schedule
from regraft.rewrites.switches import StepSearch, search


def update(b, name, size, other=None):
    """x = 2 * x (+ other), in place."""
    x = b.given(name, (size,))

    def value(i):
        doubled = op("mul", x.at(i), number(2.0))
        return doubled if other is None else op("add", doubled, other.at((0,)))

    b.write(f"{name}_new", x, (size,), lambda i: i, value)
    return x


def parts(found):
    return [len(kernel.parts) for kernel in found.kernels]


def test_updates_of_many_sizes_share_a_launch_on_gpus_only():
    def program():
        b = Builder()
        for k, size in enumerate((10, 768, 5, 3000)):
            update(b, f"x{k}", size)
        return b.program()

    found = assert_same(program(), target=GPU)
    assert parts(found) == [4]
    assert "beside the others" in kernel_text(found.kernels[0])
    assert [len(names) for names in found.log.shared] == [4]
    assert "one launch for" in str(found.log)
    assert all(not kernel.parts for kernel in schedule(program(), target=CPU).kernels)


def test_pieces_of_one_result_share_a_launch():
    """The order of stores to different elements does not matter, and what reads the result comes after them."""
    x, y, w = torch.empty(8, 512, 64), torch.empty(8, 16, 64), torch.empty(8, 64, 10)
    program = lowered(lambda x, y, w: torch.cat([x, y], 1) @ w, x, y, w).program
    found = schedule(program, target=GPU)
    assert not check_schedule(program, found)
    assert parts(found) == [2]
    assert not isinstance(found.steps[-1], Kernel)


def test_a_row_of_a_large_buffer_is_little():
    """As much as is written counts, not what lies around it: rows of caches, of two computations."""
    b = Builder()
    for k, length in enumerate((1 << 20, 1 << 21)):
        cache, row = b.given(f"cache{k}", (length,)), b.given(f"row{k}", (64,))
        size = 32 << k

        def value(i, row=row, k=k):
            return row.at(i) if k else op("mul", row.at(i), number(2.0))

        b.write(f"cache{k}_new", cache, (size,), lambda i: i, value)
    found = assert_same(b.program(), target=GPU)
    assert parts(found) == [2]


def test_what_depends_on_another_never_joins_it():
    """A chain through calls: each update reads what a call made of the one before."""
    b = Builder()
    other = b.given("start", (1,))
    for k in range(4):
        update(b, f"x{k}", 64, other)
        other = b.made(f"c{k}", (1,))
        b.extern(f"c{k}", [f"x{k}"], [f"c{k}"], pure=False)
    found = schedule(b.program(), target=GPU)
    assert parts(found) == [0, 0, 0, 0]


def test_levels_join_across_what_stands_between():
    """for each: s[0] = ..., then a long loop that reads it: all of the first kind, then all of the second."""
    b = Builder()
    for k in range(5):
        x, s = b.given(f"x{k}", (1 << 16,)), b.given(f"s{k}", (1,))
        b.write(f"s{k}_new", s, (1,), lambda i: i, lambda i, s=s: op("add", s.at(i), number(1.0)))
        b.write(f"x{k}_new", x, (1 << 16,), lambda i: i, lambda i, x=x, s=s: op("mul", x.at(i), s.at((0,))))
    program = b.program()
    found = schedule(program, target=GPU)
    assert not check_schedule(program, found)
    assert sorted(parts(found)) == [5, 5]


def test_writes_to_one_buffer_keep_their_order():
    b = Builder()
    x = b.given("x", (100,))
    for k in range(3):
        b.write(f"w{k}", x, (40,), lambda i, k=k: (add(i[0], 30 * k),), lambda i, k=k: number(float(k)))
    found = assert_same(b.program(), target=GPU)
    assert not any(found.log.shared)


def test_large_nests_stay_alone():
    b = Builder()
    for k in range(2):
        update(b, f"small{k}", 64)
        update(b, f"large{k}", 1 << 26)
    found = schedule(b.program(), target=GPU)
    assert sorted(parts(found)) == [0, 0, 2]


@pytest.mark.parametrize("size", [64, 1 << 22])
def test_memory_that_waits_does_not_raise_the_peak(size):
    """Results that calls use up one after the other: where they are large, not all of them are made at once."""
    b = Builder()
    for k in range(6):
        x = b.given(f"x{k}", (size,))
        t = b.map(f"t{k}", (size,), lambda i, x=x: op("exp", x.at(i)))
        b.extern(f"use{k}", [t.buffer.name], [], pure=False)
    found = schedule(b.program(), target=GPU)
    assert parts(found) == ([6] if size == 64 else [0] * 6)


def test_nothing_is_written_over_what_another_part_reads():
    """y1 could take x's place, if x were not read beside it."""
    b = Builder()
    x = b.made("x", (64,))
    b.extern("x", [], ["x"], pure=False)
    outs = [b.map(f"y{k}", (64,), lambda i, k=k: op("mul", x.at(i), number(float(k)))) for k in range(2)]
    whole = schedule(b.program(*outs), target=GPU)
    (kernel,) = whole.kernels
    apart = schedule(b.program(*outs), target=replace(GPU, shared=0), fuse=False).kernels
    together = Kernel("both", tuple({p.buffer.name: p for k in apart for p in k.params}.values()), (), (),
                      tuple(s for k in apart for s in k.body), parts=apart)  # fmt: skip
    assert kernel and not overwrites(together)
    assert overwrites(apart[0])


def test_the_check_finds_parts_that_race():
    b = Builder()
    x = b.given("x", (64,))
    t = b.map("t", (64,), lambda i: op("exp", x.at(i)))
    b.extern("keep", ["t"], [], pure=False)
    u = b.map("u", (64,), lambda i: op("exp", t.at(i)))
    program = b.program(u)
    found = schedule(program, target=replace(GPU, shared=0), fuse=False)
    first, call, second = found.steps
    both = Kernel("both", tuple({p.buffer.name: p for k in (first, second) for p in k.params}.values()), (), (),
                  (*first.body, *second.body), parts=(first, second))  # fmt: skip
    findings = check_schedule(program, replace(found, steps=(both, call)))
    assert "race" in {finding.code for finding in findings}


def test_switches_leave_launches_apart():
    b = Builder()
    for k in range(3):
        update(b, f"x{k}", 64)
    program = b.program()
    with search(StepSearch({"fusion": 0})):
        assert parts(schedule(program, target=GPU)) == [0, 0, 0]
    with search(StepSearch()) as every:
        schedule(program, target=GPU)
    steps = every.steps["fusion"]
    assert [step.name.split()[1] for step in steps[-2:]] == ["beside", "beside"]
    with search(StepSearch({"fusion": len(steps) - 1})):
        assert sorted(parts(schedule(program, target=GPU))) == [0, 2]
