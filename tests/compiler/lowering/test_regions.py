"""Writes to slices, diagonals and windows, and gradients of views, against eager."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.lowering import agree, lowered
from support.tensors import FLOATS, WHOLE, tensor_and_dim
from support.thorough import examples

aten = torch.ops.aten
EXAMPLES = settings(max_examples=examples(6, 15), deadline=None)
PAIRS = tensor_and_dim((*FLOATS, *WHOLE), min_rank=1)


def own(pair):
    """The tensor in memory of its own: of an expanded one, eager (torch 2.11) writes to all copies of an element."""
    x, dim = pair
    return (x.clone(memory_format=torch.contiguous_format) if 0 in x.stride() else x), dim


ENDS = st.one_of(st.none(), st.integers(-7, 7))


@EXAMPLES
@given(PAIRS, ENDS, ENDS, st.integers(1, 3), st.booleans())
def test_slice_scatter(pair, start, end, step, dynamic):
    x, dim = own(pair)
    src = torch.zeros_like(aten.slice(x, dim, start, end, step))
    agree(lambda x, s: aten.slice_scatter(x, s, dim, start, end, step), x, src, exact=True, dynamic=dynamic)


@EXAMPLES
@given(PAIRS, st.integers(-7, 7), st.integers(-7, 7), st.integers(1, 3), st.booleans())
def test_gradient_of_a_slice(pair, start, end, step, dynamic):
    x, dim = pair
    grad = aten.slice(x, dim, start, end, step)
    agree(
        lambda g, x: aten.slice_backward(g, list(x.shape), dim, start, end, step), grad, x, exact=True, dynamic=dynamic
    )


@EXAMPLES
@given(PAIRS, st.integers(-5, 4), st.booleans())
def test_one_index(pair, index, dynamic):
    x, dim = own(pair)
    assume(-x.shape[dim] <= index < x.shape[dim])
    part = x.select(dim, index)
    agree(lambda x, s: aten.select_scatter(x, s, dim, index), x, torch.zeros_like(part), exact=True, dynamic=dynamic)
    agree(lambda g, x: aten.select_backward(g, list(x.shape), dim, index), part, x, exact=True, dynamic=dynamic)


@EXAMPLES
@given(tensor_and_dim(FLOATS, min_rank=2), st.integers(-3, 3), st.data(), st.booleans())
def test_diagonals(pair, offset, data, dynamic):
    x, a = own(pair)
    b = data.draw(st.integers(0, x.dim() - 1))
    assume(a % x.dim() != b)
    new = (a % x.dim(), b)  # of what `diag_embed` makes, which has a dim more
    diagonal = x.diagonal(offset, a, b)
    src = torch.zeros_like(diagonal)
    agree(lambda x, s: aten.diagonal_scatter(x, s, offset, a, b), x, src, exact=True, dynamic=dynamic)
    back = aten.diagonal_backward
    agree(lambda g, x: back(g, list(x.shape), offset, a, b), diagonal, x, exact=True, dynamic=dynamic)
    agree(lambda x: aten.diag_embed(x, offset, *new), x, exact=True, dynamic=dynamic)


@EXAMPLES
@given(tensor_and_dim((torch.float64,), min_rank=1, special=False), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_gradient_of_windows(pair, size, step, dynamic):
    x, dim = pair
    assume(size <= x.shape[dim])
    grad = x.unfold(dim, size, step)
    agree(lambda g, x: aten.unfold_backward(g, list(x.shape), dim, size, step), grad, x, dynamic=dynamic)


@pytest.mark.parametrize("size", [4, 400])
def test_a_write_to_a_slice_costs_the_slice(size):
    made = lowered(lambda x, s: aten.slice_scatter(x, s, 0, 1, 3), torch.ones(size, 2), torch.ones(2, 2))
    copy, write = made.program.items
    assert copy.stores[0].buffer == write.stores[0].buffer
    assert [var.extent for var in write.loops] == [2, 2]
