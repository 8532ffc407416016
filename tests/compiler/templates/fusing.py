"""Functions through the attention pass: trace, fuse, run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.templates import fuse_attention
from regraft.rewrites.profit import Always, Oracle
from regraft.rewrites.record import GraphRecord


@dataclass
class Fused:
    """What came of a function: how many attentions were fused, the record, and the graph."""

    count: int
    record: GraphRecord
    graph_module: torch.fx.GraphModule

    @property
    def codes(self) -> list[str]:
        """Codes of the near misses."""
        return [miss.code for miss in self.record.near_misses]

    @property
    def operators(self) -> list[str]:
        """Names of the calls that are left."""
        calls = [node for node in self.graph_module.graph.nodes if node.op == "call_function"]
        return [getattr(node.target, "__name__", str(node.target)) for node in calls]


def fuse(function: Callable[..., Any], inputs: Sequence[Any], oracle: Oracle | None = None) -> Fused:
    """Trace `function` without gradients, as a graph after autograd looks, and fuse its attentions."""
    with torch.no_grad():
        traced = make_fx(function, tracing_mode="fake")(*inputs)
    traced.graph.eliminate_dead_code()
    record = GraphRecord("test")
    count = fuse_attention(traced, oracle or Always(), record)
    traced.recompile()
    return Fused(count, record, traced)


def assert_as_good_as_eager(
    function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], slack: float = 4.0
) -> None:
    """The fused function is fused indeed, and as near to float64 as eager is; NaN and infinities are eager's."""
    fused = fuse(function, inputs)
    assert fused.count == 1, fused.record.near_misses
    ours, eager = fused.graph_module(*inputs), function(*inputs)
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert ours.shape == eager.shape
    assert ours.stride() == eager.stride()
    assert ours.dtype == eager.dtype
    finite = eager.isfinite()
    assert torch.equal(ours.isnan(), eager.isnan())
    assert torch.equal(ours[~finite & ~eager.isnan()], eager[~finite & ~eager.isnan()])
    if finite.any():
        # Where eager's library happens to round no sum of a small result, what float32 holds of one is allowed.
        scale = max(1.0, float(exact[finite].abs().max()))
        allowed = slack * float((eager.double() - exact)[finite].abs().max()) + 1e-6 * scale
        assert float((ours.double() - exact)[finite].abs().max()) <= allowed
