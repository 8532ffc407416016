"""Derivatives with sizes and numbers that only the data says, which torch's own derivatives ask for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, thorough
from support.versions import OLD_TORCH

import regraft

X = torch.linspace(-2, 2.5, 30).reshape(6, 5)
KEPT = [[True, False, True, True, False, True], [False, True] * 3, [True] + [False] * 5, [False] * 6]
SIZED = {
    "cumsum": lambda y: y.cumsum(0),
    "cumsum of rows": lambda y: y.cumsum(1),
    "cumsum of doubles": lambda y: y.cumsum(0, dtype=torch.float64),
    "cumsum of counts": lambda y: y * (y > 0).cumsum(0),
    "cumprod": lambda y: y.cumprod(0),
    "cumprod with zeros": lambda y: torch.where(y > 1, y, y.round().clamp(-1, 1)).cumprod(1),
    "logcumsumexp": lambda y: y.logcumsumexp(0),
    "logcumsumexp, gradients of both signs": lambda y: y.logcumsumexp(0) * y.detach().sign(),
    "prod": lambda y: y.prod(0),
    "prod of rows": lambda y: y.round().prod(1, keepdim=True),
    "prod of all": lambda y: (y / 2).prod(),
    "std": lambda y: y.std(0, correction=3) + y.std(0, unbiased=False),
    "std of all": lambda y: torch.add(*torch.std_mean(y)),
    "std of rows": lambda y: torch.add(*torch.std_mean(y, -1, True, True)) + y.std(1, keepdim=True, correction=0),
    "var of all": lambda y: torch.var_mean(y, unbiased=False)[0] + y.var(),
}
NUMBERED = {
    "add": lambda x, v: x.add(x.sin(), alpha=v),
    "sub": lambda x, v: x.sub(x.sin(), alpha=v),
    "rsub": lambda x, v: torch.rsub(x, x.sin(), alpha=v),
    "lerp": lambda x, v: torch.lerp(x, x.cos(), v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "pow": lambda x, v: x.abs().pow(v),
    "power": lambda x, v: v**x,
    "xlogy": lambda x, v: torch.xlogy(x, v),
    "celu": lambda x, v: F.celu(x, v),
    "addmm": lambda x, v: torch.addmm(x[:5], x[:5], x[:5], alpha=v, beta=v),
    "addmv": lambda x, v: torch.addmv(x[0], x[:5], x[1], alpha=v),
    "baddbmm": lambda x, v: torch.baddbmm(x[None, :5], x[None, :5], x[None, :5], beta=v),
}

# By formulas of which another row has more: other dims, zeros, gradients of both signs, a beta beside the alpha.
REPEATED = {
    "cumsum of rows", "cumsum of counts", "cumprod", "logcumsumexp", "prod", "std", "std of all",
    "sub", "addmv",
}  # fmt: skip


def held(program, given):
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(program, backend="regraft", dynamic=True)
        with regraft.coverage() as found:
            for value in given:
                seen = []
                for call in (compiled, program):
                    x = X.clone().requires_grad_()
                    result = call(x, value)
                    (result * torch.linspace(0.5, 1, result.numel()).view_as(result)).sum().backward()
                    seen.append([result.detach(), x.grad])
                torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert not found.faults
    assert OLD_TORCH or not found.fallbacks  # 2.11 compiles powers of numbers by the sizes


@one_row_in(2)
@pytest.mark.parametrize("name", [thorough(name) if name in REPEATED else name for name in SIZED])
def test_sizes(name):
    held(lambda x, mask: SIZED[name](x[mask]), map(torch.tensor, KEPT))


@one_row_in(2)
@pytest.mark.parametrize("name", [thorough(name) if name in REPEATED else name for name in NUMBERED])
def test_numbers(name):
    held(lambda x, number: NUMBERED[name](x, number.item()), map(torch.tensor, (2.5, 1.0, 0.3)))
