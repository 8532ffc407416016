"""Reasons against capturing a graph as a CUDA graph: a capture only replays launches with fixed addresses."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.graph import KNOWN_NAMESPACES, arguments, op_name, val
from ....rewrites.purity import written
from ....rewrites.reason import Reason
from ...options.fields import RngPolicy

_PURE = frozenset({"_operator", "math", "torch", "torch.fx.experimental.sym_node", "regraft"})
_SYNCING = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


def skip_reason(graph: fx.Graph, static: frozenset[int], rng: RngPolicy) -> Reason | None:
    """Why a functional graph without kernels may not be captured; None if it may.

    Args:
        graph: a graph after autograd, with metadata.
        static: positions of inputs whose addresses do not change.
        rng: the policy for random numbers.
    """
    nodes = list(graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    moving = {node for position, node in enumerate(inputs) if position not in static}
    checks = (
        *_devices(nodes),
        *(reason for node in nodes if node.op == "call_function" for reason in _call(node, moving, rng)),
    )
    return next(iter(checks), None)


def _devices(nodes: list[fx.Node]) -> Iterator[Reason]:
    found: dict[torch.device, fx.Node] = {}
    for node in nodes:
        value = val(node)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                found.setdefault(tensor.device, node)
    for device, node in found.items():
        if device.type != "cuda":
            message = f"{node.name} is on {device}: a replay would see what it was when it was captured"
            yield Reason("not-on-cuda", message, (node,))
    if len(found) > 1:
        yield Reason(
            "several-devices",
            f"the tensors are on several devices: {', '.join(sorted(map(str, found)))}",
            tuple(found.values()),
        )
    if not found:
        yield Reason("no-tensors", "the graph has no tensors: there is nothing to capture")


def _call(node: fx.Node, moving: set[fx.Node], rng: RngPolicy) -> Iterator[Reason]:
    if not isinstance(node.target, compat.OpOverload):
        if getattr(node.target, "__module__", "") not in _PURE:
            yield Reason("opaque-call", f"{node.name} calls a function of unknown effects", (node,))
        return
    changed = [target for target in written(node) if target in moving]
    if changed:
        message = f"{changed[0].name} is written to, and a replay would write to a copy of it"
        yield Reason("input-mutated", message, (node, *changed))
    yield from _operator(node, node.target, rng)


def _operator(node: fx.Node, target: compat.OpOverload, rng: RngPolicy) -> Iterator[Reason]:
    if target.namespace not in KNOWN_NAMESPACES:
        yield Reason(
            "custom-operator", f"custom operator {target} may have effects that a replay does not repeat", (node,)
        )
    if any(tag in target.tags for tag in _SYNCING) and not _is_plain_indexing(node):
        yield Reason("waits-for-data", f"{op_name(node)} needs to see data before the GPU has computed it", (node,))
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return
    if arguments(node).get("generator") is not None:
        yield Reason("generator", f"{op_name(node)} draws from a generator that the program passes in", (node,))
    if rng == "eager":
        yield Reason(
            "eager-random",
            f"{op_name(node)} draws eager's random numbers (rng='eager'), which a replay cannot draw",
            (node,),
        )


def _is_plain_indexing(node: fx.Node) -> bool:
    """Whether an index has no masks: indices by number give a fixed number of elements, masks do not."""
    if node.target is not torch.ops.aten.index.Tensor:
        return False
    return all(val(index).dtype not in (torch.bool, torch.uint8) for index in node.all_input_nodes[1:])
