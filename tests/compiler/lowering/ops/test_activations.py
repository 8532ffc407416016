"""Activations and their gradients against eager."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from support.lowering import agree, run, trace
from support.thorough import takes_turns

from regraft.compiler.lowering import lower
from regraft.compiler.lowering.ops.activations import BETA, KAPPA

ACTIVATIONS = {
    "relu": F.relu, "relu6": F.relu6, "leaky_relu": lambda x: F.leaky_relu(x, 0.2), "elu": lambda x: F.elu(x, 1.3),
    "celu": lambda x: F.celu(x, 0.7), "selu": F.selu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "mish": F.mish, "softplus": lambda x: F.softplus(x, 2, 3), "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "logsigmoid": F.logsigmoid, "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "hardshrink": F.hardshrink, "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.3, 9.0), "glu": F.glu, "softsign": F.softsign, "tanhshrink": F.tanhshrink,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.25])), "logit": lambda x: torch.logit(x, 0.1),
    "leaky_relu by default": F.leaky_relu, "elu by default": F.elu, "celu by default": F.celu,
    "softplus by default": F.softplus,
}  # fmt: skip
EDGES = [0.0, -0.0, 3.0, -3.0, 0.5, -0.5, 6.0, 30.0, -30.0, 1e-6, -1e-6, 0.25]


def inputs(dtype):
    return torch.cat([torch.tensor(EDGES), torch.linspace(-5, 5, 12)]).reshape(4, 6).to(dtype)


def close(dtype):
    return {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}


@takes_turns("dtype")
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


@takes_turns("dtype")
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


def slope_of_gelu(x):
    return torch.ops.aten.gelu_backward(torch.ones_like(x), x, approximate="tanh")


def exact_gelu(x):
    """In float64, where eager's loses all digits too: (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u))."""
    return x / (1 + torch.exp(-2 * BETA * (x + KAPPA * x**3)))


def exact_slope(x):
    power = torch.exp(-2 * BETA * (x + KAPPA * x**3))
    return 1 / (1 + power) + x * power / (1 + power) ** 2 * 2 * BETA * (1 + 3 * KAPPA * x**2)


@pytest.mark.parametrize(
    ("function", "exactly"),
    [(lambda x: F.gelu(x, approximate="tanh"), exact_gelu), (slope_of_gelu, exact_slope)],
    ids=["gelu", "slope"],
)
def test_gelu_by_tanh_is_no_worse_than_eagers(function, exactly):
    """Everywhere; and where eager's loses all digits, it keeps some."""
    x = torch.cat([torch.linspace(-9, 9, 20001), -torch.logspace(-30, 0, 301), torch.logspace(-30, 0, 301)])
    module, exact = trace(function, x), exactly(x.double())
    ours = run(module, lower(module, strict=True), [x])
    for low in range(-9, 9):
        part = (x >= low) & (x < low + 1)
        error, bound = ((y.double() - exact).abs()[part].max() for y in (ours, function(x)))
        assert error <= bound * 1.1 + 1e-7 * exact[part].abs().max(), low
    small = (x < -5.5) & (x > -8)
    assert ((ours - exact).abs() / exact.abs())[small].max() < 1e-3


@pytest.mark.parametrize("function", [F.gelu, torch.ops.aten.gelu_backward], ids=["gelu", "slope"])
def test_gelu_is_made_of_the_normal_distribution(function):
    x = torch.randn(4, 6)
    inputs = (x,) if function is F.gelu else (x, x + 1)
    text = str(agree(function, *inputs).program)
    assert "normal_cdf" in text and "erf" not in text


def test_an_alpha_that_eager_refuses_raises_its_error():
    torch._dynamo.reset()
    function = torch.compile(lambda x: F.celu(x, 0.0), backend="regraft", options={"strict": True})
    with pytest.raises(RuntimeError, match="alpha cannot be 0"):
        function(torch.ones(3))
