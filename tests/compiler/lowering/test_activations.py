"""Activations and their gradients against eager."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from support.lowering import agree

ACTIVATIONS = {
    "relu": F.relu, "relu6": F.relu6, "leaky_relu": lambda x: F.leaky_relu(x, 0.2), "elu": lambda x: F.elu(x, 1.3),
    "celu": lambda x: F.celu(x, 0.7), "selu": F.selu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "mish": F.mish, "softplus": lambda x: F.softplus(x, 2, 3), "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "logsigmoid": F.logsigmoid, "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "hardshrink": F.hardshrink, "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.3, 9.0), "glu": F.glu, "softsign": F.softsign, "tanhshrink": F.tanhshrink,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.25])), "logit": lambda x: torch.logit(x, 0.1),
}  # fmt: skip
EDGES = [0.0, -0.0, 3.0, -3.0, 0.5, -0.5, 6.0, 30.0, -30.0, 1e-6, -1e-6, 0.25]


def inputs(dtype):
    return torch.cat([torch.tensor(EDGES), torch.linspace(-5, 5, 12)]).reshape(4, 6).to(dtype)


def close(dtype):
    return {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_forward(name, dtype):
    if name == "prelu" and dtype != torch.float32:
        pytest.skip("its weight is float32")
    agree(ACTIVATIONS[name], inputs(dtype), **close(dtype))


@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if n != "glu"])
def test_what_is_not_finite(name):
    """In float64: for float32 eager may call oneDNN, whose GELU of infinity is NaN."""
    dtype = torch.float32 if name == "prelu" else torch.float64
    agree(ACTIVATIONS[name], torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1e30], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if n != "prelu"])
def test_backward(name, dtype):
    def gradient(x, g):
        x = x.detach().requires_grad_()
        y = ACTIVATIONS[name](x)
        return torch.autograd.grad(y, x, g[..., : y.shape[-1]].expand_as(y))[0]

    g = torch.linspace(-1, 2, 24).reshape(4, 6).to(dtype)
    agree(gradient, inputs(dtype), g, **close(dtype))


def test_elu_from_its_result():
    y, g = F.elu(inputs(torch.float32)), torch.ones(4, 6)
    agree(lambda g, y: torch.ops.aten.elu_backward(g, 1.0, 1.0, 1.0, True, y), g, y)


def test_symbolic_sizes():
    agree(lambda x: (F.gelu(x), F.glu(x, 0), F.silu(x)), torch.randn(4, 6), dynamic=True)
