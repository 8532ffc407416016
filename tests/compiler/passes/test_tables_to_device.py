"""Tables that a program makes on the CPU and moves: made on the GPU where nothing differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.tables_to_device import make_tables_on_device

aten = torch.ops.aten
CUDA = torch.device("cuda")


def traced(function: Callable[..., Any], *more: torch.device) -> fx.GraphModule:
    """On fakes: an image on the GPU, and numbers on other devices."""
    with FakeTensorMode():
        given = [torch.empty(4, 16, 16, device="cuda"), *(torch.empty(16, device=device) for device in more)]
        module = make_fx(functionalize(function))(*given)
    module.graph.eliminate_dead_code()
    return module


def windows(x: torch.Tensor) -> torch.Tensor:
    """The mask of shifted windows, as it is written in public models."""
    image = torch.zeros(4, 4)
    for k, rows in enumerate((slice(0, -2), slice(-2, -1), slice(-1, None))):
        image[rows] = k
    mask = image.reshape(1, 16) - image.reshape(16, 1)
    mask = mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)
    return x + mask.to(x.device)


def positions(x: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(16)
    distance = (steps[None, :] - steps[:, None]).abs().clamp(max=3)
    return x * distance.to(x.device, x.dtype)


def devices(module: fx.GraphModule) -> set[str]:
    return {n.meta["val"].device.type for n in module.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)}


def on_cpu(module: fx.GraphModule) -> fx.GraphModule:
    for node in module.graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", torch.device("cpu"))
    module.recompile()
    return module


@pytest.mark.parametrize("function", [windows, positions])
def test_tables_are_made_where_they_are_read(function: Callable[..., Any]) -> None:
    module = traced(function)
    assert devices(module) == {"cpu", "cuda"}
    assert make_tables_on_device(module) == 1
    assert devices(module) == {"cuda"}
    module.graph.lint()
    x = torch.randn(4, 16, 16)
    assert torch.equal(on_cpu(module)(x), function(x))


def test_a_number_is_read_while_tensors_are_fake() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x + torch.minimum(torch.arange(16), torch.tensor(7)).to(x.device)

    module = traced(forward)
    x = next(iter(module.graph.nodes)).meta["val"]
    with x.fake_mode:
        assert make_tables_on_device(module) == 1
    assert devices(module) == {"cuda"}
    x = torch.randn(4, 16, 16)
    assert torch.equal(on_cpu(module)(x), forward(x))


def test_a_table_that_is_moved_twice_is_made_once() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(16) * 2
        return x + steps.to(x.device) - steps.flip(0).to(x.device, x.dtype)

    module = traced(forward)
    assert make_tables_on_device(module) == 2
    assert len(module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)) == 1
    x = torch.randn(4, 16, 16)
    assert torch.equal(on_cpu(module)(x), forward(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x + n.to(x.device),
        lambda x, n: x + (torch.arange(16) + n).to(x.device),
        lambda x, n: x + torch.arange(16).float().sin().to(x.device),  # another rounding
        lambda x, n: x + torch.rand(16).to(x.device),
        lambda x, n: x + torch.arange(16, device=x.device),
    ],
    ids=["an input", "of an input", "rounded", "random", "there already"],
)
def test_what_stays(function: Callable[..., Any]) -> None:
    assert make_tables_on_device(traced(function, torch.device("cpu"))) == 0


def test_what_the_cpu_reads_too_stays_there_as_well() -> None:
    def forward(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps = torch.arange(16) + 1
        return x + steps.to(x.device), n * steps

    module = traced(forward, torch.device("cpu"))
    assert make_tables_on_device(module) == 1
    x, n = torch.randn(4, 16, 16), torch.randn(16)
    for found, wanted in zip(on_cpu(module)(x, n), forward(x, n), strict=True):
        assert torch.equal(found, wanted)
