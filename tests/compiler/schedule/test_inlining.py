"""What is inlined, and why the rest is not."""

from __future__ import annotations

import pytest
import torch
from support.schedules import Builder, assert_same, number, op

from regraft.compiler.ir.index.index import Loaded, add
from regraft.compiler.lowering.core import const
from regraft.compiler.schedule import GPU, inlining
from regraft.compiler.schedule.dependences import checked
from regraft.compiler.schedule.inlining import NOT_INLINED, inline


def decisions(b, *outputs):
    program = b.program(*outputs)
    assert_same(program, extern=lambda item, tensors: {item.writes[0]: tensors[item.reads[0]].clone()})
    _, log = inline(program.items, program.buffers, program.outputs)
    return dict(log)


def test_a_costly_value_goes_to_its_one_reader():
    b = Builder()
    x = b.given("x", (4, 8))
    t = b.map("t", (4, 8), lambda i: op("exp", x.at(i)))
    u = b.map("u", (8, 4), lambda i: op("neg", t.at((i[1], i[0]))))
    assert decisions(b, u)["t"] == ""


def test_but_not_where_it_would_be_computed_again():
    b = Builder()
    x = b.given("x", (4,))
    t = b.map("t", (4,), lambda i: op("exp", x.at(i)))
    u = b.map("u", (4, 8), lambda i: op("neg", t.at(i[:1])))
    assert decisions(b, u)["t"] == "recomputed"


@pytest.mark.parametrize(("width", "reason"), [(3, ""), (7, "recomputed")])
def test_windows_that_overlap_much_compute_it_again(width, reason):
    b = Builder()
    x = b.given("x", (32,))
    t = b.map("t", (32,), lambda i: op("exp", x.at(i)))
    u = b.sum("u", (32 - width,), (width,), lambda o, r: t.at((add(o[0], r[0]),)))
    assert decisions(b, u)["t"] == reason


def test_nor_under_an_index_read_from_memory():
    b = Builder()
    x, ids = b.given("x", (4,)), b.given("ids", (8,), dtype=torch.int64)
    t = b.map("t", (4,), lambda i: op("exp", x.at(i)))
    u = b.map("u", (8,), lambda i: t.at((Loaded(ids.at(i), 4, False).index(),)))
    assert decisions(b, u)["t"] == "recomputed"


@pytest.mark.parametrize("columns, reason", [(4096, ""), (16, "recomputed")])
def test_what_all_lanes_of_a_row_share_is_computed_there_on_gpus(columns, reason):
    """Rows that an index picks, which is made of another one: once a row, or at each of few columns."""
    b = Builder()
    x, ids = b.given("x", (50, columns)), b.given("ids", (40000,), dtype=torch.int64)
    t = b.map("t", (40000,), lambda i: op("remainder", ids.at(i), const(50, torch.int64)), dtype=torch.int64)
    u = b.map("u", (40000, columns), lambda i: x.at((Loaded(t.at(i[:1]), 50, False).index(), i[1])))
    program = b.program(u)
    _, log = inline(program.items, program.buffers, program.outputs, GPU)
    assert dict(log)["t"] == reason


def test_nor_where_an_index_that_must_be_in_range_would_go_with_it():
    for size, kept in ((4, "checked"), (1, "")):
        b = Builder()
        x, ids = b.given("x", ()), b.given("ids", (8,), dtype=torch.int64)
        t = b.map("t", (4,), lambda i, x=x: op("neg", x.at(())))
        at = lambda i, ids=ids, size=size: ids.at(i) if size == 4 else op("remainder", ids.at(i), const(4, torch.int64))  # noqa: E731
        u = b.map("u", (8,), lambda i, t=t, at=at: t.at((Loaded(at(i), 4, False).index(),)))
        assert decisions(b, u)["t"] == kept


def test_a_value_that_an_index_picks_is_not_simplified_away():
    b = Builder()
    x, ids = b.given("x", (4,), dtype=torch.int64), b.given("ids", (8,), dtype=torch.int64)
    u = b.map("u", (8,), lambda i: op("mul", x.at((Loaded(ids.at(i), 4, False).index(),)), const(0, torch.int64)))
    program = b.program(u)
    left, _ = inline(program.items, program.buffers, program.outputs)
    assert checked(left[0]) == checked(program.items[0]) != frozenset()


