"""Flat memory: spans of buffers, offsets of accesses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.schedules import Builder, op

from regraft.compiler.ir.evaluator import flat
from regraft.compiler.ir.index.index import Size
from regraft.compiler.ir.program import Buffer
from regraft.compiler.schedule.flat_access import flat_buffer, flatten


def buffer(sizes, strides, **more):
    return Buffer("b", torch.float32, sizes, strides, torch.device("cpu"), **more)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 2, 5, 20])), max_size=3))
def test_the_span_is_that_of_the_memory(dims):
    sizes, strides = tuple(s for s, _ in dims), tuple(t for _, t in dims)
    memory = torch.empty(200).as_strided(sizes, strides)
    assert flat_buffer(buffer(sizes, strides)).sizes == tuple(flat(memory).shape)


def test_dense_symbolic_memory_has_the_product_of_its_sizes():
    s = Size("s", 0, None).index()
    assert flat_buffer(buffer((s, 128, 4), (512, 4, 1))).sizes == (512 * s,)
    assert flat_buffer(buffer((4, s), (1, 4))).sizes == (4 * s,)


def test_numbers_passed_by_value_stay_as_they_are():
    scalar = buffer((), (), scalar=True)
    assert flat_buffer(scalar) is scalar


@pytest.mark.parametrize(("strides", "offset"), [((4, 1), "i0 + 4*i1"), ((1, 8), "8*i0 + i1"), ((0, 1), "i0")])
def test_accesses_become_offsets(strides, offset):
    b = Builder()
    x = b.given("x", (8, 4) if strides != (1, 8) else (4, 8), strides)
    b.map("t", (4, 8) if strides != (1, 8) else (8, 4), lambda i: op("neg", x.at((i[1], i[0]))))
    (store,) = flatten(b.low.items[0], b.low.buffers).stores
    assert repr(store.value.args[0].indices[0]) == offset
    assert len(store.indices) == 1


def test_a_view_of_rows_is_one_offset():
    b = Builder()
    x = b.given("x", (2, 128, 768))
    b.map("t", (256, 768), lambda i: x.at((i[0] // 128, i[0] % 128, i[1])))
    (store,) = flatten(b.low.items[0], b.low.buffers).stores
    assert store.value.indices == store.indices
