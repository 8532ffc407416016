"""Scans on GPUs: elements in lanes rather than one after the other, values against eager, few columns in a program."""

import re

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F
from support.lowering import trace
from support.thorough import one_row_in
from support.triton_kernels import compiles, interpreted_agrees, kernel_source

from regraft.compiler.lowering import lower
from regraft.compiler.lowering.ops import scans
from regraft.compiler.schedule import GPU, schedule
from regraft.compiler.schedule.launches import row_blocks

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch):
    """As on GPUs, where float32 is accumulated in float32."""
    monkeypatch.setattr(scans, "_WIDE", frozenset())


def kernel(function, *inputs):
    """The one kernel of a function, at the sizes of its inputs."""
    (step,) = schedule(lower(trace(function, *inputs), strict=True).program, target=GPU).steps
    return kernel_source(step)


def positions(m):
    return (m.cumsum(1) * m + 1).long()


def gates(z, k):
    s = (-F.softplus(z)).cumsum(1)
    return (s + torch.logcumsumexp(k - s, 1)).exp()


def gated(x, a):
    s = a.cumsum(1)
    return (x * (-s).exp()).cumsum(1) * s.exp()


def ints(*sizes):
    return (torch.rand(sizes) > 0.5).int()


PROGRAMS = {
    "maxima without positions": (lambda x: x.cummax(-1)[0], [torch.randn(33, 65)]),
    "positions of minima": (lambda x: x.cummin(-1)[1] + 1, [torch.randn(9, 70).round()]),
    "positions of a mask": (positions, [ints(5, 300)]),
    "clipped sums": (lambda x: x.cumsum(-1).clamp(max=2) + x, [torch.randn(7, 64)]),
    "clipped sums of columns": (lambda x: x.cumsum(0).clamp(max=2) * x, [torch.randn(20, 300)]),
    "two sums": (lambda x: (x.cumsum(-1).abs()).cumsum(-1) + 1, [torch.rand(4, 50)]),
    "products": (lambda x: 1 - x.sigmoid().cumprod(-1), [torch.randn(6, 40)]),
    "logarithms": (lambda x: x.logcumsumexp(-1) * 2, [torch.randn(6, 40) * 20]),
}


@one_row_in(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_elements_are_lanes_whatever_else_is_made_of_a_scan(name):
    function, inputs = PROGRAMS[name]
    (source,) = interpreted_agrees(function, *inputs, rtol=1e-4, atol=1e-4)
    assert "tl.associative_scan" in source.text
    assert not re.search(r"^ +for ", source.text, re.M), source.text
    assert compiles(source)


@pytest.mark.parametrize("dim", [0, 1])
def test_logarithms_of_infinities(dim):
    x = torch.randn(6, 70) * 10
    x[0, 3], x[1, :40], x[2, 7], x[2, 9], x[3, 5], x[3, 9] = INF, -INF, NAN, INF, INF, NAN
    x = x if dim else x.t().contiguous()
    interpreted_agrees(lambda x: x.logcumsumexp(dim), x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_come_in_blocks(dtype, monkeypatch):
    for most in ("SCANNED", "_LOOPED_SCAN"):  # the interpreter goes through scans one element at a time
        monkeypatch.setattr(row_blocks, most, 128)
    x = torch.randn(2, 300, dtype=dtype) * 3
    (source,) = interpreted_agrees(lambda x: x.logcumsumexp(1), x, rtol=1e-4, atol=1e-4)
    assert "for first" in source.text
    (source,) = interpreted_agrees(lambda x: x.cummax(1), x)
    assert "for first" in source.text


def test_logarithms_need_one_power_for_two():
    text = kernel(lambda x: x.logcumsumexp(1), torch.randn(512, 512)).text
    assert "join_softmax" in text and "join_logaddexp" not in text and "float64" not in text


@pytest.mark.parametrize(
    ("function", "inputs"),
    [(gates, lambda *s: [torch.randn(s), torch.randn(s)]), (gated, lambda *s: [torch.randn(s), torch.randn(s)])],
)
def test_what_follows_scans_of_columns_is_in_their_kernel(function, inputs):
    interpreted_agrees(function, *inputs(2, 20, 24), rtol=1e-3, atol=1e-4)
    source = kernel(function, *inputs(4, 64, 256))
    assert source.text.count("tl.store") == 1 and not re.search(r"^ +for ", source.text, re.M)
    assert compiles(source)


@pytest.mark.parametrize(
    ("sizes", "programs", "warps"), [((8, 512, 512), 512, 4), ((8, 256, 256), 256, 4), ((4, 128, 128), 256, 1)]
)
def test_programs_scan_few_columns_with_few_warps(sizes, programs, warps):
    (launch,) = kernel(lambda x: x.cumsum(1), torch.randn(sizes)).launches
    assert (launch.programs, launch.warps) == (programs, warps)


def test_few_columns_are_as_many_programs():
    (launch,) = kernel(lambda i: F.one_hot(i, 8).cumsum(0), torch.randint(0, 8, (2048,))).launches
    assert launch.programs == 8


def test_short_scans_of_columns_have_many_in_a_program():
    (step,) = schedule(
        lower(trace(lambda x: x.cumsum(0), torch.randn(4, 1 << 18)), strict=True).program, target=GPU
    ).steps
    (made,) = step.launches
    assert (made.blocks.row_block, made.blocks.column_block) == (256, 4)


def test_few_columns_are_scanned_apart_from_what_reads_them_otherwise():
    """616 columns, of which programs would have fewer than memory moves together."""
    x = torch.randn(16, 200, 616)
    steps = schedule(lower(trace(lambda x: (x.tanh(), x[:, ::3].cumsum(1)), x), strict=True).program, target=GPU).steps
    assert len(steps) == 2
