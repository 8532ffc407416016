"""Gradients of lookups in tables of few rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.training_attention import joint_of

from regraft.compiler.passes.sum_few_rows import sum_few_rows
from regraft.rewrites.graph import op_name

ROWS, WIDTH = 5, 3
FOUND: dict[str, Callable[..., torch.Tensor]] = {
    "embedding": lambda table, index: F.embedding(index, table).sin(),
    "a padded one": lambda table, index: F.embedding(index, table, padding_idx=2).sin(),
    "indexed": lambda table, index: table[index].sin(),
    "indexed from the end": lambda table, index: table[index - ROWS].sin(),
    "positions, permuted": lambda table, index: F.embedding(index, table).permute(2, 0, 1).cos(),
    "numbers": lambda table, index: table[:, 0][index].sin(),
    "16 bits": lambda table, index: F.embedding(index, table.bfloat16()).sin(),
}


def given(lookups: tuple[int, ...] = (40, 9), rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, WIDTH), torch.randint(rows, lookups)


def gradients(module: Callable[..., object], inputs: tuple[torch.Tensor, ...], tangent: torch.Tensor) -> torch.Tensor:
    results = module(list(inputs), [tangent])
    return next(x for x in torch.utils._pytree.tree_leaves(results)[1:] if x is not None)


@pytest.mark.parametrize("name", FOUND)
def test_gradients(name: str) -> None:
    inputs = given()
    joint = joint_of(FOUND[name], *inputs)
    tangent = torch.randn_like(FOUND[name](*inputs))
    before = gradients(joint, inputs, tangent)
    assert sum_few_rows(joint) == 1
    joint.graph.lint()
    assert not {"aten.embedding_dense_backward", "aten.index_put"} & {op_name(n) for n in joint.graph.nodes}
    tolerance = 1e-1 if name == "16 bits" else 1e-5
    torch.testing.assert_close(gradients(joint, inputs, tangent), before, rtol=tolerance, atol=tolerance)


LEFT = {
    "many rows": (FOUND["embedding"], given((105 * 64,), 105)),
    "few lookups": (FOUND["embedding"], given((63 * ROWS,))),
    "scaled by counts": (lambda t, i: F.embedding(i, t, scale_grad_by_freq=True).sin(), given()),
    "two indices": (lambda t, i: t[i, i % WIDTH].sin(), given()),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    function, inputs = LEFT[name]
    assert sum_few_rows(joint_of(function, *inputs)) == 0


def test_an_index_whose_range_nothing_checks() -> None:
    """A program that scatters itself has eager's error for a row that is not there."""

    def forward(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(ROWS, WIDTH).index_put((index,), x.sin(), accumulate=True)

    _, index = given((400,))
    assert sum_few_rows(joint_of(forward, torch.randn(400, WIDTH), index)) == 0
