"""Stores at places that iterations find themselves, in lanes: results and the order of stores are eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.kernels import avx512_text
from support.thorough import one_row_in, takes_turns


def same(function, *inputs):
    torch.compiler.reset()
    with torch.no_grad():
        got, want = torch.compile(function, backend="regraft")(*inputs), function(*inputs)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@one_row_in(2)
@takes_turns("dtype")
@pytest.mark.parametrize("sizes", [(2, 3, 8, 8), (1, 2, 10, 70), (3, 1, 2, 2), (2, 5, 14, 36)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_unpooling_after_pooling(sizes, dtype):
    x = torch.randn(sizes).to(dtype)
    same(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), x)


def test_unpooling_of_ties_nans_and_windows_that_overlap():
    x = torch.randint(0, 3, (2, 3, 17, 33)).float()
    x[0, 0, 3, 4] = float("nan")
    same(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape), x)
    same(lambda x: F.max_unpool2d(*F.max_pool2d(x, 3, 1, 1, return_indices=True), 3, 1, 1, output_size=x.shape), x)


def test_places_of_the_greatest_are_written():
    x = torch.randn(40, 64, 6)

    def function(x):
        greatest, place = x.max(-1)
        return torch.zeros_like(x).scatter(-1, place[..., None], greatest[..., None])

    same(function, x)


def test_gradients_of_gather_with_many_entries_in_one_place():
    x = torch.randn(64, 33, requires_grad=True)
    ids = torch.randint(0, 33, (64, 200)) // 4
    torch.compiler.reset()

    def function(x):
        return x.gather(1, ids).square().sum()

    (got,) = torch.autograd.grad(torch.compile(function, backend="regraft")(x), x)
    (want,) = torch.autograd.grad(function(x), x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_rows_added_at_computed_places(dtype):
    """Lanes lie along the rows: places are computed for one row at a time."""
    x, i = torch.randint(-4, 5, (5, 7, 33)).to(dtype), torch.randint(0, 1000, (60,))  # sums are exact
    same(lambda x, i: x.new_zeros(x.shape).index_put((i % 5,), x[0], accumulate=True), x, i)
    same(lambda x, i: x.new_zeros(x.shape).index_put((i % 5, i * 3 % 7), x[0, 0], accumulate=True), x, i)
    same(lambda x, i: x.index_copy(0, i[:3] % 5, x[:3] * 2), x, torch.tensor([3, 4, 10]))
    same(lambda x, i: x.index_copy(0, i[:3] % 5, x[:3] * 2), x, torch.tensor([1, 6, 1]))


FOLDS = {
    "counts": lambda x, i: torch.zeros(30).index_add(0, i, torch.ones(i.shape[0])),
    "sums": lambda x, i: torch.zeros(30).index_add(0, i, x * 2),
    "greatest": lambda x, i: torch.full((30,), -9.0).scatter_reduce(0, i, x, "amax"),
    "greatest of functions": lambda x, i: torch.full((30,), -9.0).scatter_reduce(0, i, x.exp(), "amax"),
    "products": lambda x, i: torch.ones(30).scatter_reduce(0, i, x, "prod"),
    "of rows": lambda x, i: torch.zeros(30, 5).scatter_reduce(0, i[:, None].expand(-1, 5), x.view(-1, 5)[i], "amin"),
}


@pytest.mark.parametrize("name", FOLDS)
def test_elements_that_indices_select_one_by_one(name):
    """Lanes are for functions: places are taken apart anyway."""
    for count in (15, 335):
        x, i = torch.randn(5 * count)[: 5 * count if name == "of rows" else count], torch.randint(0, 30, (count,))
        x[3], x[7] = torch.nan, -0.0
        i = i % count
        compiled = torch.compile(FOLDS[name], backend="regraft")
        torch.testing.assert_close(compiled(x, i), FOLDS[name](x, i), equal_nan=True)
        with pytest.raises((IndexError, RuntimeError)):
            compiled(x, i + 30)


@pytest.mark.parametrize(("name", "lanes"), [("counts", False), ("greatest", False), ("greatest of functions", True)])
def test_which_of_them_have_lanes(name, lanes):
    text = avx512_text(FOLDS[name], torch.randn(400), torch.randint(0, 30, (400,)))
    combines = next(line for line in text.splitlines() if "plain_" in line)
    assert ("[l]" in combines) == lanes
