"""Max pooling keeps places of 16 bits for its backward: same results, neither its input nor indices are kept."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns
from torch.utils.checkpoint import checkpoint

from regraft.compiler.passes.max_pool_offsets import save_max_pool_offsets

from ...support.joint_pass import JointPass


def gradients(function, x):
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = function(x)
    (y * torch.arange(y.numel()).view(y.shape)).sum().backward()
    return y, x.grad


def agrees(function, x):
    kept = JointPass(save_max_pool_offsets)
    theirs = gradients(function, x)
    ours = gradients(torch.compile(function, backend=kept, fullgraph=True, dynamic=False), x)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert ours[1].stride() == theirs[1].stride()
    return kept


@one_row_in(2)
@takes_turns("rectified")
@pytest.mark.parametrize(
    "geometry",
    [
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (2, 3)},
        {"kernel_size": 2, "stride": 1, "dilation": (2, 3), "padding": 1},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    ],
)
@pytest.mark.parametrize("rectified", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_results_are_eagers(geometry, rectified, layout):
    def function(x):
        return F.max_pool2d(F.relu(x * 2) if rectified else x * 2, **geometry)

    x = torch.randn(2, 3, 13, 11)
    x[0, 0, :5], x[0, 1] = torch.nan, -torch.inf
    kept = agrees(function, x.contiguous(memory_format=layout))
    assert kept.count == 1
    assert "torch.int16" in dict(kept.kept()) and "torch.int64" not in dict(kept.kept())


def test_neither_the_input_nor_a_rectifiers_result_is_kept():
    kept = agrees(lambda x: F.max_pool2d(F.relu(x.sin()), 2), torch.randn(2, 3, 8, 8))
    assert kept.kept() == [("torch.float32", 2 * 3 * 4 * 4), ("torch.int16", 2 * 3 * 4 * 4)]


def test_a_rectifier_whose_result_others_read_stops_their_gradients_too():
    def function(x):
        y = F.relu(x * 3)
        return F.max_pool2d(y, 2) + F.avg_pool2d(y, 2)

    assert agrees(function, torch.randn(2, 3, 8, 8)).count == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: operator.mul(*F.max_pool2d(x * 2, 2, return_indices=True)),
        lambda x: F.max_pool2d(x.repeat(1, 1, 1, 3000) * 2, (3, 2)),
        lambda x: checkpoint(lambda z: F.max_pool2d(z.exp(), 2), x, use_reentrant=False),
    ],
    ids=["indices are read", "far", "checkpointed"],
)
def test_what_stays(function):
    assert agrees(function, torch.randn(2, 3, 8, 8)).count == 0


def test_three_dims_stay():
    assert agrees(lambda x: F.max_pool3d(x * 2, 2), torch.randn(2, 3, 4, 4, 4)).count == 0


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_network_by_generated_kernels(layout):
    torch.compiler.reset()
    torch.manual_seed(0)
    stem = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1)
    ).to(memory_format=layout)
    x, gradients = torch.randn(2, 3, 19, 17).contiguous(memory_format=layout), []
    for run in (stem, torch.compile(stem, backend="regraft")):
        stem.zero_grad()
        run(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in stem.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-3)
