"""Gradients of directions and lengths against eager."""

from __future__ import annotations

import pytest
import torch
from support.lowering import agree, lower, trace
from support.triton_kernels import compiles, interpreted_agrees
from torch import nn

import regraft

aten = torch.ops.aten
SIZES = {"rows": ((5, 3, 4), 0), "columns": ((5, 3, 4), 2), "a matrix": ((6, 7), 0), "one row": ((1, 7), 0)}


def given(sizes: tuple[int, ...], dim: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    kept = [n if d == dim else 1 for d, n in enumerate(sizes)]
    direction, length = torch.randn(sizes, generator=draw), torch.rand(kept, generator=draw) + 0.5
    _, norms = aten._weight_norm_interface(direction.to(dtype), length.to(dtype), dim)
    return [torch.randn(sizes, generator=draw).to(dtype), direction.to(dtype), length.to(dtype), norms]


@pytest.mark.parametrize("kind", SIZES)
def test_gradients(kind: str) -> None:
    sizes, dim = SIZES[kind]
    function = lambda *x: aten._weight_norm_interface_backward(*x, dim)  # noqa: E731
    inputs = given(sizes, dim)
    agree(function, *inputs)
    assert not lower(trace(function, *inputs), strict=True).kept
    for source in interpreted_agrees(function, *inputs):
        assert compiles(source)


def test_halves() -> None:
    inputs = given((5, 3, 4), 0, torch.bfloat16)
    agree(lambda *x: aten._weight_norm_interface_backward(*x, 0), *inputs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dim", [0, 2])
def test_a_layer_is_trained(dim: int) -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3), dim=dim)
    x, grads = torch.randn(2, 4, 9), []
    for run in (layer, torch.compile(layer, backend="regraft")):
        layer.zero_grad()
        with regraft.coverage() as cov:
            run(x).square().sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    for ours, eagers in zip(*grads[::-1], strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-4)
        assert ours.stride() == eagers.stride()
    kept = {call.operator for graph in cov.graphs for code in graph.code for call in code.kept}
    assert not any("weight_norm" in name for name in kept)
