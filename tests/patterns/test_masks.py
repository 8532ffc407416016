"""What is known about masks while compiling."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.normal import normalized, traced

from regraft.patterns.masks import evaluate, is_causal, is_kept_by, may_empty_rows

INF = float("inf")
N = 5


def output_of(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, dynamic: bool = False) -> torch.fx.Node:
    graph = normalized(traced(function, *inputs, dynamic=dynamic)).graph
    (output,) = graph.output_node().args
    return output[0] if isinstance(output, (list, tuple)) else output


def lower() -> torch.Tensor:
    return torch.ones(N, N, dtype=torch.bool).tril()


CAUSAL = {
    "tril": lower,
    "not triu": lambda: ~torch.ones(N, N, dtype=torch.bool).triu(1),
    "arange": lambda: torch.arange(N)[:, None] >= torch.arange(N),
    "with batch dims": lambda: lower()[None, None].expand(2, 1, N, N),
    "additive -inf": lambda: torch.full((N, N), -INF).triu(1),
    "additive lowest": lambda: torch.full((N, N), torch.finfo(torch.float32).min).triu(1),
    "additive by fill": lambda: torch.zeros(N, N).masked_fill(~lower(), -1e9),
    "additive from flags": lambda: (1.0 - lower().float()) * -1e5,
}
NOT_CAUSAL = {
    "all": lambda: torch.ones(N, N, dtype=torch.bool),
    "strict": lambda: torch.ones(N, N, dtype=torch.bool).tril(-1),
    "upper": lambda: torch.ones(N, N, dtype=torch.bool).triu(),
    "window": lambda: lower().triu(-2),
    "not square": lambda: torch.ones(N, N + 1, dtype=torch.bool).tril(),
    "a vector": lambda: torch.ones(N, dtype=torch.bool),
    "too weak": lambda: torch.full((N, N), -10.0).triu(1),
    "adds something": lambda: torch.full((N, N), -INF).triu(1) + 0.5,
    "one batch differs": lambda: torch.stack([lower(), lower().logical_not()]),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_causal(name: str) -> None:
    assert is_causal(output_of(CAUSAL[name]))


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_not_causal(name: str) -> None:
    assert not is_causal(output_of(NOT_CAUSAL[name]))


def test_what_depends_on_inputs_is_unknown() -> None:
    mask = torch.ones(N, N)
    assert evaluate(output_of(lambda m: m.tril(), mask)) is None
    assert not is_causal(output_of(lambda m: m.tril(), mask))
    assert evaluate(output_of(lambda m: torch.ones(m.shape[0], m.shape[0]).tril(), mask, dynamic=True)) is None


def test_what_is_drawn_is_unknown() -> None:
    assert evaluate(output_of(lambda: torch.rand(N, N))) is None


def test_evaluation_gives_the_value() -> None:
    function = CAUSAL["additive by fill"]
    value = evaluate(output_of(function))
    assert value is not None and torch.equal(value, function())


FLAGS = torch.ones(N, N, dtype=torch.bool)
FLOATS = torch.zeros(N, N)


@pytest.mark.parametrize(
    ("function", "mask", "may"),
    [
        (lambda m: m, FLOATS, True),
        (lambda m: m * 2, FLOATS, True),
        (lambda m: torch.zeros(N, N).masked_fill(~m, -INF), FLAGS, True),
        (lambda m: torch.zeros(N, N).masked_fill(~m, -1e9), FLAGS, False),
        (lambda m: (1.0 - m.float()) * torch.finfo(torch.float32).min, FLAGS, False),
        (lambda m: (1.0 - m.float()) * -INF, FLAGS, True),
        (lambda m: torch.where(m, 0.0, -1e4)[None], FLAGS, False),
        (lambda m: torch.full((N, N), -INF).triu(1), FLAGS, False),
        (lambda m: torch.full((N, N), -INF).triu(), FLAGS, True),
        (lambda m: torch.full((N, N), -INF).triu(2), FLAGS, False),
        (lambda m: ((1.0 - m.float()) * -1e30).half(), FLAGS, True),
    ],
    ids=[
        "given",
        "scaled",
        "filled -inf",
        "filled low",
        "flags",
        "flags -inf",
        "where",
        "causal",
        "upper",
        "higher",
        "narrowed",
    ],
)
def test_rows_that_additive_masks_may_empty(
    function: Callable[..., torch.Tensor], mask: torch.Tensor, may: bool
) -> None:
    assert may_empty_rows(output_of(function, mask), None, None) == may


def test_rows_that_boolean_masks_may_empty() -> None:
    given, causal = output_of(lambda m: m, FLAGS), output_of(CAUSAL["tril"])
    strict = output_of(NOT_CAUSAL["strict"])
    assert may_empty_rows(None, given, -INF) and not may_empty_rows(None, given, -1e9)
    assert not may_empty_rows(None, causal, -INF)
    assert may_empty_rows(None, strict, -INF) and not may_empty_rows(None, strict, -1e9)
    assert not may_empty_rows(None, None, None)


def test_rows_that_the_lowest_number_hides_are_not_empty() -> None:
    """Of any dtype: float64's is no float32."""
    strict = output_of(NOT_CAUSAL["strict"])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert not may_empty_rows(None, strict, torch.finfo(dtype).min)


def slopes() -> torch.Tensor:
    return -0.7 * torch.arange(600.0)


KEPT = {
    "flags": (lambda m: torch.where(m, 0.0, torch.finfo(torch.float32).min), FLAGS, True),
    "flags, -inf": (lambda m: torch.zeros(N, N).masked_fill(~m, -INF), FLAGS, True),
    "flags in two forms": (lambda m: (1.0 - m.float()) * -1e4, FLAGS, True),
    "integers": (lambda m: (1.0 - m[:, None].to(torch.float32)) * torch.finfo(torch.float32).min, FLAGS.long(), True),
    "cast": (lambda m: m.float()[None], FLOATS.bfloat16(), True),
    "half": (lambda m: torch.where(m, 0.5, -1e30), FLAGS, True),
    "causal": (lambda m: torch.full((N, N), -INF).triu(1), FLAGS, True),
    "whole numbers": (lambda m: torch.arange(200.0)[None], FLAGS, True),
    "given": (lambda m: m, FLOATS, False),
    "of a table": (lambda m: m[torch.arange(N) // 2], FLOATS, False),
    "slopes": (lambda m: slopes(), FLAGS, False),
    "a third": (lambda m: torch.where(m, 1 / 3, -1e30), FLAGS, False),
    "weak": (lambda m: (1.0 - m.float()) * -9999.0, FLAGS, False),
    "slopes and flags": (lambda m: torch.where(m[:, :1], slopes(), -1e30), FLAGS, False),
    "a mask of numbers": (lambda m: (1.0 - m) * -1e4, FLOATS, False),
}


@pytest.mark.parametrize("name", KEPT)
def test_masks_that_lose_nothing_in_16_bits(name: str) -> None:
    function, mask, kept = KEPT[name]
    assert is_kept_by(output_of(function, mask), torch.bfloat16) == kept
    assert is_kept_by(output_of(function, mask), torch.float32)
