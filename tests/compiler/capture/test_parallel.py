"""Tensors spread over processes: what runs where several processes share the work computes what eager does."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.wrapping import attend
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import regraft

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")


@pytest.fixture(scope="module", autouse=True)
def group():
    """Two processes, the other of which only seems to be there."""
    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=2)
    yield dist.group.WORLD
    dist.destroy_process_group()


class Attention(nn.Module):
    """Two heads of four channels, one a process."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        heads = (part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(attend(*heads).transpose(1, 2).flatten(2))


def test_attention_whose_heads_are_spread_is_trained_whatever_the_sizes():
    """Torch itself can't differentiate tensors spread over processes where sizes are symbolic: it is done for each."""
    plan = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel()}
    model = parallelize_module(Attention(), init_device_mesh("cpu", (2,)), plan)
    for part in model.parameters():  # torch 2.11's group that only seems to be there sends nothing: memory as it was
        nn.init.uniform_(part.to_local() if hasattr(part, "to_local") else part, -0.5, 0.5)

    def trained(program, x):
        y = program(x)
        y.square().mean().backward()
        gradients = [p.grad.to_local().clone() for p in model.parameters() if hasattr(p.grad, "to_local")]
        model.zero_grad()
        return [y.detach(), *gradients]

    torch._dynamo.reset()
    with regraft.coverage() as cov:
        compiled = torch.compile(model, backend="regraft", options={"profit": "always"})
        for size in (3, 3, 5, 5, 4):
            x = torch.randn(2, size, 8)
            torch.testing.assert_close(trained(compiled, x), trained(model, x), atol=1e-5, rtol=1e-4)
    assert cov.matches["sdpa"] == 2 + ("by-sizes" in {f.code for f in cov.fallbacks})  # torch 2.11 takes symbols
    assert {f.code for f in cov.fallbacks} <= {"object-input", "number-input", "by-sizes", "tensor-subclass"}


def test_collectives_stay_in_order_each_as_often_as_written(group):
    """They are effects: neither the same call twice nor one whose result nobody reads may go."""

    def program(q, k, v):
        first = collectives.all_reduce(q.sin(), "sum", group)
        again = collectives.all_reduce(q.sin(), "sum", group)
        collectives.all_reduce(k, "max", group)
        k.add_(1)
        gathered = collectives.all_gather_tensor(k, 0, group)
        return attend(first, again, v), gathered.cos()

    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 3, 4) for _ in range(3))
    written = k.clone()
    expected = [x + 0 for x in program(q, k, v)]
    with regraft.coverage() as cov:
        found = torch.compile(program, backend="regraft", options={"profit": "always"})(q, written, v)
    torch.testing.assert_close([*found, written], [*expected, k])
    assert _sent(cov) == ["all_reduce"] * 3 + ["all_gather_into_tensor"]


@pytest.mark.parametrize("rank", [0, 1])
def test_collectives_stay_in_order_whatever_is_computed_between_them(group, rank):
    """Each process has a program of its own here, but all wait for the same collectives."""

    def program(x):
        summed = collectives.all_reduce(x * 2 if rank else x, "sum", group)
        gathered = collectives.all_gather_tensor(x.relu(), 0, group)
        scattered = collectives.reduce_scatter_tensor(gathered * 2, "sum", 0, group)
        sent = collectives.broadcast(x.cos(), 0, group)
        swapped = collectives.all_to_all_single(torch.cat([x, -x]), None, None, group)
        largest = collectives.all_reduce(summed.mean(0), "max", group)
        return summed + scattered + sent, swapped, largest + gathered.sum()

    torch._dynamo.reset()
    with regraft.coverage() as cov:
        torch.compile(program, backend="regraft", dynamic=True)(torch.randn(4, 3))
    assert _sent(cov) == [
        "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "all_to_all_single",
        "all_reduce",
    ]  # fmt: skip


def _sent(cov):
    """The collectives of a program's generated code, in order."""
    lines = cov.graphs[0].details["source:inference"].splitlines()
    calls = [line.split("_c10d_functional.")[1].split(".")[0] for line in lines if " = _c10d_" in line]
    return [call for call in calls if call not in ("wait_tensor", "bare_calls(")]
