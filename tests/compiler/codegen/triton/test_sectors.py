"""Generated kernels for GPUs touch whole sectors of memory, in whatever order their operands lie."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F
from support.lowering import trace
from support.sectors import share_moved

from regraft.compiler.lowering import lower
from regraft.compiler.schedule import GPU, schedule

aten = torch.ops.aten
HALF = torch.bfloat16


def rows(*sizes):
    return torch.randn(sizes).to(HALF)


def last(*sizes):
    return rows(*sizes).to(memory_format=torch.channels_last)


def kernels(function, *inputs):
    return list(schedule(lower(trace(function, *inputs), strict=True).program, target=GPU).kernels)


def group_norm(x, weight, bias):
    return F.silu(F.group_norm(x, 16, weight, bias))


def group_norm_backward(dy, x, weight):
    mean, rstd = x.float().flatten(2).mean(2)[:, :16], x.float().flatten(2).mean(2)[:, 16:32]
    return aten.native_group_norm_backward(dy, x, mean, rstd, weight, 8, 64, 1024, 16, [True, True, True])


def batch_norm(x, weight, bias):
    return F.batch_norm(x, None, None, weight, bias, training=True)


IMAGE = (8, 64, 32, 32)
PROGRAMS = {
    "softmax": (lambda x: x.softmax(-1), rows(2048, 512)),
    "layer norm": (lambda x: F.layer_norm(x, (512,)), rows(2048, 512)),
    "column sums": (lambda x: x.sum(0), rows(4096, 512)),
    "transposition": (lambda x: x.mT.contiguous(), rows(1024, 1024)),
    "into channels last": (lambda x: x.relu().contiguous(memory_format=torch.channels_last), rows(*IMAGE)),
    "mean of squares, channels last": (lambda x: x.square().mean(), last(*IMAGE)),
    "mean of places, channels last": (lambda x: x.mean((2, 3)), last(*IMAGE)),
    "largest of all, channels last": (lambda x: x.amax(), last(*IMAGE)),
    "norm of channels of an image": (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (64,)), rows(*IMAGE)),
    "scale between image and rows": (lambda a, b: (a * b.mT).sum((0, 2)), rows(8, 64, 1024), rows(8, 1024, 64)),
    "batch norm": (batch_norm, rows(*IMAGE), rows(64), rows(64)),
    "batch norm, channels last": (batch_norm, last(*IMAGE), rows(64), rows(64)),
    "group norm": (group_norm, rows(*IMAGE), rows(64), rows(64)),
    "group norm, channels last": (group_norm, last(*IMAGE), rows(64), rows(64)),
    "group norm backward": (group_norm_backward, rows(*IMAGE), rows(*IMAGE), rows(64)),
    "group norm backward, channels last": (group_norm_backward, last(*IMAGE), last(*IMAGE), rows(64)),
}
LIMIT = 1.5  # times what is asked for: ends of rows, and small tables beside them


@pytest.mark.parametrize("name", PROGRAMS)
def test_sectors_are_whole(name):
    function, *inputs = PROGRAMS[name]
    assert share_moved(kernels(function, *inputs)) < LIMIT


def test_pieces_of_sectors_are_seen():
    """Each fourth number of 16 bits: of a sector, a quarter is asked for."""
    assert share_moved(kernels(lambda x: x[:, 0].neg(), rows(4096, 4))) > LIMIT
