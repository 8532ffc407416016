"""Channels-last in training, as on GPUs: forward, gradients and running statistics are eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from support.freezing import residual_network
from support.rewriting import compiled
from torch import fx, nn

from regraft.compiler.passes import channels_last
from regraft.rewrites.graph import op_name


@pytest.fixture(autouse=True)
def as_on_gpus(monkeypatch) -> None:
    """CPUs lay out weights and gradients too."""
    monkeypatch.setattr(channels_last, "is_on_cuda", lambda node: True)


class Noted:
    """The joint graph after the pass."""

    def __init__(self, monkeypatch) -> None:
        self.graphs: list[fx.Graph] = []
        convert = channels_last._convert

        def noting(graph, found, keep_stream):
            count = convert(graph, found, keep_stream)
            self.graphs.append(graph)
            return count

        monkeypatch.setattr(channels_last, "_convert", noting)


def gradients(model: nn.Module, run, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    out = run(x)
    out.square().mean().backward()
    kept = [b.clone() for b in model.buffers() if b.dim()]
    return [out.detach(), x.grad, *(p.grad.clone() for p in model.parameters()), *kept]


def strides(x: torch.Tensor) -> list[int]:
    """Strides of dims of more than one element: the others say nothing."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_training(mode: str, monkeypatch) -> None:
    noted = Noted(monkeypatch)
    model = residual_network().train(mode == "train")
    twin, x = copy.deepcopy(model), torch.randn(4, 3, 32, 32)
    run, cov = compiled(model)
    with cov:
        found = gradients(model, run, x)
    for a, b in zip(found, gradients(twin, twin, x), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4)
        assert strides(a) == strides(b)
    assert not cov.graphs[0].fallbacks and cov.graphs[0].details["channels_last"]["chosen"]
    (graph,) = noted.graphs
    calls = [n for n in graph.nodes if op_name(n) in ("aten.convolution", "aten.convolution_backward")]
    assert len(calls) == 12
    images = [n for call in calls for n in call.all_input_nodes if n.meta["val"].dim() == 4]
    assert all(n.meta["val"].is_contiguous(memory_format=torch.channels_last) for n in images)
