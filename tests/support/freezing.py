"""Models to freeze, and how they are compiled for that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import regraft
from regraft.compiler.backend import backend


def frozen(
    function: Callable[..., Any], *, grad: bool = False, dynamic: bool | None = False, **options: Any
) -> tuple[Callable[..., Any], regraft.Coverage]:
    """`function` compiled with frozen weights, every legal match applied; run it inside ``with coverage:``."""
    torch._dynamo.reset()
    options = {"profit": "always", "verify": "structure", "freezing": True} | options
    compiled = torch.compile(function, backend=functools.partial(backend, options=options), dynamic=dynamic)
    return torch.set_grad_enabled(grad)(compiled) if grad else compiled, regraft.coverage()


def counts(coverage: regraft.Coverage) -> dict[str, int]:
    """What freezing did to the only graph."""
    (graph,) = coverage.graphs
    assert not graph.fallbacks, graph.fallbacks
    return graph.details["freezing"]


def disturbed(model: nn.Module) -> nn.Module:
    """`model` in eval mode, its batch norms far from the identity."""
    generator = torch.Generator().manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            layer.running_mean.normal_(generator=generator)
            layer.running_var.uniform_(0.3, 3.0, generator=generator)
            if layer.affine:
                layer.weight.data.normal_(generator=generator)
                layer.bias.data.normal_(generator=generator)
    return model.eval()


def normalized() -> nn.Module:
    """Two convolutions, each with a batch norm."""
    torch.manual_seed(0)
    return disturbed(
        nn.Sequential(
            nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        )
    )


class Residual(nn.Module):
    """A block of a residual network."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        same = channels == out and stride == 1
        self.skip = nn.Identity() if same else nn.Sequential(nn.Conv2d(channels, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(self.first(x)) + self.skip(x))


def residual_network() -> nn.Module:
    """Stem, pooling, two blocks, head: (batch, 3, size, size) to (batch, 5)."""
    torch.manual_seed(0)
    return disturbed(
        nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1), Residual(8, 8), Residual(8, 16, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5),
        )
    )  # fmt: skip
