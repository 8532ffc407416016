"""Variances and deviations with a scale for each row: their range, errors against float64, and where float64 stays."""

import pytest
import torch
from support.kernels import compiled_agrees
from support.lowering import lowered
from support.thorough import one_row_in

F32 = torch.float32


def rows(count, scale=1.0, shift=0.0, dtype=F32):
    found = torch.randn(6, count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return (found * scale + shift).to(dtype)


def computed_in(function, *inputs):
    """The dtypes of the numbers that are summed."""
    items = lowered(function, *inputs).program.items
    return {
        value.dtype for item in items for r in item.reductions if r.reducer in ("sum", "welford") for value in r.values
    }


@one_row_in(2)
@pytest.mark.parametrize("scale", [1.0, 1e-42, 1e-36, 1e-23, 1e-20, 1e20, 1e30, 5e36])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16], ids=str)
def test_any_scale(dtype, scale):
    x = rows(300, scale, dtype=dtype)
    near = {F32: 1e-3 if scale < 1e-40 else 3e-7, torch.bfloat16: 1e-2}[dtype]
    compiled_agrees(lambda x: (x.std(1), x.std(1, correction=0, keepdim=True)), x, rtol=near, atol=0)


@one_row_in(2)
@pytest.mark.parametrize("count", [2, 17, 300, 20000])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16], ids=str)
def test_variances(dtype, count):
    """Eager's range and digits, however long a row is: of large means, large numbers and equal elements."""
    x = torch.cat([rows(count, *parts) for parts in ((1.0, 0.0), (1.0, 1e6), (1e-3, 300.0), (1e17, 0.0), (1e-15, 0.0))])
    x[0], x[1], x[2] = 1.1, 1.6e19, 3e38
    near = {F32: 1e-6, torch.bfloat16: 1e-2}[dtype]
    compiled_agrees(lambda x: (x.var(1), x.t().contiguous().var(0)), x.to(dtype), rtol=near, atol=0)


@pytest.mark.parametrize("shift", [300.0, -1e4, 1e6])
def test_large_means(shift):
    x = rows(300, 1.0, shift)
    compiled_agrees(lambda x: torch.std_mean(x, 1), x, rtol=5e-7, atol=0)
    x[:, 0] = 0.0  # the element that the others are compared with lies far from them
    compiled_agrees(lambda x: torch.std_mean(x, 1), x, rtol=2e-6, atol=0)


@pytest.mark.parametrize("value", [0.0, 1.1, 3.3e-5, 7e37, 3e38, 1e-44])
def test_equal_elements_have_no_deviation(value):
    x = torch.full((3, 301), value)
    compiled_agrees(lambda x: torch.std_mean(x, 1), x, rtol=1e-7, atol=0)
    compiled_agrees(lambda x: x.std(1), x, rtol=0, atol=0)


def test_infinite_and_no_numbers():
    x = rows(300)
    x[0, 7], x[1, 0], x[2, 299], x[3, 0] = torch.inf, torch.nan, -torch.inf, torch.inf
    compiled_agrees(lambda x: (x.std(1), x.var(1), x[:, :9].var(1)), x, rtol=1e-6, atol=0)


@one_row_in(2)
@pytest.mark.parametrize("dims", [(0, 2), (1, 2), (0, 1, 2), (2,)])
def test_dims_and_layouts(dims):
    x = torch.randn(5, 7, 300).transpose(0, 1)
    compiled_agrees(lambda x: torch.std_mean(x, dims, keepdim=True), x, rtol=1e-6, atol=4e-7)  # means of numbers of 1
    compiled_agrees(lambda x: (x * 3).exp().std(dims), x, rtol=1e-5, atol=0)
    compiled_agrees(lambda x: (x - x.mean(2, keepdim=True)) / (x.std(2, keepdim=True) + 1e-5), x)
    compiled_agrees(lambda x: x.bfloat16().std(dims), x, rtol=1e-2, atol=0)


def test_more_freedom_than_elements():
    compiled_agrees(lambda x: x.std(1, correction=300), rows(300), rtol=0, atol=0)
    compiled_agrees(lambda x: x.std(1, correction=400), rows(300), rtol=0, atol=0)


def test_where_float64_stays():
    assert computed_in(lambda x: x.std(1), rows(300)) == {F32}
    assert computed_in(lambda x: x.std(1), rows(200, dtype=torch.bfloat16)) == {F32}
    assert computed_in(lambda x: x.std(0), rows(300).t().contiguous()) == {torch.float64}
    assert computed_in(lambda x: x.std(1), rows(200)) == {torch.float64}
    assert computed_in(lambda x: x.std(1), rows(20000)) == {torch.float64}
    assert computed_in(lambda x: x.std(1), rows(300).double()) == {torch.float64}
    assert computed_in(lambda x: x.var(1), rows(300)) == {F32}
    assert computed_in(lambda x: x.var(1), rows(200)) == {torch.float64}
