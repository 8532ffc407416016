"""Softmax against eager and float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lowering import agree, lowered, run, trace
from support.tensors import FLOATS, tensor_and_dim
from support.thorough import examples

import regraft.compiler.passes.recompute_softmax  # noqa: F401 (declares an operator)
from regraft.compiler.lowering import lower

aten = torch.ops.aten
EXAMPLES = settings(max_examples=examples(6, 15), deadline=None)
LOOSE = {torch.bfloat16: 2e-2, torch.float16: 4e-3}
INF = math.inf
ROWS = torch.tensor(
    [[-INF, -INF, -INF], [INF, 1.0, 2.0], [math.nan, 1.0, -INF], [-INF, 0.0, 1.0], [1e30, -1e30, 0.0], [3.0, 3.0, 3.0]]
)


def close(x):
    return {"rtol": LOOSE[x.dtype], "atol": LOOSE[x.dtype]} if x.dtype in LOOSE else {}


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@EXAMPLES
@given(given_=tensor_and_dim(FLOATS))
def test_forward(name, given_):
    x, dim = given_
    agree(lambda x: getattr(torch, name)(x, dim), x, **close(x))


@pytest.mark.parametrize("name", ["_softmax_backward_data", "_log_softmax_backward_data"])
@EXAMPLES
@given(given_=tensor_and_dim(FLOATS), seed=st.integers(0, 100))
def test_backward(name, given_, seed):
    y, dim = given_
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed)).to(y.dtype)
    agree(lambda g, y: getattr(aten, name)(g, y, dim, y.dtype), grad, y, **close(y))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "_safe_softmax"])
def test_masked_rows_infinities_and_nan(name):
    function = torch._safe_softmax if name == "_safe_softmax" else getattr(torch, name)
    agree(lambda x: function(x, 1), ROWS)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "_safe_softmax"])
def test_long_rows_go_once_through_the_input(name):
    x = torch.randn(4, 20000) * 3
    x[0] = -INF
    x[1, 7], x[2, 9] = INF, math.nan
    function = torch._safe_softmax if name == "_safe_softmax" else getattr(torch, name)
    made = agree(lambda x: function(x, 1), x)
    assert [r.reducer for item in made.program.items for r in item.reductions] == ["softmax"]


def test_short_rows_take_two_passes():
    made = lowered(lambda x: x.softmax(-1), torch.randn(4, 128))
    assert [r.reducer for item in made.program.items for r in item.reductions] == ["max", "sum"]


@pytest.mark.parametrize("length", [1, 7, 20000])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_numbers_of_rows(length, dim):
    x = torch.randn((length, 3) if dim == 0 else (3, length)).bfloat16()
    agree(lambda x: torch.ops.regraft.log_softmax_rows(x, dim, torch.float32), x)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_another_dtype(name):
    agree(lambda x: getattr(torch, name)(x, 1, dtype=torch.float32), torch.randn(3, 5).bfloat16())
    agree(lambda x: getattr(torch, name)(x, 1, dtype=torch.float64), torch.randn(3, 5))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_symbolic_sizes(name, dim):
    agree(lambda x: getattr(torch, name)(x, dim), torch.randn(3, 5, 4), dynamic=True)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_as_accurate_as_eager(name):
    x = torch.randn(64, 300, generator=torch.Generator().manual_seed(0)) * 10
    function = lambda x: getattr(torch, name)(x, 1)  # noqa: E731
    module, exact = trace(function, x), function(x.double())
    error, eagers = ((y.double() - exact).abs().mean() for y in (run(module, lower(module), [x]), function(x)))
    assert error <= 1.2 * eagers
