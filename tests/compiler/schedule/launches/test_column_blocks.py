"""Folds of columns, as batch normalization of channels-last has them, with what computes the columns inside."""

from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch
from support.triton_kernels import compile_for, interpreted_agrees, kernel_source

from regraft.compiler.schedule import GPU
from regraft.compiler.schedule.launches import plan

from ...codegen.cpp.test_reductions import fold_kernel

TARGET = replace(GPU, busy=64, share=0, programs=128, lanes=16, chunk=64)
aten = torch.ops.aten


def channels_last(*sizes):
    return torch.randn(sizes).to(memory_format=torch.channels_last)


def normalized(dy, x, weight, mean, rstd):
    return aten.native_batch_norm_backward(dy, x, weight, None, None, mean, rstd, True, 1e-5, [True, True, True])


def positive(dy, y, x, weight, mean, rstd):
    """Backward of relu(batch_norm(x))."""
    return normalized(aten.threshold_backward(dy, y, 0), x, weight, mean, rstd)


def residual(a, b, y, x, weight, mean, rstd):
    """Backward of relu(batch_norm(x) + z) of which two read the result."""
    dz = aten.threshold_backward(a + b, y, 0)
    return *normalized(dz, x, weight, mean, rstd), dz


def inputs(tensors, sizes=(4, 32, 6, 7)):
    x = channels_last(*sizes)
    mean, rstd = x.mean((0, 2, 3)), 1 / x.std((0, 2, 3))
    return [*(channels_last(*sizes) for _ in range(tensors)), x, torch.randn(sizes[1]), mean, rstd]


@pytest.mark.parametrize("sizes", [(16, 32, 6, 7), (8, 16, 8, 8), (9, 40, 5, 9)])
def test_sums_of_what_was_positive_need_no_kernel_before(sizes):
    sources = interpreted_agrees(positive, *inputs(2, sizes), target=TARGET, atol=1e-4, rtol=1e-4)
    assert len(sources) == 3  # partial sums, sums, elements


@pytest.mark.parametrize("sizes", [(8, 16, 8, 8), (32, 24, 4, 4), (5, 40, 16, 8)])
def test_a_gradient_for_several_is_stored_where_it_is_summed(sizes):
    sources = interpreted_agrees(residual, *inputs(3, sizes), target=TARGET, atol=1e-4, rtol=1e-4)
    first, _, last = sources
    assert "tl.reduce" in first.text and "<= 0.0" in first.text and "<= 0.0" not in last.text
    assert all(compile_for(first, 90, aligned=True))


def test_elements_are_not_divided_by_how_many_there_are():
    sources = interpreted_agrees(positive, *inputs(2), target=TARGET, atol=1e-4, rtol=1e-4)
    assert not any("quotient" in source.text for source in sources)


def test_means_in_blocks_divide_once_a_block():
    """One number for all lanes: of as many elements each has seen."""
    source = kernel_source(fold_kernel("welford", torch.float32, 1 << 15, 700, along=False))
    assert "add_welford(" in source.text and "add_welford_inside(" in source.text
    (assembly,) = compile_for(source, 90, aligned=True)
    start = assembly.index("$L__BB0_1:")
    loop = assembly[start : assembly.index("bra", start)]
    assert loop.count("div.") == 1


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (64, 512, (16, 256, 4)),
        (64, 4096, (16, 256, 4)),
        (4096, 4096, (32, 256, 8)),
        (2048, 16, (16, 16, 1)),
        (65536, 512, (32, 16, 4)),
    ],
)
def test_few_programs_take_much_at_once(rows, columns, expected):
    """Nothing else hides what memory takes: second stages of sums."""
    (launch,) = plan.launches(fold_kernel("sum", torch.float32, rows, columns, along=False).body)
    blocks = launch.blocks
    assert (blocks.row_block, blocks.column_block, blocks.warps) == expected


def test_of_symbolic_sizes():
    interpreted_agrees(residual, *inputs(3, (8, 16, 8, 8)), dynamic=True, target=TARGET, atol=1e-4, rtol=1e-4)
