"""Calls that give their input again, on devices and in layouts that programs on CPUs do not show."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from regraft.compiler.capture.eager_refuses import eager_may_refuse
from regraft.compiler.capture.given_again import with_given_again
from regraft.rewrites.compat import new_fake_mode
from regraft.rewrites.compat.memory import storage_key

SHUFFLE, DROPOUT = torch.ops.aten.channel_shuffle.default, torch.ops.aten.dropout.default
TABLE = with_given_again(fx.Graph(), {})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_channels_that_stay_where_they_are(groups, device):
    """Eager copies on CPUs; on other devices it gives a view where nothing moves."""
    with new_fake_mode(None):
        x = torch.empty(2, 4, 3, 3, device=device)
        if device == "cpu":
            assert TABLE[SHUFFLE](x, groups) is NotImplemented
        elif groups != 2:  # a copy needs CUDA
            assert storage_key(TABLE[SHUFFLE](x, groups)) == storage_key(x)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_channels_are_shuffled_as_by_eager(groups, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "device", torch.device("meta"))
    x = torch.arange(72.0).reshape(2, 4, 3, 3)
    shuffled = TABLE[SHUFFLE](x, groups)
    monkeypatch.undo()
    assert torch.equal(shuffled, F.channel_shuffle(x, groups))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("strides", [(36, 9, 3, 1), (36, 1, 12, 4), (36, 9, 1, 3), (1, 2, 8, 24)])
def test_channels_that_eager_cannot_split(strides, device):
    graph = fx.Graph()
    shuffled = graph.call_function(SHUFFLE, (graph.placeholder("x"), 2))
    graph.output(shuffled)
    with new_fake_mode(None):
        x = torch.empty_strided((2, 4, 3, 3), strides, device=device)
    for node in graph.nodes:
        node.meta["val"] = x
    refused = device == "cuda" and strides in ((36, 9, 1, 3), (1, 2, 8, 24))
    assert (eager_may_refuse(graph) is not None) == refused


@pytest.mark.parametrize("grad", [False, True])
def test_no_channels(grad):
    """Eager gives a view, but where a gradient flows it refuses what has no channels."""
    x = torch.randn(1, 0, 7, 4, requires_grad=grad)
    assert (TABLE[SHUFFLE](x, 2) is NotImplemented) == grad
    assert TABLE[SHUFFLE](torch.randn(0, 4, 2, 3, requires_grad=grad), 2) is not NotImplemented


@pytest.mark.parametrize("arguments", [(0.0, True), (0, True), (0.5, False)])
def test_dropout_that_drops_nothing(arguments):
    x = torch.ones(3)
    assert TABLE[DROPOUT](x, *arguments) is x
    assert TABLE[DROPOUT](x, 0.5, True) is NotImplemented
