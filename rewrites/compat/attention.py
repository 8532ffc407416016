"""The kernels that `scaled_dot_product_attention` may choose from, and calls of attention that are not public."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

# What Dynamo makes of `sdpa_kernel`: the kernels by name, and the call that allows these and no others.
BACKEND_NAMED, ALLOW_BACKENDS = torch.nn.attention._backend_from_string, torch.nn.attention._sdpa_kernel
# What `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call in inference.
NATIVE_ATTENTION, NATIVE_ENCODER_LAYER = torch._native_multi_head_attention, torch._transformer_encoder_layer_fwd
BACKENDS = frozenset({"CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"})
_SWITCHES = [getattr(torch._C, f"_get_{name}_sdp_enabled") for name in torch.nn.attention._backend_names]


def allowed_backends() -> frozenset[str]:
    """The kernels that may be chosen now, by the names of `SDPBackend`."""
    return frozenset(backends_in_order())


def backends_in_order() -> list[str]:
    """The same, in the order in which they are tried."""
    return [backend.name for backend in torch.nn.attention._cur_sdpa_kernel_backends(with_priority=True)]


@contextlib.contextmanager
def same_backends_after() -> Iterator[None]:
    """Set what may be chosen back on exit, and its order."""
    before, order = torch.nn.attention._cur_sdpa_kernel_backends(), torch._C._get_sdp_priority_order()
    try:
        yield
    finally:
        ALLOW_BACKENDS(before)
        torch._C._set_sdp_priority_order(order)


def guard_backends(gm: fx.GraphModule) -> None:
    """Have Dynamo compile a program with attentions anew where other kernels may be chosen; it does not by itself."""
    context = torch._guards.TracingContext.try_get()
    if context is None or not any(_may_be_attention(node) for node in gm.graph.nodes):
        return
    from torch._dynamo.source import GlobalStateSource

    context.guards_context.dynamo_guards.add(torch._guards.Guard(GlobalStateSource(), _backends_guard))


def _may_be_attention(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return "softmax" in name or "attention" in name


def _backends_guard(builder: Any, guard: Any) -> None:  # noqa: ARG001
    known, order = [switch() for switch in _SWITCHES], torch._C._get_sdp_priority_order()

    def holds(_: Any) -> bool:  # asked at each call: a tenth of the time that their names take
        return [switch() for switch in _SWITCHES] == known and torch._C._get_sdp_priority_order() == order

    parts, root = [f"attention may be computed by {', '.join(backends_in_order())}"], builder.guard_manager.root
    try:
        root.add_lambda_guard(holds, parts, None)
    except TypeError:  # before there were user stacks
        root.add_lambda_guard(holds, parts)
