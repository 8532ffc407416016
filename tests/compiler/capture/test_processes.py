"""Two processes that share the work train as without a compiler: each has part of the heads, or of all parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.processes import in_processes
from support.thorough import THOROUGH
from support.wrapping import attend
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import regraft

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")


class Attention(nn.Module):
    """Two heads of four channels."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(attend(*heads).transpose(1, 2).flatten(2))


def spread(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model, mesh = Attention(), init_device_mesh("cpu", (2,))
    if kind == "heads":
        plan = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel()}
        return parallelize_module(model, mesh, plan)
    return fully_shard(model, mesh=mesh)


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def trained(kind: str, compiled: bool) -> list[torch.Tensor]:
    """Losses of two steps of descent and the parameters after them."""
    model, seen = spread(kind), []
    program = torch.compile(model, backend="regraft", options={"profit": "always"}) if compiled else model
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 if kind == "heads" else 1 + dist.get_rank())
    for x in torch.randn(2, 2, 3, 8):
        loss = whole(program(x)).square().mean()
        loss.backward()
        descent.step()
        descent.zero_grad()
        seen.append(loss.detach())
    return [*seen, *(whole(p.detach()).clone() for p in model.parameters())]


def of_both() -> dict[str, Any]:
    found = {}
    for kind in ("heads", "parameters") if THOROUGH else ("parameters",):  # heads: `test_parallel.py`
        torch._dynamo.reset()
        with regraft.coverage() as cov:
            results = trained(kind, True)
        attentions = sum(cov.matches[rule] for rule in ("sdpa", "sdpa_with_weights"))
        found[kind] = results, trained(kind, False), attentions, len(cov.faults)
    return found


@pytest.mark.slow
def test_two_processes_train_as_without_a_compiler(tmp_path):
    for of_process in in_processes(of_both, tmp_path):
        for kind, (results, expected, attentions, faults) in of_process.items():
            torch.testing.assert_close(results, expected, atol=1e-5, rtol=1e-4, msg=lambda m, kind=kind: f"{kind}: {m}")
            assert (attentions, faults) == (1, 0), kind
