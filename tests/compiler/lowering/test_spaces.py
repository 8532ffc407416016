"""Iteration spaces of reductions."""

from __future__ import annotations

import pytest
import torch

from regraft.compiler.ir.index.index import Size
from regraft.compiler.ir.program import Buffer
from regraft.compiler.lowering.core import Unlowered, contiguous, whole
from regraft.compiler.lowering.spaces import CACHED_EXTENT, Space, require_elements, space

S = Size("s", 2, None).index()
UNKNOWN = Size("u", 0, None).index()


def tensor(*sizes):
    return whole(Buffer("x", torch.float32, sizes, contiguous(sizes), torch.device("cpu"), "input"))


@pytest.mark.parametrize(
    ("dim", "dims"), [(None, (0, 1, 2)), ([], (0, 1, 2)), (-1, (2,)), ([2, 0], (0, 2)), ([-1, -3], (0, 2))]
)
def test_dims_as_aten_spells_them(dim, dims):
    assert space(tensor(2, 3, 4), dim).dims == dims


def test_a_number_has_one_row_of_one():
    of = space(tensor(), 0)
    assert (of.outer, of.inner, of.shape, of.count) == ((), (1,), (), 1)


@pytest.mark.parametrize(("keepdim", "shape"), [(False, (3,)), (True, (1, 3, 1))])
def test_sizes_of_both_sides(keepdim, shape):
    of = Space((2, 3, 4), (0, 2), keepdim)
    assert (of.outer, of.inner, of.shape, of.count) == ((3,), (2, 4), shape, 8)


@pytest.mark.parametrize(("keepdim", "row"), [(False, (1,)), (True, (0, 1, 0))])
def test_indices_of_both_sides(keepdim, row):
    of = Space((2, 3, 4), (0, 2), keepdim)
    assert of.indices((1,), (0, 3)) == (0, 1, 3)
    assert of.result((0, 1, 3)) == row
    assert of.row((1,)) == row
    assert of.position((1, 3)) == 7


def test_only_static_short_rows_are_cached():
    assert Space((3, CACHED_EXTENT), (1,)).cached
    assert not Space((3, CACHED_EXTENT + 1), (1,)).cached
    assert not Space((3, S), (1,)).cached


def test_rows_that_may_be_empty():
    require_elements(Space((0, 3), (1,)))
    require_elements(Space((3, S), (1,)))
    for size in (0, UNKNOWN):
        with pytest.raises(Unlowered):
            require_elements(Space((3, size), (1,)))
