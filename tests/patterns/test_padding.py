"""Products padded with zeros: values, layouts, and where nothing is to be gained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.attentions import normal
from support.freezing import frozen
from support.rewriting import assert_agrees, compiled, rewritten
from support.thorough import one_row_in
from torch import nn

import regraft
from regraft.compiler.tools.check import refusals
from regraft.patterns.padding import padded_product

RULE = [padded_product]


def padded(function: Any, *inputs: Any, **settings: Any) -> Any:
    found = rewritten(function, inputs, stage="lowered", rules=RULE, **settings)
    assert_agrees(function, found.run, inputs)
    return found


def test_columns_and_inner_size() -> None:
    found = padded(F.linear, normal(2, 5, 63), normal(61, 63), normal(61))
    assert found.count("padded_product") == 1
    (product,) = (n for n in found.graph.nodes if "linear" in str(n.target))
    assert tuple(product.meta["val"].shape) == (2, 5, 64)


@pytest.mark.parametrize("function", [torch.mm, lambda x, y: torch.addmm(y[0], x, y)], ids=["mm", "addmm"])
def test_other_spellings(function: Any) -> None:
    assert padded(function, normal(20, 63), normal(63, 61)).count("padded_product") == 1


@one_row_in(2)
@pytest.mark.parametrize("sizes", [(1,), (1, 61), (20, 61), (1, 1), (20, 1)], ids=str)
def test_biases_that_are_broadcast_are_not_padded(sizes: tuple[int, ...]) -> None:
    """The library says so by their reason, whatever autograd's decomposition made of `linear`."""
    inputs = normal(20, 125), normal(61, 125), normal(*sizes)
    for rule in ("padded_product", "linear"):
        found = regraft.explain(rule, F.linear, *inputs)
        assert not found.matches and not found.fallbacks
        assert {miss.code for miss in found.near_misses} == {"bias-broadcasts"}, rule
    run, coverage = compiled(F.linear)
    with coverage:
        torch.testing.assert_close(run(*inputs), F.linear(*inputs))


def test_batched() -> None:
    found = padded(torch.bmm, normal(3, 20, 63), normal(3, 63, 61))
    assert found.count("padded_product") == 1 and found.tags == {"product:bmm"}


def test_rows_that_are_side_by_side() -> None:
    """The product of a transposed matrix: it is its rows that must be aligned."""
    found = padded(lambda x, y: torch.mm(x.t(), y), normal(64, 61), normal(64, 64))
    assert found.count("padded_product") == 1
    assert padded(torch.mm, normal(61, 64), normal(64, 64)).count("padded_product") == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_wants_eight_elements(dtype: torch.dtype) -> None:
    x, w = normal(20, 64).to(dtype), normal(60, 64).to(dtype)
    assert padded(F.linear, x, w).count("padded_product") == 1
    assert padded(F.linear, x, normal(56, 64).to(dtype)).count("padded_product") == 0


def test_strides_of_results_are_eagers() -> None:
    inputs = normal(4, 63), normal(61, 63)
    found = padded(lambda x, w: (F.linear(x, w), F.linear(x, w).view(2, 2, 61)), *inputs)
    assert [y.stride() for y in found.run(*inputs)] == [(61, 1), (122, 61, 1)]


def test_nan_and_infinities_stay_where_they_are() -> None:
    x, w = normal(4, 63), normal(61, 63)
    x[0, 0], x[1, 1] = torch.nan, torch.inf
    assert padded(F.linear, x, w).count("padded_product") == 1


def test_symbolic_sizes() -> None:
    """Unknown rows of a row-major input do not matter; an unknown inner size does."""
    found = padded(torch.bmm, normal(3, 20, 63), normal(3, 63, 61), dynamic=True, near_miss_depth=0)
    assert found.count("padded_product") == 0 and "size-symbolic" in found.codes


@pytest.mark.parametrize("sample", [s for s in padded_product.samples if s.refused], ids=lambda s: s.refused)
def test_near_misses(sample: Any) -> None:
    assert sample.refused in refusals(padded_product, sample)


class Head(nn.Module):
    """A vocabulary of an odd size, its logits returned and summed up."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.words = nn.Linear(32, 32), nn.Linear(32, 301)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.words(torch.tanh(self.dense(x)))
        return logits, logits.logsumexp(-1)


@pytest.mark.parametrize("freezing", [True, False])
def test_through_the_backend(freezing: bool) -> None:
    torch.manual_seed(0)
    model, x = Head().eval(), normal(2, 7, 32)
    run, coverage = frozen(model) if freezing else compiled(model)
    with coverage, torch.no_grad():
        ours, eager = run(x), model(x)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert a.stride() == b.stride()
    assert coverage.matches["padded_product"] == 1 and coverage.matches["linear"] == 2
    assert not coverage.graphs[0].fallbacks


def test_trained() -> None:
    """The products of the backward are padded too: the rule runs after autograd."""
    torch.manual_seed(0)
    model, x = Head(), normal(2, 7, 32)
    run, coverage = compiled(model)
    gradients = []
    with coverage:
        for f in (run, model):
            model.zero_grad()
            f(x)[1].sum().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert coverage.matches["padded_product"] >= 3


def test_measured() -> None:
    model, x = Head().eval(), normal(2, 7, 32)
    run, coverage = frozen(model, profit="measured")
    with coverage, torch.no_grad():
        torch.testing.assert_close(run(x)[0], model(x)[0], rtol=1e-4, atol=1e-5)
    settled = [m for m in (*coverage.applied, *coverage.declined) if m.rule == "padded_product"]
    assert len(settled) == 1 and "original" in settled[0].evidence.times
