"""Weights in vectors of columns."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from regraft.compiler.templates.gemm.packing import LastPacked, packed, packed_node, packed_sizes


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("transposed", [False, True])
def test_packed_by_definition(columns: int, transposed: bool) -> None:
    weight = torch.randn(7, columns)
    found = packed(weight.t() if transposed else weight, 16, transposed)
    assert found.shape == packed_sizes(columns, 7, 16)
    assert found.is_contiguous()
    whole = found.permute(1, 0, 2).reshape(7, -1)
    assert torch.equal(whole[:, :columns], weight)
    assert (whole[:, columns:] == 0).all()


def test_nodes_compute_the_same() -> None:
    weight = torch.randn(20, 7)
    graph = fx.Graph()
    node = graph.placeholder("weight")
    node.meta["val"] = weight
    made = packed_node(node, 8, True)
    graph.output(made)
    assert torch.equal(fx.GraphModule({}, graph)(weight), packed(weight, 8, True))
    assert torch.equal(made.meta["val"], packed(weight, 8, True))


def test_last_weight_stays_packed_until_it_changes() -> None:
    seen: list[torch.Tensor] = []
    program = LastPacked(lambda x, weight: seen.append(weight) or x, 8, True)  # type: ignore[func-returns-value]
    x, weight = torch.randn(3, 7), torch.randn(20, 7)
    program(x, weight)
    program(x, weight)
    assert seen[0] is seen[1]
    weight.add_(1.0)
    program(x, weight)
    assert torch.equal(seen[2], packed(weight, 8, True))
    program(x, torch.ones(20, 7))
    assert torch.equal(seen[3], packed(torch.ones(20, 7), 8, True))
