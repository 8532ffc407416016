"""Blocks of kernels without folds: how many elements a program and a lane have, by how long code is."""

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F

from .test_lanes import kernels, planned

S = torch.empty


def H(*shape):
    return S(*shape, dtype=torch.bfloat16)


def blocks(function, *inputs):
    """Rows, columns and warps of the last kernel."""
    (*_, kernel) = kernels(function, *inputs)
    made = planned(kernel)[0].blocks
    return made.row_block, made.column_block, made.warps


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        (300, (1, 256, 8)),
        (1 << 16, (1, 256, 8)),
        (1 << 17, (1, 512, 8)),
        (1 << 18, (1, 1024, 8)),  # 256 programs are as good as twice as many as there are multiprocessors, 264
        (1 << 19, (1, 1024, 8)),
        (1 << 20, (1, 2048, 4)),
        (1 << 21, (1, 1024, 4)),
    ],
)
def test_short_code(elements, expected):
    assert blocks(torch.relu, H(elements)) == expected


@pytest.mark.parametrize(
    ("elements", "expected"), [(1 << 16, (1, 256, 8)), (1 << 18, (1, 512, 8)), (1 << 20, (1, 1024, 4))]
)
@pytest.mark.parametrize("function", [torch.lgamma, lambda x: x.exp().log1p().tanh(), lambda x: x.double().exp()])
def test_long_code_has_smaller_programs(function, elements, expected):
    if function(torch.zeros(1)).dtype == torch.float64 and elements == 1 << 20:
        expected = (1, 1024, 4)
    assert blocks(function, H(elements)) == expected


@pytest.mark.parametrize(
    ("rows", "expected"), [(256, (4, 128, 8)), (1024, (8, 128, 4)), (2048, (16, 128, 4)), (4096, (8, 128, 4))]
)
def test_tiles_of_short_code(rows, expected):
    """In tiles a program computes more, once a row."""
    add = lambda x, y, m: x + y * m  # noqa: E731
    assert blocks(add, H(rows, 600), H(rows, 600), H(rows, 1)) == expected


def test_lanes_that_add_to_memory_have_two_elements():
    add = lambda x, i, y: x.index_add(0, i, y)  # noqa: E731
    rows, columns, warps = blocks(add, S(8, 16), torch.zeros(1024, dtype=torch.long), S(1024, 16))
    assert rows * columns == 64 * warps


def test_what_is_stored_anywhere_is_stored_by_small_programs():
    put = lambda x, i: F.max_unpool2d(x, i, 2)  # noqa: E731
    assert blocks(put, H(8, 64, 28, 28), torch.zeros(8, 64, 28, 28, dtype=torch.long)) == (2, 128, 2)


@pytest.mark.parametrize(("images", "expected"), [(1, 1), (64, 4)])
def test_lanes_of_very_many_programs_have_twice_the_elements_whose_accesses_are_narrow(images, expected):
    rows, columns, warps = blocks(lambda x: F.avg_pool2d(x, 2), H(images, 64, 56, 56))
    assert rows * columns == 32 * warps * expected
