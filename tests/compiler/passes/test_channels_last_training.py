"""Channels-last in training, as on GPUs: forward, gradients and running statistics are eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from support.freezing import residual_network
from support.rewriting import compiled
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes import channels_last
from regraft.rewrites.graph import op_name
from regraft.rewrites.profit import Always, Decision, Question
from regraft.rewrites.record import Evidence, GraphRecord

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def as_on_gpus(monkeypatch) -> None:
    """CPUs lay out weights and gradients too."""
    monkeypatch.setattr(channels_last, "is_on_cuda", lambda node: True)


class Noted:
    """The joint graph after the pass."""

    def __init__(self, monkeypatch) -> None:
        self.graphs: list[fx.Graph] = []
        convert = channels_last._convert

        def noting(graph_module, found, keep_stream):
            count = convert(graph_module, found, keep_stream)
            self.graphs.append(graph_module.graph)
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


class Asked:
    """An oracle that notes what it is asked, and keeps everything as it is."""

    def __init__(self) -> None:
        self.questions: list[Question] = []

    def decide(self, question: Question) -> Decision:
        self.questions.append(question)
        return Decision(None, Evidence({"original": 1e-3, "channels_last": 2e-3}, "measured"))


def test_gradients_that_lie_otherwise_are_converted() -> None:
    """Hidden states that are transposed before a convolution lie with channels last; its gradient need not."""
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def step(x, w, g):
        return aten.convolution_backward(g, x, w, [8], *geometry, [True, True, False]), aten.convolution(
            x, w, None, *geometry
        )

    last = {"memory_format": torch.channels_last}
    x, w, g = torch.randn(2, 8, 9, 9).contiguous(**last), torch.randn(8, 8, 3, 3), torch.randn(2, 8, 9, 9)
    graph = make_fx(step, tracing_mode="fake")(x, w, g)
    spread = channels_last.spread_channels_last(graph, Always(), GraphRecord("joint"), training=True)
    assert spread.chosen and spread.conversions == 2
    (call,) = graph.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert all(n.meta["val"].is_contiguous(**last) for n in call.args[:3])


@pytest.mark.parametrize("mask", [[True, True, False], [False, True, True]])
def test_gradients_are_timed_with_their_convolution(mask: list[bool]) -> None:
    """A library may have a fast kernel for the one and a slow one for the other."""
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 8)

    def step(x, w, g):
        made = aten.convolution(x, w, None, *geometry)
        return made, aten.convolution_backward(g, x, w, [8], *geometry, mask)

    x, w, g = torch.randn(2, 8, 9, 9), torch.randn(8, 1, 3, 3), torch.randn(2, 8, 9, 9)
    graph = make_fx(step, tracing_mode="fake")(x, w, g)
    oracle = Asked()
    channels_last.spread_channels_last(graph, oracle, GraphRecord("joint"), training=True)
    (question,) = oracle.questions
    assert len(question.inputs) == 4
    results = [run(x, w, None, g) for run in (question.original, question.candidates["channels_last"])]
    assert len(results[0]) == 3
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


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