def test_what_is_cheap_goes_to_all_readers():
    b = Builder()
    x = b.given("x", (4,))
    t = b.map("t", (4,), lambda i: op("add", x.at(i), number(1.0)))
    u = b.map("u", (4, 8), lambda i: op("neg", t.at(i[:1])))
    s = b.sum("s", (), (4,), lambda o, r: t.at(r))
    assert decisions(b, u, s)["t"] == ""


@pytest.mark.parametrize(
    ("rows", "name", "reason"), [(40, "div", ""), (20, "div", "recomputed"), (40, "exp", "recomputed")]
)
def test_large_values_of_pairs_go_to_all_readers(rows, name, reason, monkeypatch):
    """Computing them again takes less time than memory, unless they stay in a cache or take long."""
    monkeypatch.setattr(inlining, "_LARGE", 4 * 30 * 30)
    b = Builder()
    x, y = b.given("x", (rows,)), b.given("y", (rows,))

    def pair(i):
        value = op("sub", x.at(i[:1]), y.at(i[1:]))
        return op("div", value, number(3.0)) if name == "div" else op("exp", value)

    t = b.map("t", (rows, rows), pair)
    u = b.sum("u", (rows,), (rows,), lambda o, r: t.at((*o, *r)))
    v = b.sum("v", (rows,), (rows,), lambda o, r: t.at((*r, *o)))
    assert decisions(b, u, v)["t"] == reason


def test_outputs_and_what_calls_read_stay():
    b = Builder()
    x = b.given("x", (4,))
    t = b.map("t", (4,), lambda i: op("neg", x.at(i)))
    b.map("u", (4,), lambda i: op("neg", t.at(i)))
    c = b.made("c", (4,))
    b.extern("c", ["u"], ["c"])
    found = decisions(b, t, c)
    assert found == {"t": "kept", "u": "kept"}


def test_not_past_a_write_to_what_it_reads():
    b = Builder()
    x = b.given("x", (4,))
    t = b.map("t", (4,), lambda i: op("neg", x.at(i)))
    b.write("copy_", x, (4,), lambda i: i, lambda i: number(0.0))
    u = b.map("u", (4,), lambda i: op("neg", t.at(i)))
    assert decisions(b, u)["t"] == "overwritten"


def test_into_the_write_of_the_very_element():
    b = Builder()
    x = b.given("x", (4,))
    t = b.map("t", (4,), lambda i: op("exp", x.at(i)))
    b.write("copy_", x, (4,), lambda i: i, t.at)
    assert decisions(b)["t"] == ""


def test_not_into_the_write_of_another_element():
    b = Builder()
    x = b.given("x", (4,))
    t = b.map("t", (4,), lambda i: op("exp", x.at((3 - i[0],))))
    b.write("copy_", x, (4,), lambda i: i, t.at)
    assert decisions(b)["t"] == "overwritten"


def test_parts_of_a_buffer_are_not_pointwise():
    b = Builder()
    x, made = b.given("x", (4,)), b.made("cat", (8,))
    for part in range(2):
        b.write("part", made, (4,), lambda i, part=part: (i[0] + 4 * part,), x.at)
    u = b.map("u", (8,), lambda i: op("neg", made.at(i)))
    assert decisions(b, u) == {"u": "kept"}


def test_values_do_not_grow_without_bound():
    b = Builder()
    t = b.given("x", (4,))
    for k in range(12):
        t = b.map(f"t{k}", (4,), lambda i, t=t: op("add", op("exp", t.at(i)), op("exp", t.at(((i[0] + 1) % 4,)))))
    assert set(decisions(b, t).values()) <= {*NOT_INLINED, ""}
    t = b.given("y", (4,))
    for k in range(300):
        t = b.map(f"u{k}", (4,), lambda i, t=t: op("sin", t.at(i)))
    assert "large" in decisions(b, t).values()


@pytest.mark.parametrize("kept", [True, False])
def test_nodes_are_kept_for_provenance(kept):
    b = Builder()
    x = b.given("x", (4,))
    t = b.map("t", (4,), lambda i: op("exp", x.at(i)))
    u = b.map("u", (4,), lambda i: op("neg", t.at(i)))
    found = assert_same(b.program(t, u) if kept else b.program(u))
    assert [k.nodes for k in found.kernels] == [("t", "u")]
