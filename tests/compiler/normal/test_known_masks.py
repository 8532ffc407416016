"""Masks that mask nothing, built from sizes and constants, vanish: what is left is an attention without a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.attentions import attend, qkv
from support.rewriting import Rewritten, assert_agrees, compiled, rewritten, trained
from support.thorough import one_row_in, takes_turns

Tensor = torch.Tensor
LOWEST = torch.finfo(torch.float32).min
INF = float("inf")


def ones(s: Tensor) -> Tensor:
    """What `transformers` makes where the user gives no mask."""
    return torch.ones(s.shape[0], s.shape[-1])


def extended(s: Tensor) -> Tensor:
    return (1.0 - ones(s)[:, None, None, :].to(s.dtype)) * torch.finfo(s.dtype).min


def rows(s: Tensor) -> Tensor:
    return torch.arange(s.shape[-2])[:, None]


def columns(s: Tensor) -> Tensor:
    return torch.arange(s.shape[-1])[None]


NOTHING: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros added": lambda s: s + torch.zeros(s.shape[-2], s.shape[-1]),
    "extended ones": lambda s: s + extended(s),
    "rsub of ones": lambda s: s + torch.rsub(ones(s), 1)[:, None, None] * LOWEST,
    "ones, long, cast": lambda s: s + (1 - ones(s).long()[:, None, None, :]).to(s.dtype) * -10000.0,
    "ones, inverted and filled": lambda s: s + (i := 1.0 - ones(s)[:, None, None]).masked_fill(i.bool(), LOWEST),
    "ones expanded": lambda s: s + (1.0 - ones(s)[:, None, None].expand(s.shape[0], 1, s.shape[-2], -1)) * -1e9,
    "masked_fill of == 0": lambda s: s.masked_fill(ones(s)[:, None, None] == 0, -INF),
    "masked_fill of ~bool": lambda s: s.masked_fill(~ones(s)[:, None, None].bool(), -INF),
    "masked_fill of new_zeros": lambda s: s.masked_fill(s.new_zeros(s.shape[-1], dtype=torch.bool), LOWEST),
    "where of ones": lambda s: torch.where(ones(s)[:, None, None].to(torch.bool), s, -INF),
    "where of > 0": lambda s: torch.where(ones(s)[:, None, None] > 0, s, torch.full_like(s, -INF)),
    "where, scores on the right": lambda s: torch.where(ones(s)[:, None, None] != 1, torch.full([], -INF), s),
    "additive where of ones": lambda s: s + torch.where(ones(s)[:, None, None].bool(), 0.0, LOWEST),
    "arange < size": lambda s: torch.where(columns(s) < s.shape[-1], s, -INF),
    "arange >= 0": lambda s: torch.where(columns(s) >= 0, s, -INF),
    "arange <= arange + size": lambda s: torch.where(columns(s) <= rows(s) + s.shape[-1], s, -INF),
    "window, both sides": lambda s: s.masked_fill(
        (columns(s) > rows(s) + s.shape[-1]) | (columns(s) < rows(s) - s.shape[-2]), -INF
    ),
    "positions by cumsum": lambda s: torch.where((ones(s).long().cumsum(-1) - 1)[:, None, None] >= 0, s, -INF),
    "lengths by sum": lambda s: torch.where(columns(s) < ones(s).long().sum(-1)[:, None, None, None], s, -INF),
    "triu beyond the last column": lambda s: s + torch.full((s.shape[-2], s.shape[-1]), -INF).triu(s.shape[-1]),
    "tril beyond the last column": lambda s: s.masked_fill(
        torch.ones(s.shape[-2], s.shape[-1]).tril(s.shape[-1]) == 0, -INF
    ),
    "tril of zeros": lambda s: s + torch.zeros(s.shape[-2], s.shape[-1]).tril(),
    "ones in place": lambda s: s + torch.ones_like(s).mul_(0.0),
    "two masks": lambda s: torch.where(ones(s)[:, None, None].bool() & (columns(s) >= 0), s, -INF) + extended(s),
    "or with all": lambda s: torch.where((s > 0) | ones(s)[:, None, None].bool(), s, -INF),
    "a factor of ones": lambda s: s * ones(s)[:, None, None] + (1 - ones(s))[:, None, None] * -1e9,
    "looked up in ones": lambda s: torch.where(
        ones(s).bool()[torch.arange(s.shape[0])[:, None, None, None], columns(s)[None, None]], s, -INF
    ),
    "one segment": lambda s: torch.where(
        (n := (torch.arange(s.shape[-1]).diff(prepend=torch.tensor([-1])) != 1).cumsum(-1))[:, None] == n, s, -INF
    ) if s.shape[-1] == s.shape[-2] else s,
}  # fmt: skip


def attention(mask: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda q, k, v, *more: attend(mask(q @ k.transpose(-2, -1) * 0.5, *more), v)


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", NOTHING)
def test_a_mask_of_nothing(name: str, dynamic: bool) -> None:
    function, inputs = attention(NOTHING[name]), qkv(10, 10)
    done = rewritten(function, inputs, dynamic=dynamic)
    assert done.count() == 1 and "mask:none" in done.tags, done.record.near_misses
    assert_agrees(function, done.run, inputs)


@pytest.mark.parametrize("name", ["extended ones", "masked_fill of == 0", "arange <= arange + size"])
def test_in_training(name: str) -> None:
    function, inputs = attention(NOTHING[name]), trained(qkv(10, 10))
    done = rewritten(function, inputs)
    assert "mask:none" in done.tags
    assert_agrees(function, done.run, inputs)


def almost(s: Tensor) -> Tensor:
    """Ones, but for one element."""
    mask = torch.ones(s.shape[-1])
    return torch.cat([mask[:-1], torch.zeros(1)])


SOMETHING: dict[str, Callable[[Tensor], Tensor]] = {
    "one element differs": lambda s: s + (1.0 - almost(s)) * LOWEST,
    "literal, one element differs": lambda s: s.masked_fill(torch.tensor([True] + [False] * 9), -INF),
    "arange < size - 1": lambda s: torch.where(columns(s) < s.shape[-1] - 1, s, -INF),
    "arange > 0": lambda s: torch.where(columns(s) > 0, s, -INF),
    "arange <= arange + size - 2": lambda s: torch.where(columns(s) <= rows(s) + s.shape[-1] - 2, s, -INF),
    "triu at the last column": lambda s: s + torch.full((s.shape[-2], s.shape[-1]), -INF).triu(s.shape[-1] - 1),
    "positions by cumsum": lambda s: torch.where((ones(s).long().cumsum(-1) - 2)[:, None, None] >= 0, s, -INF),
    "small numbers": lambda s: s + torch.full((s.shape[-1],), 1e-3) * torch.arange(s.shape[-1]),
    "of the scores": lambda s: torch.where(s > 0, s, -INF),
    "random": lambda s: s + torch.rand(s.shape[-1]).floor(),
}


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", SOMETHING)
def test_a_mask_of_something(name: str, dynamic: bool) -> None:
    function, inputs = attention(SOMETHING[name]), qkv(10, 10)
    done = rewritten(function, inputs, dynamic=dynamic)
    assert "mask:none" not in done.tags
    if name != "random":
        assert_agrees(function, done.run, inputs)


def test_a_mask_that_is_given_is_not_known() -> None:
    given = attention(lambda s, m: s + (1.0 - m[:, None, None]) * LOWEST)
    inputs = (*qkv(10, 10), torch.ones(2, 10))
    done = rewritten(given, inputs)
    assert done.count() == 1 and "mask:none" not in done.tags
    masked = (*inputs[:3], torch.ones(2, 10).index_fill(1, torch.tensor([9]), 0))
    assert_agrees(given, done.run, masked)


def test_a_buffer_is_not_known() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.zeros(10))

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(q @ k.mT + self.mask, v)

    model, inputs = Model(), qkv(10, 10)
    run, cov = compiled(model)
    with cov, torch.no_grad():
        run(*inputs)
        assert cov.count("attention") == 1
        model.mask[3] = -INF
        assert_agrees(model, run, inputs)


def test_a_mask_written_later_is_not_known() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.zeros(10)
        view = mask[2:]
        view.masked_fill_(~keep[2:], -INF)
        return attend(q @ k.mT + mask, v), view

    inputs = (*qkv(10, 10), torch.tensor([True] * 9 + [False]))
    done = rewritten(function, inputs)
    assert "mask:none" not in done.tags
    assert_agrees(function, done.run, inputs)


CAUSAL: dict[str, Callable[[Tensor], Tensor]] = {
    "tril": lambda s: s.masked_fill(torch.ones(s.shape[-2], s.shape[-1]).tril() == 0, -INF),
    "triu": lambda s: s + torch.full((s.shape[-2], s.shape[-1]), LOWEST).triu(1),
    "arange": lambda s: torch.where(columns(s) <= rows(s), s, -INF),
    "not >": lambda s: s.masked_fill(columns(s) > rows(s), -INF),
    "and ones": lambda s: torch.where((columns(s) <= rows(s)) & ones(s)[:, None, None].bool(), s, -INF),
    "multiplied": lambda s: s + (1.0 - torch.ones(s.shape[-2], s.shape[-1]).tril()[None, None]) * -1e5,
    "two of them": lambda s: torch.where(columns(s) <= rows(s), s, -INF).masked_fill(columns(s) - 1 >= rows(s), -INF),
}
NOT_CAUSAL: dict[str, Callable[[Tensor], Tensor]] = {
    "strict": lambda s: torch.where(columns(s) < rows(s), s, LOWEST),
    "one more": lambda s: torch.where(columns(s) <= rows(s) + 1, s, -INF),
    "upper": lambda s: torch.where(columns(s) >= rows(s), s, -INF),
    "window": lambda s: torch.where((columns(s) <= rows(s)) & (columns(s) > rows(s) - 3), s, -INF),
    "too weak": lambda s: s + torch.full((s.shape[-2], s.shape[-1]), -10.0).triu(1),
}


def _told_causal(done: Rewritten) -> list[Any]:
    """What the kernels are told."""
    calls = [n for n in done.graph.nodes if "scaled_dot_product" in str(n.target)]
    return [len(n.args) > 4 and n.args[4] for n in calls]


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", [*CAUSAL, *NOT_CAUSAL])
def test_causal(name: str, dynamic: bool) -> None:
    function, inputs = attention((CAUSAL | NOT_CAUSAL)[name]), qkv(10, 10)
    inputs = (inputs[0], inputs[0] + 1, inputs[2])  # so that rows and columns are one symbol
    shared = (lambda q, v: function(q, q + 1, v)) if dynamic else function
    given = (inputs[0], inputs[2][..., :8]) if dynamic else inputs
    done = rewritten(shared, given, dynamic=dynamic)
    assert done.count() == 1
    assert _told_causal(done) == [name in CAUSAL]
    assert_agrees(shared, done.run, given)
