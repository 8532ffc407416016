"""Indices that a program makes on the CPU for a tensor on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.fake_cuda import memory_on_cpu
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes import fold_constant_tables as folding
from regraft.compiler.passes.constants_on_device import keep_constants_on_device
from regraft.compiler.passes.indices_to_device import move_indices_to_device

aten = torch.ops.aten


def pairs(x: torch.Tensor) -> torch.Tensor:
    """DLRM's products of features."""
    i, j = torch.tril_indices(4, 4, -1)
    return aten.index.Tensor(x, [None, i, j])


def written(x: torch.Tensor) -> torch.Tensor:
    return aten.index_put.default(x, [torch.arange(3).remainder(2)], aten.slice.Tensor(x, 0, 0, 3), True)


def traced(function: Callable[..., torch.Tensor], device: str = "cuda") -> fx.GraphModule:
    with FakeTensorMode():
        module = make_fx(functionalize(function))(torch.empty(4, 4, 4, device=device))
    module.graph.eliminate_dead_code()
    return module


@pytest.mark.parametrize("function", [pairs, written])
def test_constants_are_there_once(function: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "memory_like", memory_on_cpu)
    monkeypatch.setattr("regraft.compiler.passes.constants_on_device.memory_like", memory_on_cpu)
    module = traced(function)
    assert move_indices_to_device(module) == 1
    assert keep_constants_on_device(module) == (2 if function is pairs else 1)
    module.graph.lint()
    values = [n.meta["val"] for n in module.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    assert {x.device.type for x in values} == {"cuda"}
    x = torch.randn(4, 4, 4)
    assert torch.equal(module(x), function(x))


def test_left_alone() -> None:
    assert move_indices_to_device(traced(pairs, "cpu")) == 0
    assert move_indices_to_device(traced(lambda x: aten.index.Tensor(x, [torch.arange(2, device="cuda")]))) == 0
    assert move_indices_to_device(traced(lambda x: aten.index.Tensor(x, [torch.ones((), dtype=torch.long)]))) == 0
