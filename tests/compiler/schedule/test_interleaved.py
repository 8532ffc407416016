"""Loops over interleaved elements become loops over groups, where everything else is the same for a group."""

from __future__ import annotations

import pytest
import torch
from support.schedules import Builder, assert_same, body_text, loops_of, op

from regraft.compiler.ir.index.index import Loaded, add, quotient, remainder
from regraft.compiler.ir.value import Const, Guarded, Load, Number
from regraft.compiler.schedule import CPU, GPU
from regraft.compiler.schedule.inlining import inline
from regraft.compiler.schedule.interleaved import by_groups

I64 = torch.int64


def interleaved(groups, size=2, ahead=1, place=lambda i: i, divisor=None):
    """Results of which each group has one value after the other, behind some rows that stay."""
    b = Builder()
    x, w = b.given("x", (6, groups)), b.given("w", (6, groups))
    parts = [
        b.map(
            f"part{k}",
            (6, groups),
            lambda i, k=k: op("add", op("mul", x.at(i), w.at(i)), op("exp", (x, w)[k % 2].at(i))),
        )
        for k in range(size)
    ]
    y = b.made("y", (6 + ahead, size * groups))

    def chosen(i):
        value = parts[-1].at(i[:2])
        for k in reversed(range(size - 1)):
            test = op("lt", Number(i[2], I64), Const(k + 1, I64))
            value = Guarded(test, parts[k].at(i[:2]), value, torch.float32)
        return value

    stack = b.map("stack", (6, groups, size), chosen)

    def element(i):
        return stack.at((i[0], quotient(i[1], size), remainder(place(i[1]), divisor or size)))

    b.write("all", y, (6, size * groups), lambda i: (add(i[0], ahead), i[1]), element)
    return b, y


@pytest.mark.parametrize(("groups", "size", "ahead"), [(32, 2, 1), (5, 2, 0), (16, 3, 2)])
def test_values_are_computed_where_they_are_chosen(groups, size, ahead):
    b, y = interleaved(groups, size, ahead)
    program = b.program(y)
    (kernel,) = assert_same(program, target=GPU).kernels
    assert [buffer.sizes for buffer in kernel.scratch] == [(1,)] * size, body_text(kernel)
    assert loops_of(kernel)[-1].var.extent == size and "%" not in body_text(kernel)
    assert_same(program, target=CPU)


@pytest.mark.parametrize(
    "more",
    [
        {"place": lambda i: add(i, 1)},  # groups that begin elsewhere
        {"divisor": 1},
    ],
)
def test_other_places_stay(more):
    b, y = interleaved(6, **more)
    program = b.program(y)
    item = inline(program.items, program.buffers, program.outputs, GPU)[0][-1]
    assert item.name == "all" and by_groups(item) is item
    assert_same(program, target=GPU)


def test_groups_that_are_cut_off_or_looked_up_stay():
    b = Builder()
    x = b.given("x", (8,))
    b.given("at", (8,), dtype=I64)
    is_even = lambda i: op("lt", Number(remainder(i[0], 2), I64), Const(1, I64))  # noqa: E731
    cut = b.map("cut", (7,), lambda i: Guarded(is_even(i), x.at(i), op("neg", x.at(i)), torch.float32))

    def found(i):
        index = Loaded(Load("at", (i[0],), I64), 8, False).index()
        return Guarded(is_even(i), x.at((index,)), x.at(i), torch.float32)

    looked_up = b.map("looked_up", (8,), found)
    program = b.program(cut, looked_up)
    assert [by_groups(item) for item in program.items] == list(program.items)
