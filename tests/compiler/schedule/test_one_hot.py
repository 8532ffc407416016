"""Sums of one-hot rows are what the row chooses; other sums stay."""

from __future__ import annotations

import torch

from regraft.compiler.ir.value import Const, Number, Op
from regraft.compiler.schedule import GPU
from regraft.compiler.schedule.one_hot import without_one_hot

from ...support.schedules import Builder, assert_same, number, op

I64 = torch.int64


def chosen(t, i, j, *more):
    condition = Op("eq", (t.at(i), Number(j, I64)), torch.bool)
    for test in more:
        condition = Op("logical_and", (condition, test), torch.bool)
    return condition


def program(value, classes=6):
    """The sums of ``value(x, t, i, j)`` over classes j; targets are 0, 1 or 2."""
    b = Builder()
    x, t = b.given("x", (5,)), b.given("t", (5,), dtype=I64)
    made = b.sum("y", (5,), (classes,), lambda o, r: value(x, t, o, r[0]))
    return b.program(made)


def one_hot(x, t, i, j):
    return Op("where", (chosen(t, i, j), x.at(i), number(0.0)), torch.float32)


def test_a_one_hot_row_is_its_element():
    made = program(one_hot)
    assert not without_one_hot(made.items[0]).reductions
    found = assert_same(made, target=GPU)
    assert "fold" not in str(found.kernels[0].body)


def test_targets_out_of_range_count_nothing():
    assert_same(program(one_hot, classes=2), target=GPU)


def test_other_conditions_are_kept():
    def value(x, t, i, j):
        odd = Op("ne", (t.at(i), Const(1, I64)), torch.bool)
        return Op("where", (chosen(t, i, j, odd), x.at(i), number(0.0)), torch.float32)

    made = program(value)
    assert not without_one_hot(made.items[0]).reductions
    assert_same(made, target=GPU)


def test_what_is_not_one_hot_stays():
    values = {
        "elsewhere not zero": lambda x, t, i, j: Op("where", (chosen(t, i, j), x.at(i), number(1.0)), torch.float32),
        "depends on the class": lambda x, t, i, j: Op(
            "where", (chosen(t, i, j), Number(j, torch.float32), number(0.0)), torch.float32
        ),
        "another place": lambda x, t, i, j: Op("where", (chosen(t, i, j + 1), x.at(i), number(0.0)), torch.float32),
        "no choice": lambda x, t, i, j: op("mul", x.at(i), x.at(i)),
    }
    for value in values.values():
        made = program(value)
        assert without_one_hot(made.items[0]) is made.items[0]
        assert_same(made, target=GPU)
