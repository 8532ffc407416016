"""Masks that are known from positions as formulas: the same elements as eager's, wherever they are asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.ir.evaluator import Evaluator
from regraft.compiler.templates.common.formula import Formulas
from regraft.compiler.templates.common.formula_nodes import mask_formula


def packed(x: torch.Tensor) -> torch.Tensor:
    """The mask of decoders that look for several texts in a row, given none: causal."""
    position = torch.arange(x.shape[1])[None].expand(2, -1)
    text = (torch.diff(position, prepend=position[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    at = torch.arange(2)[:, None, None, None]
    i, j = torch.arange(x.shape[1])[None, None, :, None], torch.arange(x.shape[1])[None, None, None, :]
    return (text[at, i] == text[at, j]) & (position[at, j] <= position[at, i])


def window(x: torch.Tensor) -> torch.Tensor:
    i, j = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])[None, :]
    return (j <= i) & (j > i - 3)


def later(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


def always(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.shape[1]) >= 0


@pytest.mark.parametrize("function", [packed, window, later, always])
def test_formulas_are_what_eager_computes(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    node = last(function)
    formula = mask_formula(node)
    assert formula is not None
    sizes = node.meta["val"].shape
    expected = function(torch.zeros(2, 6))
    for number, index in enumerate(torch.cartesian_prod(*map(torch.arange, sizes)).view(-1, len(sizes)).tolist()):
        found = Evaluator({}, {}, {}, {}).value(formula(tuple(index)))
        assert bool(found) == bool(expected.flatten()[number]), index


def test_they_are_no_leaves() -> None:
    node, formulas = last(packed), Formulas()
    formulas.value(node).at((0, 0, 1, 2))
    assert not formulas.leaves


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x > 0,
        lambda x: (x[:, :, None] > 0) & (torch.arange(6)[None, None, :] < 3),
        lambda x: torch.arange(6) + 1,
        lambda x: torch.rand(6) > 0.5,
    ],
)
def test_what_depends_on_more_is_not_known(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert mask_formula(last(function)) is None


def last(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.fx.Node:
    graph = make_fx(function, tracing_mode="fake")(torch.zeros(2, 6)).graph
    return graph.output_node().args[0]  # type: ignore[return-value]
