"""Max pooling keeps places of 16 bits for its backward: same results, neither its input nor indices are kept."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from regraft.compiler.autograd import differentiate
from regraft.compiler.pooled_places import keep_places
from regraft.compiler.wrapper import generate

aten = torch.ops.aten


class Kept:
    """A backend that keeps places, splits with recomputation, and runs the graphs by calls."""

    def __init__(self):
        torch.compiler.reset()
        self.graphs, self.count = {}, 0

    def __call__(self, graph_module, inputs):
        return differentiate(graph_module, inputs, self._compile, prepare=self._prepare, recompute=True)

    def _prepare(self, graph_module):
        self.count += keep_places(graph_module)

    def _compile(self, graph_module, inputs, kind):
        self.graphs[kind] = graph_module
        return generate(graph_module, name=kind).call

    def kept(self):
        """The tensors that the forward keeps, by dtype, each with its number of elements."""
        results = self.graphs["forward"].graph.output_node().args[0][1:]
        values = [node.meta["val"] for node in results if node.op != "placeholder"]
        return sorted((str(v.dtype), v.numel()) for v in values if isinstance(v, torch.Tensor))


def gradients(function, x):
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = function(x)
    (y * torch.arange(y.numel()).view(y.shape)).sum().backward()
    return y, x.grad


def agrees(function, x):
    kept = Kept()
    theirs = gradients(function, x)
    ours = gradients(torch.compile(function, backend=kept, fullgraph=True, dynamic=False), x)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert ours[1].stride() == theirs[1].stride()
    return kept


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
