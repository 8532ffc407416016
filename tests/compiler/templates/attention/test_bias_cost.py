"""Which biases and masks a kernel computes: those that take more memory than what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.templates.attention.bias_cost import worth_computing
from regraft.compiler.templates.attention.shift_invariance import shiftable


def chosen(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[str]:
    """The operators of a function that are computed where its result is read."""
    module = make_fx(function, tracing_mode="fake")(*inputs)
    (result,) = module.graph.output_node().all_input_nodes
    found = worth_computing([result])
    return [str(node.target).split(".")[1] for node in module.graph.nodes if node in found]


BIAS, MASK = torch.zeros(1, 4, 32, 32), torch.zeros(8, 1, 1, 32)


def test_what_grows_is_computed() -> None:
    assert chosen(lambda b, m: b + m, BIAS, MASK) == ["add"]
    assert chosen(lambda b, m: (b + m).contiguous().expand(8, 4, 32, 32), BIAS, MASK)[0] == "add"


def test_what_is_repeated_is_computed() -> None:
    def slopes(m: torch.Tensor) -> torch.Tensor:
        return (torch.arange(4).unsqueeze(1) * torch.arange(32)).repeat(8, 1).unsqueeze(1).to(m.dtype)

    assert set(chosen(slopes, MASK)) >= {"mul", "repeat", "_to_copy"}
    assert "repeat" in chosen(lambda m: m.repeat(1, 4, 1, 1), MASK)


def test_what_does_not_grow_is_read() -> None:
    assert chosen(lambda b, m: b + m, BIAS, torch.zeros(1, 4, 32, 32)) == []
    assert chosen(lambda m: (1.0 - m) * -1e4, MASK) == []
    assert chosen(lambda m: m.view(8, 32), MASK) == []


def test_what_shrinks_is_read_where_it_is_small() -> None:
    def causal(keep: torch.Tensor) -> torch.Tensor:
        i, j = torch.arange(32).unsqueeze(1), torch.arange(32)
        return torch.where((j <= i) & (keep > 0), 0.0, -1e9)

    found = chosen(causal, torch.ones(8, 1, 1, 32, dtype=torch.int64))
    assert "where" in found
    assert "le" in found
    assert "gt" not in found


def test_a_comparison_of_what_is_small_below_is_computed() -> None:
    """It takes fewer bytes than what it compares, and more than what that is made of."""

    def hidden(keep: torch.Tensor) -> torch.Tensor:
        i, j = torch.arange(32).unsqueeze(1), torch.arange(32)
        return torch.where((j <= i) & keep, 0.0, torch.finfo(torch.float32).min) < -1

    assert "lt" in chosen(hidden, torch.ones(8, 1, 1, 32, dtype=torch.bool))


def test_steps_for_rows_and_columns_are_not_counted() -> None:
    def slopes(m: torch.Tensor) -> torch.Tensor:
        row = torch.arange(32, dtype=torch.float32)
        for _ in range(20):
            row = row.sin()
        return m + row[:, None]

    assert "sin" in chosen(slopes, MASK)


@pytest.mark.parametrize(
    "function",
    [lambda b, m: (b + m).softmax(-1), lambda b, m: (b + m).cumsum(-1), lambda b, m: torch.rand_like(b + m) + m],
)
def test_what_has_no_formula_is_read(function: Any) -> None:
    assert chosen(function, BIAS, MASK) == []


def test_long_formulas_are_computed_once() -> None:
    def long(b: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        x = b + m
        for _ in range(20):
            x = x.sin()
        return x

    assert chosen(long, BIAS, MASK) == []


def test_sums_in_float16_are_read_as_they_are_rounded() -> None:
    assert chosen(lambda b, m: b + m, BIAS.half(), MASK.half()) == []
    assert chosen(lambda b, m: torch.where(m > 0, b, -1.0), BIAS.half(), MASK.half()) != []


def test_symbolic_sizes_are_not_settled() -> None:
    module = make_fx(lambda b, m: b + m.sin() * torch.arange(4), tracing_mode="symbolic")(
        torch.ones(3, 1), MASK[..., :4]
    )
    (result,) = module.graph.output_node().all_input_nodes
    environment = result.meta["val"].fake_mode.shape_env
    known = len(environment.guards)
    worth_computing([result])
    shiftable(result)
    assert len(environment.guards) == known
