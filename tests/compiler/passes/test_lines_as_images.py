"""Convolutions over one dim as those of images of one row: results and gradients, and that layouts spread."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from support.pipeline import replace_pass
from support.rewriting import compiled
from support.thorough import one_row_in, takes_turns
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from regraft.compiler.passes.lines_as_images import lines_as_images

aten = torch.ops.aten
CPU = ("cpu",)

LAYERS = {
    "plain": nn.Conv1d(6, 8, 3),
    "stride, padding": nn.Conv1d(6, 8, 3, stride=2, padding=1),
    "dilated": nn.Conv1d(6, 8, 3, dilation=2, bias=False),
    "groups": nn.Conv1d(32, 32, 5, groups=2, padding="same"),
    "pointwise": nn.Conv1d(6, 1, 1),
    "transposed": nn.ConvTranspose1d(6, 4, 4, stride=3, padding=1, output_padding=2),
}


def traced(function: Any, *inputs: torch.Tensor) -> fx.GraphModule:
    module = make_fx(function, tracing_mode="fake")(*inputs)
    module.graph.eliminate_dead_code()
    return module


@one_row_in(2)
@takes_turns("turned")
@pytest.mark.parametrize("turned", [False, True], ids=["channels apart", "channels last"])
@pytest.mark.parametrize("kind", LAYERS)
def test_results_and_gradients(kind: str, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result keeps its strides, and all gradients are those of the layer."""
    replace_pass(monkeypatch, "lines_as_images", partial(lines_as_images, devices=CPU))
    layer = LAYERS[kind]
    channels = layer.in_channels
    x = torch.randn(2, 11, channels).transpose(1, 2) if turned else torch.randn(2, channels, 11)

    def steps(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.func.functional_call(layer, {"weight": weight, **({} if bias is None else {"bias": bias})}, (x,))
        return y, torch.tanh(y.transpose(1, 2))

    leaves = [t.detach().clone().requires_grad_() for t in (layer.weight, layer.bias) if t is not None]
    given = [x.detach().requires_grad_(), *leaves, *([None] if layer.bias is None else [])]
    results = []
    run, cov = compiled(steps)
    for function in (steps, run):
        with cov:
            made = function(*given)
            made[1].square().sum().backward()
        results.append((*made, *(t.grad for t in given if t is not None)))
        for t in given:
            if t is not None:
                t.grad = None
    assert cov.graphs[0].changes("lines_as_images") == {"changes": 2}
    for eagers, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-4)
        assert ours.stride() == eagers.stride()


def test_graph() -> None:
    """One view of each operand, for a convolution and its gradients together; the channels of its result lie last."""

    def step(x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv1d(x.transpose(1, 2), weight, padding=1)
        geometry = ([1], [1], [1], False, [0], 1, [True, True, False])
        return y.transpose(1, 2) + 1, *aten.convolution_backward(gradient, x.transpose(1, 2), weight, None, *geometry)[
            :2
        ]

    given = torch.randn(2, 10, 4), torch.randn(5, 4, 3), torch.randn(2, 5, 10)
    module = traced(step, *given)
    assert lines_as_images(module, CPU) == 2
    for found, expected in zip(module(*given), step(*given), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    (call,) = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert call.meta["val"].is_contiguous(memory_format=torch.channels_last)
    assert call.args[3:] == ([1, 1], [0, 1], [1, 1], False, [0, 0], 1)
    assert len(module.graph.find_nodes(op="call_function", target=aten.unsqueeze.default)) <= 4


@pytest.mark.parametrize("shape, weight", [((2, 4, 6, 7), (3, 4, 2, 2)), ((1, 3, 4, 5, 6), (2, 3, 1, 1, 1))])
def test_images_stay(shape: tuple[int, ...], weight: tuple[int, ...]) -> None:
    call = F.conv2d if len(shape) == 4 else F.conv3d
    assert lines_as_images(traced(call, torch.randn(shape), torch.randn(weight)), CPU) == 0


def test_few_channels_in_a_group_are_images_in_half_precision_alone() -> None:
    """Of single precision, libraries have no good gradients with channels last."""

    def depthwise(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x, weight, groups=6)

    given = torch.randn(2, 6, 11), torch.randn(6, 1, 3)
    assert lines_as_images(traced(depthwise, *given), CPU) == 0
    assert lines_as_images(traced(depthwise, *(x.bfloat16() for x in given)), CPU) == 1


def test_only_on_gpus() -> None:
    assert lines_as_images(traced(F.conv1d, torch.randn(1, 2, 5), torch.randn(2, 2, 3))) == 0


def test_symbolic_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of any length are served by one graph."""
    replace_pass(monkeypatch, "lines_as_images", partial(lines_as_images, devices=CPU))
    layer = nn.Conv1d(3, 4, 3, stride=2, padding=1)
    run, cov = compiled(layer, dynamic=True)
    with cov, torch.no_grad():
        for length in (9, 12, 17):
            x = torch.randn(2, 3, length)
            torch.testing.assert_close(run(x), layer(x), rtol=1e-4, atol=1e-4)
    assert len(cov.graphs) == 1 and cov.graphs[0].changes("lines_as_images") == {"changes": 1}


@pytest.mark.parametrize("channels", [2, 64])
def test_as_many_groups_as_channels_of_which_only_a_run_tells(channels: int) -> None:
    def alone(x: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x, torch.ones(x.shape[1], 1, 3), groups=x.shape[1]).relu()

    x = torch.randn(3, channels, 9)
    module = make_fx(alone, tracing_mode="symbolic")(x)
    expected = module(x)
    assert lines_as_images(module, devices=CPU) == 0
    torch.testing.assert_close(module(x), expected)
