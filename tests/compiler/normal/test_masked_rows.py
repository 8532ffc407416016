"""Weights masked once more: rows with nothing to keep give zero, and no NaN to any gradient."""

from __future__ import annotations

import math

import pytest
import torch

import regraft


@pytest.mark.parametrize("fill", [-math.inf, torch.finfo(torch.float32).min])
def test_an_empty_row_is_zero_and_so_are_its_gradients(fill: float) -> None:
    def attend(q, k, v, keep):
        return (q @ k.mT * 0.25).masked_fill(~keep, fill).softmax(-1).masked_fill(~keep, 0.0) @ v

    def backend(gm, inputs):
        return regraft.backend(gm, inputs, options={"profit": "always", "rules": ("sdpa",)})

    torch.manual_seed(0)
    torch._dynamo.reset()
    operands = [torch.randn(2, 4, 6, 8, requires_grad=True) for _ in range(3)]
    keep = torch.rand(2, 1, 6, 6) > 0.3
    keep[0, 0, 3] = False
    expected = attend(*operands, keep)
    with regraft.coverage() as cov:
        got = torch.compile(attend, backend=backend)(*operands, keep)
    assert cov.count("attention") == 1 and not got[0, :, 3].any()
    torch.testing.assert_close(got, expected)
    gradients = (torch.autograd.grad(out.square().sum(), operands) for out in (got, expected))
    torch.testing.assert_close(*map(list, gradients), rtol=1e-4, atol=1e-5)
