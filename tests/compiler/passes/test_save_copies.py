"""What a forward copies from the CPU to a GPU: the backward gets it on the GPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes import constants_on_device
from regraft.compiler.passes.constants_on_device import keep_constants_on_device
from regraft.compiler.passes.save_copies import save_copies
from regraft.compiler.passes.tables_to_device import make_tables_on_device
from regraft.rewrites.graph import val

# What is made on the CPU, and by which an activation on the GPU is multiplied.
FACTORS: dict[str, Callable[[Tensor, torch.device], Tensor]] = {
    "a given mask": lambda n, device: (n > 0).to(device),
    "given numbers": lambda n, device: n.to(device),
    "given numbers, cast": lambda n, device: n.to(device, torch.bfloat16),
    "given numbers, moved by a view": lambda n, device: n[:, None].to(device).squeeze(1),
    "a constant mask": lambda n, device: (torch.arange(64) % 2 == 1).float().to(device),
    "a constant table": lambda n, device: torch.exp(-math.log(1e4) * torch.arange(64) / 64).to(device),
    "a table of both": lambda n, device: (torch.arange(64) / 64 * n).to(device),
}


def joint_of(factor: Callable[[Tensor, torch.device], Tensor]) -> fx.GraphModule:
    """The graph of forward and backward of ``sin(x * factor)``."""

    def both(primals: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
        x, numbers = primals
        by = factor(numbers, x.device)
        y = x * by
        return [y.sin(), tangents[0] * y.cos() * by]

    with FakeTensorMode():
        x, gradient = (torch.empty(64, 64, device="cuda") for _ in range(2))
        return make_fx(torch.func.functionalize(both))([x, torch.empty(64)], [gradient])


@pytest.mark.parametrize("name", FACTORS)
def test_backwards_read_no_memory_of_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants_on_device, "_moved", lambda value, node: value)
    joint = joint_of(FACTORS[name])
    make_tables_on_device(joint)
    kept, saved = keep_constants_on_device(joint), save_copies(joint)
    assert (kept, saved) == ((1, 0) if "constant" in name else (0, 1))
    forward, backward = min_cut_rematerialization_partition(joint, None, num_fwd_outputs=1)
    tensors = [val(node) for node in backward.graph.nodes if isinstance(val(node), torch.Tensor)]
    assert {x.device.type for x in tensors} == {"cuda"}
    results = forward.graph.output_node().args[0]
    assert {val(x).device.type for x in results} == {"cuda"}
