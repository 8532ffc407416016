"""Gradients of gathers along diagonals: sums that read what was gathered, held against eager's scattered ones."""

from __future__ import annotations

import pytest
import torch
from support.thorough import one_row_in
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.sum_by_diagonal import diagonals_of, sum_by_diagonal
from regraft.rewrites.graph import op_name

aten = torch.ops.aten


def distances(rows, columns):
    return torch.arange(rows)[:, None] - torch.arange(columns)[None, :]


def buckets(distance, size, furthest):
    """DeBERTa's: by logarithms beyond the middle."""
    middle, sign = size // 2, distance.sign()
    near = torch.where((distance < middle) & (distance > -middle), middle - 1, distance.abs())
    far = (
        torch.ceil(torch.log(near / middle) / torch.log(torch.tensor((furthest - 1) / middle)) * (middle - 1)) + middle
    )
    return torch.where(near <= middle, distance.float(), far * sign).long()


INDICES = {
    "all distances": (lambda r, c: distances(r, c) + c, 12, 9, 30),
    "reversed": (lambda r, c: r - distances(r, c), 12, 9, 30),
    "clamped": (lambda r, c: (distances(r, c) + 3).clamp(0, 5), 9, 7, 6),
    "clamped far away": (lambda r, c: (distances(r, c) + 4).clamp(0, 8), 40, 40, 9),
    "buckets": (lambda r, c: (buckets(distances(r, c), 8, 64) + 8).clamp(0, 15), 50, 50, 16),
    "one row": (lambda r, c: distances(r, c) + 7, 1, 8, 12),
}


def scattered(build, rows, columns, places, dtype):
    def gradient(g):
        index = build(rows, columns).expand(*g.shape[:-2], rows, columns)
        zeros = torch.full((*g.shape[:-2], rows, places), 0.0, dtype=dtype)
        return aten.scatter_add.default(zeros, -1, index, g), torch.gather(g.repeat(1, 1, 9), -1, index)

    return gradient


def traced(function, *args):
    return make_fx(function, tracing_mode="fake")(*args)


def calls(module, name):
    return sum(op_name(node) == name for node in module.graph.nodes)


@pytest.mark.parametrize("make", [
    lambda g: torch.zeros(3, 12, 30), lambda g: g.new_zeros(3, 12, 30), lambda g: g.new_full((3, 12, 30), 0.0),
    lambda g: torch.full_like(torch.ones(3, 12, 30), 0.0),
])  # fmt: skip
def test_zeros_however_they_are_made(make):
    def gradient(g):
        return aten.scatter_add.default(make(g), -1, (distances(12, 9) + 9).expand(3, 12, 9), g)

    module = traced(gradient, torch.randn(3, 12, 9))
    assert sum_by_diagonal(module) == 1


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", INDICES)
def test_as_eager(name, dtype):
    build, rows, columns, places = INDICES[name]
    g = torch.randn(3, rows, columns, dtype=dtype)
    function = scattered(build, rows, columns, places, dtype)
    module = traced(function, g)
    assert sum_by_diagonal(module) == 1 and not calls(module, "aten.scatter_add")
    module.graph.lint()
    assert not calls(module, "aten.arange") or not calls(module, "aten.log")  # the index is a constant
    g = torch.randn_like(g)
    (found, gathered), (_, same) = module(g), function(g)
    exact, _ = scattered(build, rows, columns, places, torch.double)(g.double())
    assert found.dtype == dtype and torch.equal(gathered, same)
    torch.testing.assert_close(
        found.double(), exact.double(), rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-5
    )


def test_a_number_that_is_not_finite_stays_where_it_is():
    build, rows, columns, places = INDICES["clamped far away"]
    g = torch.randn(2, rows, columns)
    g[0, 3, 5], g[1, 0, 39] = torch.nan, torch.inf
    function = scattered(build, rows, columns, places, torch.float32)
    module = traced(function, g)
    sum_by_diagonal(module)
    torch.testing.assert_close(module(g)[0], function(g)[0], equal_nan=True)


LEFT = {
    "not by diagonal": lambda r, c: (torch.arange(r)[:, None] * torch.arange(c)[None, :]) % 7,
    "a distance in two runs": lambda r, c: distances(r, c).abs(),
    "out of range": lambda r, c: distances(r, c) + 99,
}


@pytest.mark.parametrize("name", LEFT)
def test_left(name):
    module = traced(
        lambda g: aten.scatter_add.default(torch.full((2, 8, 20), 0.0), -1, LEFT[name](8, 8).expand(2, 8, 8), g),
        torch.randn(2, 8, 8),
    )
    assert sum_by_diagonal(module) == 0


def test_what_is_not_a_constant_is_left():
    index = distances(8, 8) + 8
    module = traced(
        lambda g, i: aten.scatter_add.default(torch.full((2, 8, 20), 0.0), -1, i.expand(2, 8, 8), g),
        torch.randn(2, 8, 8),
        index,
    )
    assert sum_by_diagonal(module) == 0


def test_equal_distances_need_no_table():
    assert diagonals_of(distances(6, 6) + 6, 16).line == (-1, 6)
    assert diagonals_of(6 - distances(6, 6), 16).line == (1, -6)
    many = diagonals_of((6 - distances(20, 20)).clamp(0, 12), 13)
    assert [p for p, _, _ in many.long] == [0, 12] and many.line is None
