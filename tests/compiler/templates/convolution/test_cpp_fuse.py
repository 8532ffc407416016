"""Convolutions on CPUs by the direct kernel: when it is chosen, and what then runs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from support.freezing import frozen
from support.rewriting import compiled
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.channels_last import spread_channels_last
from regraft.compiler.templates import TemplateKernel, direct_rivals, fuse_direct_convolutions
from regraft.rewrites.profit import Always, Decision, Never, Question
from regraft.rewrites.record import Evidence, GraphRecord

aten = torch.ops.aten


class Told:
    """An oracle that has measured already."""

    def __init__(self, times: Mapping[str, float]) -> None:
        self.times = times
        self.questions: list[Question] = []

    def decide(self, question: Question) -> Decision:
        self.questions.append(question)
        known = {name: seconds for name, seconds in self.times.items() if name in ("original", *question.candidates)}
        return Decision(None, Evidence(known, "measured"))


def traced(training: bool = False):
    x, w, b = torch.randn(1, 8, 12, 12), torch.randn(16, 8, 3, 3), torch.randn(16)
    geometry = [1, 1], [1, 1], [1, 1], False, [0, 0], 1

    def forward(x, w, b):
        return aten.convolution(x, w, b, *geometry).relu()

    def backward(g, x, w):
        return aten.convolution_backward(g, x, w, [16], *geometry, [True, True, True])

    if not training:
        return make_fx(forward, tracing_mode="fake")(x, w, b), (x, w, b)
    given = torch.randn(1, 16, 12, 12), x, w
    return make_fx(backward, tracing_mode="fake")(*given), given


def kernels(graph_module) -> list[TemplateKernel]:
    return [node.target for node in graph_module.graph.nodes if isinstance(node.target, TemplateKernel)]


@pytest.mark.parametrize(
    "times, chosen",
    [
        ({"original": 2.0, "direct": 1.0}, True),
        ({"original": 2.0, "direct": 1.0, "onednn": 0.9}, False),
        ({"original": 2.0, "direct": 1.0, "channels_last": 0.9}, True),
        ({"original": 1.0, "direct": 0.99}, False),
        ({"original": 1.0}, False),
    ],
)
def test_the_fastest_in_the_present_layout_is_chosen(times, chosen) -> None:
    graph_module, given = traced()
    record = GraphRecord("test")
    assert fuse_direct_convolutions(graph_module, Told(times), record) == chosen
    assert len(kernels(graph_module)) == chosen
    assert len(record.applied) == chosen and len(record.declined) == (not chosen)
    torch.testing.assert_close(graph_module(*given), aten.convolution(*given, [1], [1], [1], False, [0], 1).relu())


@pytest.mark.parametrize("resampled", [False, True])
def test_the_layout_of_a_network_depends_on_the_kernel_unless_images_are_resampled(resampled) -> None:
    """Kernels that resample are slow where pixels lie side by side: such networks are laid out as without it."""

    def network(x, w):
        y = aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        return aten.upsample_nearest2d.vec(y, None, [2.0, 2.0]) if resampled else y.relu()

    graph_module = make_fx(network, tracing_mode="fake")(torch.randn(1, 8, 12, 12), torch.randn(8, 8, 3, 3))
    oracle = Told({"original": 4.0, "channels_last": 2.0, "direct": 1.0})
    spread = spread_channels_last(graph_module, oracle, GraphRecord("test"), rivals=direct_rivals)
    assert spread.chosen == resampled
    assert ("direct" in oracle.questions[0].candidates) != resampled


def test_a_gradient_for_images_leaves_the_call() -> None:
    graph_module, given = traced(training=True)
    expected = graph_module(*given)
    assert fuse_direct_convolutions(graph_module, Always(), GraphRecord("test")) == 1
    (node,) = graph_module.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert node.args[-1] == [False, True, True]
    for ours, theirs in zip(graph_module(*given), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_nothing_is_replaced_where_nothing_may_be() -> None:
    graph_module, _ = traced()
    assert fuse_direct_convolutions(graph_module, Never(), GraphRecord("test")) == 0


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(6, 16, 3, padding=2, dilation=2), nn.BatchNorm1d(16), nn.ReLU(), nn.ConvTranspose1d(16, 5, 4, 2, 1)
    )


def test_inference() -> None:
    model, x = network().eval(), torch.randn(2, 6, 70)
    for run, cov in (compiled(model), frozen(model)):
        with cov, torch.no_grad():
            made, expected = run(x), model(x)
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)
        assert made.stride() == expected.stride()
        assert cov.matches["convolution-template"] == 2


def test_channels_last_images_are_left_to_libraries() -> None:
    model, x = nn.Conv2d(6, 9, 3, padding=1), torch.randn(2, 6, 9, 9).to(memory_format=torch.channels_last)
    run, cov = compiled(model)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert not cov.matches.get("convolution-template")


def test_training() -> None:
    torch.manual_seed(0)
    model, x = network(), torch.randn(2, 6, 70, requires_grad=True)
    run, cov = compiled(model)
    with cov:
        ours = torch.autograd.grad(run(x).square().sum(), [x, *model.parameters()])
    theirs = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert cov.matches["convolution-template"] == 4


@pytest.mark.parametrize("options", [{"kernels.products": "library"}, {"without": ("convolution-template",)}])
def test_switched_off(options) -> None:
    model, x = network().eval(), torch.randn(2, 6, 70)
    run, cov = compiled(model, **options)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert not cov.matches.get("convolution-template")


def test_a_wrapper_in_cpp_gives_the_kernel_its_sizes() -> None:
    model, x = network().eval(), torch.randn(2, 6, 70)
    run, cov = compiled(model, **{"cpp.wrapper": True})
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert cov.matches["convolution-template"] == 2
