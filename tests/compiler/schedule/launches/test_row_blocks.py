"""Blocks of folds of rows: several short ones, rows that begin anywhere, very long ones."""

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F
from support.lowering import trace
from support.thorough import thorough
from support.triton_kernels import interpreted_agrees

from regraft.compiler.lowering import lower
from regraft.compiler.schedule import GPU, schedule
from regraft.compiler.schedule.launches.plan import launches

HALF = torch.bfloat16


def blocks(function, *inputs):
    """Rows, columns and warps of the first kernel."""
    kernel = schedule(lower(trace(function, *inputs), strict=True).program, target=GPU).kernels[0]
    (made,) = launches(kernel.body, {p.buffer.name: p.buffer.dtype.itemsize for p in kernel.params})
    return made.blocks.row_block, made.blocks.column_block, made.blocks.warps


def softmax(x):
    return x.softmax(-1)


@pytest.mark.parametrize(
    ("rows", "length", "dtype", "expected"),
    [
        (200_704, 49, HALF, (8, 64, 1)),
        (49_152, 197, HALF, (4, 256, 1)),
        (49_152, 197, torch.float32, (2, 256, 1)),
        (49_152, 200, HALF, (8, 256, 4)),  # each row begins at 16 bytes
        (2001, 33, HALF, (4, 64, 1)),  # programs are few
        (49_152, 13, HALF, (64, 16, 4)),  # lanes go through them as they are
    ],
)
def test_rows_that_begin_anywhere_are_those_of_one_warp(rows, length, dtype, expected):
    assert blocks(softmax, torch.empty(rows, length, dtype=dtype)) == expected


def turned_norm(x):
    return F.layer_norm(x, x.shape[-1:]).transpose(1, 2).contiguous()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((32, 196, 768), (16, 1024, 16)),  # 16 results of two bytes are what memory moves together
        ((32, 200, 2000), (8, 2048, 16)),
    ],
)
def test_rows_that_are_stored_in_columns_fill_sectors(sizes, expected):
    assert blocks(turned_norm, torch.empty(sizes, dtype=HALF)) == expected


def test_but_not_windows():
    """Rows beside each other share elements: a lane's neighbours read what it reads."""
    _, _, warps = blocks(lambda x: F.avg_pool1d(x, 25, 1, 12), torch.empty(32, 7, 336, dtype=HALF))
    assert warps > 1


@pytest.mark.parametrize(
    ("rows", "length", "expected"),
    [(32_768, 128, (16, 128, 4)), (65_536, 256, (8, 256, 4)), (2048, 1024, (2, 1024, 4)), (1024, 1024, (1, 1024, 4))],
)
def test_programs_of_short_rows_have_several(rows, length, expected):
    assert blocks(softmax, torch.empty(rows, length, dtype=HALF)) == expected


def test_long_rows_stay_in_registers_and_longer_ones_come_in_steps():
    norm = lambda x: F.layer_norm(x, x.shape[-1:])  # noqa: E731
    assert blocks(norm, torch.empty(2048, 16_384)) == (1, 16_384, 16)
    assert blocks(norm, torch.empty(2048, 17_000)) == (1, 2048, 8)  # moments
    assert blocks(softmax, torch.empty(2048, 17_000)) == (1, 4096, 16)
    entropy = lambda x, at: F.cross_entropy(x, at, reduction="none")  # noqa: E731
    assert blocks(entropy, torch.empty(2048, 32_000), torch.zeros(2048, dtype=torch.long)) == (1, 512, 8)
    assert blocks(entropy, torch.empty(256, 32_000), torch.zeros(256, dtype=torch.long)) == (1, 1024, 16)


@pytest.mark.parametrize("sizes", [(2200, 49), thorough((1100, 197)), (300, 4100), (3, 17_000)], ids=str)
def test_all_are_eagers(sizes):
    x = torch.randn(sizes)
    interpreted_agrees(lambda x: (x.softmax(-1), x.logsumexp(-1)), x, rtol=1e-4, atol=1e-5)


def scaled(x, y):
    return (x.mean() * y).square().sum(), x.mean()


def scaled_rows(x, y):
    return (x.mean(1, keepdim=True) * y).square().sum(1)


@pytest.mark.parametrize(
    ("function", "sizes", "lanes"), [(scaled, [(100,), (3000,)], 256), (scaled_rows, [(40, 20), (40, 2000)], 256)]
)
def test_short_rows_beside_long_ones_have_an_element_for_each_thread(function, sizes, lanes):
    """Otherwise Triton 3.6 takes them to be cheap, and each thread loads and folds them whole, after longer ones."""
    inputs = [torch.randn(size) for size in sizes]
    (source,) = interpreted_agrees(function, *inputs)
    assert f"tl.arange(0, {lanes})" in source.text
    assert rows_and_threads(function, *inputs) <= lanes


def rows_and_threads(function, *inputs):
    """Threads of a program of the first kernel for each of its rows."""
    rows, _, warps = blocks(function, *inputs)
    return 32 * warps / rows
