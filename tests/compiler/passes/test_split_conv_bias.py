"""Biases of convolutions in training: what they and their gradients become, and that values stay."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from support.pipeline import replace_pass
from support.rewriting import compiled
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.split_conv_bias import split_conv_biases, sum_conv_bias_gradients
from regraft.rewrites.graph import op_name

aten = torch.ops.aten
CPU = {"devices": ("cpu",)}


def backward(mask: list[bool], **how: Any) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    def function(g: Any, x: Any, w: Any) -> Any:
        found = aten.convolution_backward(g, x, w, [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
        return [gradient for gradient in found if gradient is not None]

    inputs = [torch.randn(2, 6, 5, 7), torch.randn(2, 4, 5, 7), torch.randn(6, 4, 3, 3)]
    return make_fx(function, tracing_mode="fake", **how)(*inputs), inputs


@pytest.mark.parametrize("mask", [[True, True, True], [False, True, True], [False, False, True]])
def test_the_gradient_of_a_bias_is_a_sum(mask: list[bool]) -> None:
    module, inputs = backward(mask)
    expected = module(*inputs)
    assert sum_conv_bias_gradients(module) == 0  # on a CPU
    assert sum_conv_bias_gradients(module, **CPU) == 1 and sum_conv_bias_gradients(module, **CPU) == 0
    calls = [node for node in module.graph.nodes if op_name(node) == "aten.convolution_backward"]
    assert [call.args[-1] for call in calls] == ([[*mask[:2], False]] if any(mask[:2]) else [])
    module.graph.lint()
    for a, b in zip(module(*inputs), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_without_a_bias_nothing_is_summed() -> None:
    module, _ = backward([True, True, False])
    assert sum_conv_bias_gradients(module, **CPU) == 0


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_training(layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_pass(monkeypatch, "split_conv_bias", partial(split_conv_biases, **CPU))
    replace_pass(monkeypatch, "sum_conv_bias_gradients", partial(sum_conv_bias_gradients, **CPU))
    monkeypatch.setattr(
        "regraft.compiler.passes.channels_last._is_candidate",
        lambda node, training: op_name(node) == "aten.convolution",
    )
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GELU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2)
    ).to(memory_format=layout)  # fmt: skip
    twin, x = copy.deepcopy(model), torch.randn(2, 3, 9, 9).contiguous(memory_format=layout)
    run, cov = compiled(model)
    with cov:
        run(x).square().mean().backward()
    twin(x).square().mean().backward()
    (record,) = cov.graphs
    assert record.changes("sum_conv_bias_gradients") == {"changes": 3}
    assert record.changes("split_conv_bias")["changes"] >= 2
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("train", [True, False])
def test_convolutions_of_signals_need_no_images_beside_them(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_pass(monkeypatch, "split_conv_bias", partial(split_conv_biases, **CPU))
    replace_pass(monkeypatch, "sum_conv_bias_gradients", partial(sum_conv_bias_gradients, **CPU))
    model, x = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 3, dilation=2)), torch.randn(2, 3, 19)
    run, cov = compiled(model, **{"kernels.products": "library"})
    with cov, torch.set_grad_enabled(train):
        found = run(x)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)
    (record,) = cov.graphs
    assert record.changes("split_conv_bias") == {"changes": 2}
    if train:
        found.square().mean().backward()
        assert record.changes("sum_conv_bias_gradients") == {"changes": 2}
