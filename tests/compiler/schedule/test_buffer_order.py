"""Memory in the order in which it is read: which buffers get other strides, and that results stay."""

from __future__ import annotations

import functools

import pytest
from support.schedules import Builder, assert_same, op

from regraft.compiler.ir.index.index import add, mul
from regraft.compiler.schedule import CPU, GPU, inlining, schedule
from regraft.compiler.schedule.buffer_order import as_folds_read, in_reading_order

N, HEADS = 12, 32


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """The table is kept, though computing such a small one again takes less than a launch."""
    monkeypatch.setattr(inlining, "LAUNCH", 0)


def biased(heads=HEADS, *, swapped=True, more=lambda b, t, y: (y,)):
    """A table of positions, and scores of many heads that it is added to, transposed."""
    b = Builder()
    x, q = b.given("x", (heads, N, N)), b.given("q", (N, N))
    table = b.map("table", (N, N), lambda i: op("log", op("exp", q.at(i))))

    def value(i, r):
        return (op("add", x.at((*i, *r)), table.at((*r, i[1]) if swapped else (i[1], *r))),)

    y = b.sum("y", (heads, N), (N,), value)
    return b.program(*more(b, table, y))


def strides(program, target=GPU):
    return schedule(program, target=target).program.buffers["table"].strides


def test_a_table_that_every_head_reads_transposed_is_written_so():
    found = assert_same(biased(), target=GPU)
    assert found.buffers["table"].strides == (1, N)
    assert found.program.buffers["table"].sizes == (N, N)


@pytest.mark.parametrize(
    ("program", "target"),
    [
        (biased(swapped=False), GPU),
        (biased(heads=4), GPU),
        (biased(more=lambda b, table, y: (table, y)), GPU),
        (biased(), CPU),
    ],
    ids=["read in order", "read a few times", "a result", "on a CPU"],
)
def test_others_stay(program, target):
    assert strides(program, target) == (N, 1)


def test_what_a_call_reads_stays():
    def more(b, table, y):
        b.extern("call", ["table"], ["out"])
        return (y,)

    program = biased(more=more)
    assert in_reading_order(program.items, program.buffers, program.outputs)["table"].strides == (N, 1)


def test_reads_that_skip_elements_do_not_count():
    b = Builder()
    x, table = b.given("x", (HEADS, N)), b.map("table", (2 * N, N), lambda i: op("log", b.given("q", (2 * N, N)).at(i)))
    y = b.sum("y", (HEADS, N), (N,), lambda i, r: (op("add", x.at((i[0], *r)), table.at((mul(r[0], 2), i[1]))),))
    program = b.program(y)
    assert in_reading_order(program.items, program.buffers, program.outputs)["table"].strides == (N, 1)


def test_readers_of_nothing_else_take_the_order_of_what_they_read():
    """Moments of windows of an image whose channels lie side by side, written with the channels' loop outside."""
    b = Builder()
    q = b.given("q", (69, N))
    table = b.map("table", (69, N), lambda i: op("log", op("exp", q.at(i))))

    def value(i, r):
        windows = [table.at((add(r[1], k), r[0])) for k in range(10)]
        return (functools.reduce(lambda x, y: op("add", x, y), windows),)

    program = b.program(b.sum("y", (1,), (N, 60), value))
    assert in_reading_order(program.items, program.buffers, program.outputs)["table"].strides == (N, 1)
    assert_same(program, target=GPU)


def test_folds_of_rows_take_the_order_of_the_rows():
    """What they store, and read once a row, lies along the loop of rows: less than the rows themselves."""
    b = Builder()
    q = b.given("q", (N, N))
    table = b.map("table", (N, N), lambda i: op("log", op("exp", q.at(i))))
    made = [b.sum("y0", (N,), (N,), lambda i, r: (table.at((*i, *r)),))]
    for k in range(1, 12):
        before = made[-1]
        fold = lambda i, r, before=before: (op("add", table.at((*i, *r)), before.at(i)),)  # noqa: E731
        made.append(b.sum(f"y{k}", (N,), (N,), fold))
    program = b.program(*made)
    assert in_reading_order(program.items, program.buffers, program.outputs)["table"].strides == (N, 1)
    assert_same(program, target=GPU)


# -- the order in which they are written ------------------------------------------------------------------------------


def branches(more=lambda b, table: (b.sum("y", (N,), (HEADS,), lambda i, r: (table.at((*i, *r)),)),), other=True):
    """A sum of images whose channels lie side by side, stored with channels apart; what reads it."""
    b = Builder()
    x, q = b.given("x", (N, HEADS), strides=(1, N)), b.given("q", (N, HEADS), strides=(1, N) if other else None)
    table = b.sum("table", (N, HEADS), (9,), lambda i, r: (op("add", op("exp", x.at(i)), q.at(i)),))
    return b.program(*more(b, table))


def test_sums_that_no_reader_wants_otherwise_are_laid_out_as_they_are_written():
    program = branches()
    found = assert_same(program, target=GPU)
    assert found.program.buffers["table"].strides == (1, N)


def test_readers_in_order_count_more():
    program = branches(lambda b, table: (b.map("y", (N, HEADS), lambda i: op("log", op("exp", table.at(i)))),))
    assert in_reading_order(program.items, program.buffers, program.outputs)["table"].strides == (HEADS, 1)


def test_writers_of_both_orders_stay():
    program = branches(other=False)
    assert in_reading_order(program.items, program.buffers, program.outputs)["table"].strides == (HEADS, 1)


def test_results_stay():
    program = branches(lambda b, table: (table,))
    assert in_reading_order(program.items, program.buffers, program.outputs)["table"].strides == (HEADS, 1)


@pytest.mark.parametrize("target", [CPU, GPU])
@pytest.mark.parametrize(
    ("strides", "expected"),
    [
        ((1, 40, 4), (1, 4)),  # memory in reverse
        ((60, 10, 1), (6, 1)),
        ((1, 4, 24), (1, 4)),
        ((60, 1, 6), (6, 1)),
    ],
)
def test_results_of_folds_lie_as_what_is_folded(strides, expected, target):
    """The mean of 4 x 6 rows, and what is left without it."""
    sizes = (4, 6, 10)
    b = Builder()
    x = b.given("x", sizes, strides)
    mean = b.sum("mean", sizes[:2], sizes[2:], lambda i, r: x.at((*i, *r)))
    rest = b.map("rest", sizes, lambda i: op("sub", x.at(i), mean.at(i[:2])), strides=strides)
    found = assert_same(b.program(rest), target=target)
    assert found.program.buffers["mean"].strides == expected
    kept = schedule(b.program(rest, mean), target=target).program.buffers["mean"]
    assert kept.strides == (6, 1)  # promised


def test_results_of_few_elements_stay():
    b = Builder()
    x = b.given("x", (4, 6, 2), (1, 4, 24))
    total = b.sum("total", (4, 6), (2,), lambda i, r: x.at((*i, *r)))
    b.map("rest", (4, 6), lambda i: op("exp", total.at(i)))
    assert as_folds_read(b.low.items, b.low.buffers, ())["total"].strides == (6, 1)
