"""Which buffers may share memory."""

from __future__ import annotations

import torch
from support.schedules import Builder, assert_same, op, softmax

from regraft.compiler.schedule import overwrites


def pairs(b, *outputs):
    return {pair for kernel in assert_same(b.program(*outputs)).kernels for pair in overwrites(kernel)}


def test_element_by_element():
    b = Builder()
    x, row = b.given("x", (8, 4)), b.given("row", (4,))
    t = b.map("t", (8, 4), lambda i: op("add", x.at(i), row.at(i[1:])))
    assert pairs(b, t) == {("t", "x")}


def test_the_same_memory_under_another_shape():
    b = Builder()
    x = b.given("x", (2, 4, 4))
    t = b.map("t", (8, 4), lambda i: op("exp", x.at((i[0] // 4, i[0] % 4, i[1]))))
    assert pairs(b, t) == {("t", "x")}


def test_not_an_element_that_is_read_later():
    b = Builder()
    x = b.given("x", (8, 8))
    t = b.map("t", (8, 8), lambda i: op("add", x.at(i), x.at((i[1], i[0]))))
    assert not pairs(b, t)


def test_not_what_another_statement_reads_later():
    b = Builder()
    x = b.given("x", (8, 4))
    t = b.map("t", (8, 4), lambda i: op("exp", x.at(i)))
    u = b.map("u", (8, 4), lambda i: op("sin", x.at(i)))
    assert pairs(b, t, u) == {("u", "x")}


def test_not_what_an_earlier_pass_over_the_row_reads():
    b = Builder()
    out = softmax(b, b.given("x", (8, 16)))
    assert not pairs(b, out)


def test_elements_have_one_size():
    b = Builder()
    x, y = b.given("x", (8,), dtype=torch.float64), b.given("y", (8,), dtype=torch.int32)
    t = b.map("t", (8,), lambda i: op("lt", x.at(i), x.at(i)), torch.bool)
    u = b.map("u", (8,), lambda i: y.at(i), torch.float32)
    assert pairs(b, t, u) == {("u", "y")}
