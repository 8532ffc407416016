"""Reductions of one shape become one where nothing is in their way."""

from __future__ import annotations

import torch
from support.schedules import Builder, op

from regraft.compiler.ir.interpreter import run_program
from regraft.compiler.ir.program import Program
from regraft.compiler.schedule.second_stages import join_second_stages


def joined(program, *names):
    items = join_second_stages(program.items, names)
    return Program(program.buffers, items, program.outputs)


def sums(b, *names, columns=6):
    x = b.given("x", (9, columns))
    return [b.sum(n, (columns,), (9,), lambda o, r: op("mul", x.at((*r, *o)), x.at((*r, *o)))) for n in names]


def test_sums_of_one_shape_are_one_definition():
    b = Builder()
    program = b.program(*sums(b, "p", "q", "r"))
    (only,) = joined(program, "p", "q", "r").items
    assert only.name == "r" and [s.buffer for s in only.stores] == ["p", "q", "r"]
    assert only.nodes == ("p", "q", "r")


def test_only_those_named_move():
    b = Builder()
    program = b.program(*sums(b, "p", "q"))
    assert [item.name for item in joined(program, "p").items] == ["q", "p"]


def test_what_is_read_in_between_comes_before():
    b = Builder()
    (p,) = sums(b, "p")
    u = b.map("u", (6,), lambda i: op("neg", p.at(i)))
    q = b.sum("q", (6,), (6,), lambda o, r: u.at(r))
    program = b.program(p, q)
    assert [item.name for item in joined(program, "p", "q").items] == ["p", "u", "q"]


def test_what_is_overwritten_in_between_is_read_before():
    b = Builder()
    x = b.given("x", (9, 6))
    p = b.sum("p", (6,), (9,), lambda o, r: x.at((*r, *o)))
    b.write("copy_", x, (9, 6), lambda i: i, lambda i: op("neg", x.at(i)))
    q = b.sum("q", (6,), (9,), lambda o, r: x.at((*r, *o)))
    program = b.program(p, q)
    assert [item.name for item in joined(program, "p", "q").items] == ["p", "copy_", "q"]


def test_other_shapes_stay_apart():
    b = Builder()
    x, y = b.given("x", (9, 6)), b.given("y", (9, 7))
    p = b.sum("p", (6,), (9,), lambda o, r: x.at((*r, *o)))
    q = b.sum("q", (7,), (9,), lambda o, r: y.at((*r, *o)))
    assert len(joined(b.program(p, q), "p", "q").items) == 2


def test_it_computes_the_same():
    b = Builder()
    program = b.program(*sums(b, *(f"p{k}" for k in range(11))))
    made = joined(program, *program.outputs)
    assert len(made.items) == 2
    x = {"x": torch.randn(9, 6)}
    expected, actual = run_program(program, dict(x)), run_program(made, dict(x))
    assert all(expected[name].equal(actual[name]) for name in program.outputs)
