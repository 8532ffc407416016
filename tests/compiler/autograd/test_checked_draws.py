"""Draws of a program: eager's errors for their parameters, and its order in memory."""

from __future__ import annotations

import pytest
import torch
from support.thorough import takes_turns

import regraft

CHANCES, DEVIATIONS = torch.tensor([0.5, 1.5]), torch.tensor([1.0, -1.0])
REFUSED = {
    "chances": (lambda p: torch.bernoulli(p), CHANCES), "in place": (lambda p: p.clone().bernoulli_(p), CHANCES),
    "no number": (lambda p: torch.bernoulli(p * torch.nan), CHANCES),
    "one chance": (lambda p: torch.bernoulli(p, 1.5), CHANCES),
    "one in place": (lambda p: p.clone().bernoulli_(-0.5), CHANCES),
    "deviations": (lambda p: torch.normal(0.0, p), DEVIATIONS),
    "means and deviations": (lambda p: torch.normal(p, p), DEVIATIONS),
    "one deviation": (lambda p: torch.normal(p, -1.0), DEVIATIONS),
    "one for all": (lambda p: p.clone().normal_(0, -1.0), DEVIATIONS),
    "dropout": (lambda p: torch.nn.functional.dropout(p, float("nan")), CHANCES),
    "range": (lambda p: p.clone().uniform_(2, 1), CHANCES), "rate": (lambda p: p.clone().exponential_(-1.0), CHANCES),
}  # fmt: skip


@takes_turns("rng")
@pytest.mark.parametrize("rng", ["statistical", "eager"])
@pytest.mark.parametrize("name", REFUSED)
def test_parameters_that_eager_refuses(name, rng):
    function, given = REFUSED[name]
    with pytest.raises(RuntimeError):
        function(given)
    torch.compiler.reset()
    with regraft.coverage() as report, pytest.raises(RuntimeError):
        torch.compile(function, backend="regraft", options={"rng": rng})(given)
    assert not report.faults


@pytest.mark.parametrize("function", [
    lambda x: torch.bernoulli(x.sigmoid()), lambda x: torch.bernoulli(torch.full((2,), 0.5)) * x,
    lambda x: torch.bernoulli(x, 0.25), lambda x: torch.normal(x, x.abs()), lambda x: x.clone().uniform_(1, 1) + x,
])  # fmt: skip
def test_parameters_that_eager_takes(function):
    torch.compiler.reset()
    x = torch.zeros(2, requires_grad=True)
    with regraft.coverage() as report:
        compiled = torch.compile(function, backend="regraft")(x)
    assert not report.faults and compiled.requires_grad == function(x).requires_grad


LIES = {
    "transposed": lambda: torch.randn(8, 40).t(), "images": lambda: torch.randn(2, 3, 4, 5).permute(0, 3, 1, 2),
    "rows apart": lambda: torch.randn(6, 9)[:, :5].t(), "contiguous": lambda: torch.randn(3, 4),
}  # fmt: skip
DRAWS = {
    "temporary": lambda x: (x * 1).bernoulli_(0.7), "new": lambda x: torch.empty_like(x).bernoulli_(0.3),
    "input": lambda x: x.bernoulli_(0.5) + 1, "view": lambda x: _seen_by_a_view(x * 2),
}  # fmt: skip


def _seen_by_a_view(y):
    part = y[1:]
    y.bernoulli_(0.5)
    return y, part * 2


@takes_turns("lies")
@pytest.mark.parametrize("lies", LIES)
@pytest.mark.parametrize("name", DRAWS)
def test_draws_fill_memory_in_its_order(name, lies):
    torch.compiler.reset()
    compiled, results = torch.compile(DRAWS[name], backend="regraft", options={"rng": "eager"}), []
    x = LIES[lies]()
    for call in (DRAWS[name], compiled):
        torch.manual_seed(3)
        given = torch.empty_strided(x.shape, x.stride()).copy_(x)
        found = call(given)
        results.append([given, *(found if isinstance(found, tuple) else (found,))])
    for ours, eager in zip(*results, strict=True):
        assert torch.equal(ours, eager) and ours.stride() == eager.stride()


def test_a_draw_in_place_has_no_gradient():
    torch.compiler.reset()
    for call in (program := lambda x, y: (x.t() * 1).bernoulli_(0.5) * y, torch.compile(program, backend="regraft")):
        x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
        call(x, y).sum().backward()
        assert y.grad is not None and not x.grad.any()
