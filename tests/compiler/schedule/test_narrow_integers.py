"""Integers of known range take fewer bytes between kernels of a GPU; what others see stays as it is."""

from __future__ import annotations

import pytest
import torch
from support.lowering import trace
from support.schedules import SMALL_GPU
from support.triton_kernels import interpreted_agrees, kernel_source

from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, GPU, schedule


def positions(n, low, high, dtype=torch.int64):
    steps = torch.arange(n)[:, None] - torch.arange(n)
    return (steps.float().abs() + 1).log2().mul(40).ceil().to(dtype).clamp(low, high)


def scores(x, y, low=0, high=511):
    """Relative positions that every head is gathered by."""
    places = positions(x.shape[1], low, high).expand(x.shape[0], -1, -1)
    return torch.gather(x, 2, places) + torch.gather(y, 2, places)


def scheduled(function, *inputs, target=GPU):
    return schedule(lower(trace(function, *inputs), strict=True).program, target=target)


def integers(function, *inputs, target=GPU):
    """The dtypes of integers in memory."""
    found = {buffer.dtype for buffer in scheduled(function, *inputs, target=target).buffers.values()}
    return {dtype for dtype in found if not dtype.is_floating_point}


HEADS = torch.empty(64, 512, 512)


def test_tables_that_heads_are_gathered_by_are_narrow_and_need_no_check():
    assert integers(scores, HEADS, HEADS) == {torch.int16}
    texts = [kernel_source(kernel).text for kernel in scheduled(scores, HEADS, HEADS).kernels]
    assert not any("device_assert" in text for text in texts)


def test_what_may_be_out_of_range_is_checked():
    program = lambda x, y: scores(x, y, 0, 512)  # noqa: E731
    texts = [kernel_source(kernel).text for kernel in scheduled(program, HEADS, HEADS).kernels]
    assert any("device_assert" in text for text in texts)


@pytest.mark.parametrize(
    "low, high, dtype",
    [(-(1 << 15), (1 << 15) - 1, torch.int16), (-(1 << 15) - 1, 0, torch.int32), (0, 1 << 15, torch.int32)],
)
def test_they_are_as_wide_as_they_must_be(low, high, dtype):
    assert integers(lambda x, y: scores(x, y, low, high), HEADS, HEADS) == {dtype}


def test_those_of_unknown_range_stay():
    places = torch.zeros(512, 512, dtype=torch.int64)
    program = lambda x, i: torch.gather(x, 2, (i * 3 % 7 * i).expand(64, -1, -1))  # noqa: E731
    assert torch.int16 not in integers(program, HEADS, places)


def test_results_and_processors_stay_as_they_are():
    def program(x):
        places = positions(512, 0, 511)
        return torch.gather(x, 2, places.expand(64, -1, -1)), places

    assert integers(program, HEADS) == {torch.int64}
    assert torch.int16 not in integers(scores, HEADS, HEADS, target=CPU)


def test_values():
    x, y = torch.randn(3, 40, 40), torch.randn(3, 40, 40)
    interpreted_agrees(lambda x, y: scores(x, y, 0, 39), x, y, target=SMALL_GPU)
    interpreted_agrees(lambda x, y: scores(x, y, 0, 39).sum(2), x, y, target=GPU)
