"""Graphs that Dynamo splits for DDP: each part of about a bucket's parameters is compiled for fake tensors."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from support.wrapping import attend
from torch import nn
from torch._dynamo.backends.distributed import DDPOptimizer
from torch._functorch import aot_autograd

import regraft


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.norm = nn.LayerNorm(8)  # with ``dynamic=True``, Dynamo begins anew with its eps as a constant
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.norm(x)
        heads = (part(y).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return x + self.out(attend(*heads).transpose(1, 2).flatten(2)).relu_()


class Expanded(nn.Module):
    """Its first part ends in a view whose elements lie at one address."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 1), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).expand(*x.shape)).sin()


def backend_in_buckets(size: int, *, strict: bool = True):
    """regraft, for the parts that buckets of so many bytes make of a graph."""
    backend = functools.partial(regraft.backend, options={"strict": strict, "profit": "always"})
    return DDPOptimizer(size, backend, first_bucket_cap=size).compile_fn


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("layers", "size", "attentions"), [([Layer, Layer], 1200, 2), ([Expanded], 90, 0)])
def test_each_part_is_compiled_and_trains_as_in_eager(layers, size, attentions, dynamic):
    torch._dynamo.reset()
    eager = nn.Sequential(*(layer() for layer in layers))
    trained = copy.deepcopy(eager)
    compiled = torch.compile(trained, backend=backend_in_buckets(size), dynamic=dynamic or None)
    with regraft.coverage() as cov:
        for length in (3, 3, 5):
            x = torch.randn(2, length, 8)
            results = [program(x) for program in (compiled, eager)]
            torch.testing.assert_close(*results)
            for result in results:
                result.square().mean().backward()
    for got, expected in zip(trained.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad)
    for got, expected in zip(trained.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(got, expected)
    compilations = 1 if dynamic else 2
    assert len(cov.graphs) == 2 * compilations
    assert not cov.fallbacks
    assert cov.matches["sdpa"] == attentions * compilations


def test_a_part_that_cannot_be_differentiated_runs_as_written(monkeypatch):
    """Dynamo asks whether AOTAutograd was called, and reads what that has found out."""

    def fail(*_given, **_options):
        raise RuntimeError("planted")

    torch._dynamo.reset()
    eager = nn.Sequential(Layer(), Layer())
    compiled = torch.compile(copy.deepcopy(eager), backend=backend_in_buckets(1200, strict=False))
    with monkeypatch.context() as patched:
        patched.setattr(aot_autograd, "aot_stage2_compile", fail)
        x = torch.randn(2, 3, 8)
        torch.testing.assert_close(compiled(x), eager(x))
