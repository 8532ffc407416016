"""Definitions over empty spaces keep their stores and lose all else."""

import pytest
import torch
from support.schedules import Builder, assert_same, number, op

from regraft.compiler.ir.index.index import Late
from regraft.compiler.ir.program import Definition
from regraft.compiler.ir.value import Load, walk
from regraft.compiler.schedule.dependences import tokens
from regraft.compiler.schedule.empty import without_empty_work


def reduction(sizes, reduced):
    b = Builder()
    x = b.given("x", (*sizes, *reduced))
    made = b.sum("total", sizes, reduced, lambda o, r: x.at((*o, *r)))
    return b, made


def test_reductions_for_no_rows_vanish():
    b, made = reduction((3, 0), (4,))
    (item,) = b.program(made).items
    empty = without_empty_work(item)
    assert isinstance(empty, Definition) and not empty.reductions and [v.extent for v in empty.loops] == [0]
    assert [(s.buffer, s.indices, s.value.number) for s in empty.stores] == [("total", (0, 0), 0.0)]
    assert_same(b.program(made))


@pytest.mark.parametrize(("sizes", "reduced"), [((3,), (0,)), ((20,), (3, 0)), ((), (0,))])
def test_reductions_of_no_columns_stay_and_read_nothing(sizes, reduced):
    """What they read has no memory, not even at its start, where a loop's invariants would be read from."""
    b, made = reduction(sizes, reduced)
    (item,) = b.program(made).items
    empty = without_empty_work(item)
    assert (empty.loops, empty.reduced, empty.stores) == (item.loops, item.reduced, item.stores)
    assert not [read for r in empty.reductions for read in walk(r.values) if isinstance(read, Load)]
    assert_same(b.program(made))


def test_scans_of_nothing_vanish():
    b = Builder()
    x = b.given("x", (3, 0))
    made = b.scan("scan", (3,), 0, x.at)
    (item,) = b.program(made).items
    assert not without_empty_work(item).scan
    assert_same(b.program(made))


def test_the_dtype_of_a_store_is_kept():
    b = Builder()
    x = b.given("x", (0, 2))
    positive = b.map("positive", (0, 2), lambda i: op("gt", x.at(i), number(0.0)), torch.bool)
    (item,) = b.program(positive).items
    assert without_empty_work(item).stores[0].value.number is False
    assert_same(b.program(positive))


def test_sizes_that_a_call_makes_known_stay():
    """The memory of the result is allocated with them."""
    u0 = Late("u0", 0, 9, ("known u0",)).index()
    b, made = reduction((u0, 0, 3), (4,))
    (item,) = b.program(made).items
    empty = without_empty_work(item)
    assert tokens(empty) == {"known u0"} and [v.extent for v in empty.loops] == [u0, 0] and not empty.reductions
