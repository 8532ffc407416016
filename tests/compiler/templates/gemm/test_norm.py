"""Norms by running statistics in the epilogue of a product: what is left of convolutions that look at single pixels."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.triton_gemm import agrees, found_in, on_gpu

aten = torch.ops.aten


def block(x: Any, w: Any, other: Any, *parameters: Any) -> Any:
    mean, var, weight, bias = parameters
    y = aten._native_batch_norm_legit_no_training(x @ w, weight, bias, mean, var, 0.1, 1e-5)[0]
    return torch.relu(y + other)


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(sizes) for sizes in ((64, 40), (40, 48), (64, 48), (48,), (48,), (48,), (48,))]
    made[4] = made[4].abs() + 0.5
    return [x.bfloat16() for x in made]


def test_norm_sum_and_activation_are_the_epilogue() -> None:
    found, _ = agrees(block, *inputs())
    assert found.output.target is aten.relu.default and len(found.inputs) == 7


def test_nan_stays_nan() -> None:
    given = inputs()
    given[0][3, 3] = torch.nan
    agrees(block, *given)


def test_a_norm_whose_statistics_are_read_is_none() -> None:
    function = lambda x, w, m, v: aten._native_batch_norm_legit_no_training(x @ w, None, None, m, v, 0.1, 1e-5)  # noqa: E731
    x, w, _, mean, var, *_ = inputs()
    found = found_in(on_gpu(lambda *given: function(*given)[:2], x, w, mean, var))
    assert found.output.target is aten.mm.default
