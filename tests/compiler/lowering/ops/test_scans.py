"""Cumulative scans against eager."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from support.lowering import agree, lowered
from support.tensors import FLOATS, NAN, WHOLE, tensor_and_dim
from support.thorough import examples

from regraft.compiler.lowering.ops import scans

EXAMPLES = settings(max_examples=examples(6, 15), deadline=None)
LOOSE = {torch.bfloat16: 3e-2, torch.float16: 4e-3}


def close(x):
    return {"rtol": LOOSE[x.dtype], "atol": LOOSE[x.dtype]} if x.dtype in LOOSE else {}


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@EXAMPLES
@given(given_=tensor_and_dim((*FLOATS, *WHOLE)))
def test_sums_and_products(name, given_):
    x, dim = given_
    agree(lambda x: getattr(torch, name)(x, dim), x, **close(x))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@EXAMPLES
@given(given_=tensor_and_dim((*FLOATS, *WHOLE)))
def test_extrema(name, given_):
    x, dim = given_
    agree(lambda x: getattr(torch, name)(x, dim), x, exact=True)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_the_latest_of_equal_elements_wins(name):
    x = torch.tensor([[1.0, 1.0, 0.0, 1.0, 0.0], [2.0, NAN, 3.0, NAN, 1.0]])
    agree(lambda x: getattr(torch, name)(x, 1), x, exact=True)


@EXAMPLES
@given(given_=tensor_and_dim(FLOATS))
def test_logcumsumexp(given_):
    x, dim = given_
    agree(lambda x: x.logcumsumexp(dim), x, **close(x))


def test_logcumsumexp_of_infinities():
    inf = math.inf
    agree(
        lambda x: x.logcumsumexp(1), torch.tensor([[-inf, -inf, 1.0, 2.0], [1.0, inf, 2.0, -inf], [NAN, 1.0, 2.0, 3.0]])
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bfloat16])
def test_another_dtype(dtype):
    agree(lambda x: (x.cumsum(1, dtype=dtype), x.cumprod(0, dtype=dtype)), torch.tensor([[0.7, 2.6], [1e3, -3.3]]))


def test_long_sums_are_as_accurate_as_eager():
    x = torch.rand(1, 5000, generator=torch.Generator().manual_seed(0))
    agree(lambda x: x.cumsum(1), x, rtol=1e-7, atol=0)


def test_symbolic_sizes():
    agree(lambda x: (x.cumsum(0), x.cummax(1), x.logcumsumexp(1)), torch.randn(5, 7), dynamic=True)


def test_integer_products_wrap_around():
    agree(lambda x: x.cumprod(0), torch.full((6,), 2**20), exact=True)


def test_a_scan_is_one_definition():
    (item,) = lowered(lambda x: x.cumsum(0), torch.randn(3, 4)).program.items
    assert item.scan
    assert [v.extent for v in item.reduced] == [3]


@pytest.fixture
def on_gpus(monkeypatch):
    """As on GPUs, where float32 is accumulated in float32."""
    monkeypatch.setattr(scans, "_WIDE", frozenset())


@EXAMPLES
@given(given_=tensor_and_dim(FLOATS))
def test_scans_in_the_dtype_of_gpus(given_):
    x, dim = given_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scans, "_WIDE", frozenset())
        agree(lambda x: (x.logcumsumexp(dim), x.cumsum(dim), x.cumprod(dim)), x, **close(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_logcumsumexp_of_infinities_on_gpus(on_gpus, dtype):
    inf = math.inf
    rows = [[-inf, -inf, 1, 2, -inf], [1, inf, 2, -inf, inf], [NAN, 1, inf, 3, 4], [1, inf, NAN, 2, inf], [-inf] * 5]
    x = torch.tensor(rows, dtype=dtype)
    agree(lambda x: x.logcumsumexp(1), x, **close(x))
    agree(lambda x: x.logcumsumexp(0), x.t().contiguous(), **close(x))


def test_float32_is_scanned_as_such_on_gpus(on_gpus):
    for function in (torch.cumsum, torch.cumprod, torch.logcumsumexp):
        (item,) = lowered(lambda x, f=function: f(x, 0), torch.randn(3, 4)).program.items
        assert {v.dtype for r in item.reductions for v in r.values} == {torch.float32}
