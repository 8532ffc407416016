"""Option ``rng="eager"``: compiled programs draw what eager draws, in eager's order, dtypes, shapes and strides.

On GPUs eager's numbers depend on all of these: a kernel draws as many numbers at a time as fit into 16 bytes.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.thorough import takes_turns
from torch._functorch import partitioners
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ..support import simulated_gpu
from ..support.simulated_gpu import SimulatedGpu


class Draws(TorchDispatchMode):
    """Notes which tensors are drawn, or dropped."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def __torch_dispatch__(self, target, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in target.tags:
            self.drawn.append(layout(args[0]))
        return target(*args, **(kwargs or {}))


def noted(monkeypatch):
    """What calls of ATen draw in the graphs that are compiled from now on: dispatch modes do not see inside."""
    compile_graph, drawn = simulated_gpu._Compilation._compile_graph, []

    def seen(self, module, inputs, kind):
        draws = (n for n in module.graph.nodes if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()))
        drawn.extend(layout(node.args[0].meta["val"]) for node in draws)
        return compile_graph(self, module, inputs, kind)

    monkeypatch.setattr(simulated_gpu._Compilation, "_compile_graph", seen)
    return drawn


def layout(x):
    return x.dtype, tuple(x.shape), x.stride()


def scores(q, k):
    return q @ k.transpose(-2, -1) / 8**0.5


def hidden(x):
    return x + torch.ones(x.shape[-2:], dtype=torch.bool).triu(1).to(x.dtype) * -1e4


ATTENTIONS = {
    "in float32": lambda q, k, v: F.dropout(scores(q, k).float().softmax(-1), 0.25).to(q.dtype) @ v,
    "by the softmax": lambda q, k, v: F.dropout(scores(q, k).softmax(-1, dtype=torch.float32), 0.25).to(q.dtype) @ v,
    "narrowed before": lambda q, k, v: F.dropout(scores(q, k).float().softmax(-1).to(q.dtype), 0.25) @ v,
    "plain": lambda q, k, v: F.dropout(scores(q, k).softmax(-1), 0.25) @ v,
    "hidden": lambda q, k, v: F.dropout(hidden(scores(q, k)).float().softmax(-1), 0.25).to(q.dtype) @ v,
}


def with_weights(q, k, v):
    """The weights are a result, too."""
    weights = F.dropout(scores(q, k).float().softmax(-1), 0.25)
    return weights.to(q.dtype) @ v, weights


def and_a_residual(q, k, v):
    """Other draws, before and after."""
    q = F.dropout(q, 0.1)
    out = ATTENTIONS["in float32"](q, k, v)
    return F.layer_norm(F.dropout(out.float(), 0.5).to(q.dtype) + q, q.shape[-1:])


PROGRAMS = {**ATTENTIONS, "with weights": with_weights, "and a residual": and_a_residual}


@takes_turns("trains", "dtype")
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_are_eagers(name, dtype, trains, monkeypatch, tmp_path):
    torch.compiler.reset()
    program = PROGRAMS[name]
    inputs = [torch.randn(2, 3, n, 8).to(dtype).requires_grad_(trains) for n in (5, 16, 16)]
    if name == "and a residual":
        inputs = [torch.randn(2, 3, 5, 8).to(dtype).requires_grad_(trains) for _ in range(3)]
    compiled = torch.compile(program, backend=SimulatedGpu(monkeypatch, tmp_path, rng="eager", profit="always"))
    ours = noted(monkeypatch)
    torch.manual_seed(3)
    wanted = program(*inputs)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(*inputs), wanted, rtol=2**-6, atol=2**-6)
    with Draws() as eager:
        program(*inputs)
    assert ours == eager.drawn and eager.drawn


def test_checkpoints_draw_from_torchs_generator(monkeypatch):
    """On GPUs torch gives checkpoints a generator of their own where this setting is on."""
    torch.compiler.reset()
    made, seen = partitioners.functionalize_rng_ops, []

    def noted(*args, **kwargs):
        seen.append(torch._functorch.config.graphsafe_rng_functionalization)
        return made(*args, **kwargs)

    monkeypatch.setattr(partitioners, "functionalize_rng_ops", noted)

    def program(x):
        return checkpoint(lambda y: F.dropout(y.sin(), 0.4), x, use_reentrant=False)

    x, found = torch.randn(4, 5, requires_grad=True), []
    for run in (torch.compile(program, backend="regraft", options={"rng": "eager", "strict": True}), program):
        torch.manual_seed(3)
        y = run(x)
        found.append((y, torch.rand(1), torch.autograd.grad(y.sum(), x)))
    torch.testing.assert_close(*found)
    assert seen == [False]
