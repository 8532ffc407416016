"""Operators of `quantized_decomposed` are operators of ATen for rules and kernels, with the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
import torch.nn.functional as F
from support.rewriting import compiled
from support.thorough import one_row_in

Q = torch.ops.quantized_decomposed
U8 = (0, 255, torch.uint8)
I8 = (-128, 127, torch.int8)
SCALE, ZERO = torch.tensor([0.0123]), torch.tensor([7])
SCALES, ZEROS = torch.rand(16) + 0.1, torch.arange(16) - 8


def by_numbers(x: Any, w: Any) -> Any:
    q = Q.quantize_per_tensor(x, 0.05, 3, *U8)
    return q, Q.dequantize_per_tensor(q, 0.05, 3, *U8)


def by_tensors(x: Any, w: Any) -> Any:
    q = Q.quantize_per_tensor.tensor(x, SCALE, ZERO, *U8)
    return q, Q.dequantize_per_tensor.tensor(q, SCALE, ZERO, *U8)


def by_channels(x: Any, w: Any) -> Any:
    return Q.quantize_per_channel(x.t(), SCALES, ZEROS, 0, *I8), Q.dequantize_per_channel(w, SCALES, ZEROS, 0, *I8)


def by_tokens(x: Any, w: Any) -> Any:
    """Torch promises scales of float64 and gives float32."""
    scales, zeros = Q.choose_qparams_per_token(x, torch.int8)
    q = Q.quantize_per_token(x, scales, zeros, *I8)
    return scales, q, Q.dequantize_per_token(q, scales, zeros, *I8, torch.float32)


def by_groups(x: Any, w: Any) -> Any:
    return Q.dequantize_per_channel_group(w, SCALES.reshape(8, 2), ZEROS.reshape(8, 2), *I8, 16, torch.float32)


INPUTS = {
    by_numbers: (torch.randn(6, 16), None), by_tensors: (torch.randn(6, 16), None),
    by_channels: (torch.randn(6, 16), torch.randint(-128, 128, (16, 4)).to(torch.int8)),
    by_tokens: (torch.randn(6, 16), None),
    by_groups: (None, torch.randint(-128, 128, (8, 32)).to(torch.int8)),
}  # fmt: skip


@one_row_in(2)
@pytest.mark.parametrize("function", INPUTS, ids=lambda f: f.__name__)
def test_the_same_bits_without_a_call(function: Any) -> None:
    made, found = compiled(function)
    with torch.no_grad(), found:
        ours = made(*INPUTS[function])
    ours, eager = ([y] if isinstance(y, torch.Tensor) else list(y) for y in (ours, function(*INPUTS[function])))
    for x, y in zip(ours, eager, strict=True):
        assert x.dtype == y.dtype and torch.equal(x, y)
    kept = [call.operator for graph in found.graphs for code in graph.code for call in code.kept]
    assert not [name for name in kept if "quantized" in name]


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_a_layer_of_pt2e_is_multiplied_in_bytes(wide: torch.dtype) -> None:
    """Scales of channels are float64 where they come from a quantized tensor."""

    def layer(x: Any, w: Any, b: Any) -> Any:
        x = Q.dequantize_per_tensor(Q.quantize_per_tensor(x, 0.05, 3, *U8), 0.05, 3, *U8)
        y = F.relu(F.linear(x, Q.dequantize_per_channel(w, SCALES.to(wide), ZEROS * 0, 0, *I8), b))
        return Q.dequantize_per_tensor(Q.quantize_per_tensor(y, 0.1, 0, *U8), 0.1, 0, *U8)

    inputs = torch.randn(8, 32), torch.randint(-128, 128, (16, 32)).to(torch.int8), torch.randn(16)
    made, found = compiled(layer)
    with torch.no_grad(), found:
        ours = made(*inputs)
    assert found.count("byte_product") == 1
    assert (ours - layer(*inputs)).abs().max() <= 0.1 + 1e-6  # one step, at ties


def test_training_keeps_the_calls() -> None:
    """They have no derivatives: eager has none either."""
    made, found = compiled(lambda x: (x * Q.dequantize_per_tensor(Q.quantize_per_tensor(x.detach(), 0.1, 0, *U8),
                                                                  0.1, 0, *U8)).sum())  # fmt: skip
    x = torch.randn(5, requires_grad=True)
    with found:
        made(x).backward()
    step = torch.clamp(torch.round(x.detach() * (1 / 0.1)), 0, 255) * 0.1
    torch.testing.assert_close(x.grad, step)
