"""Splits off the part of a graph that runs on the CPU, so that a CUDA graph can capture the rest.

    (x: cuda, n: cpu)                                 host      (n)     ->  m = n + 1;  c = copy of sqrt(m) on the GPU
    m = n + 1;  y = x / copy of sqrt(m)      ->       device    (x, c)  ->  y = x / c
    return y, m                                       together  (x, n)  ->  y of the device's, m of the host's

The host's part runs at every call; random numbers and writes to inputs on the CPU keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.graph import op_name, val
from ..calls import Boxed


@dataclass(frozen=True)
class Split:
    """The two parts of a graph.

    Args:
        host: the part on the CPU; it returns the values that the device reads, then results of the graph.
        device: the rest; its inputs are inputs of the graph, then values from the host.
        host_inputs: positions of the host's inputs among the graph's; `device_inputs`: those of the device.
        given: the number of results of the host that the device reads.
        from_host: for each result of the graph, whether the host computes it.
    """

    host: fx.GraphModule
    device: fx.GraphModule
    host_inputs: tuple[int, ...]
    device_inputs: tuple[int, ...]
    given: int
    from_host: tuple[bool, ...]

    def static(self, static: frozenset[int]) -> frozenset[int]:
        """Positions of the device's inputs whose addresses do not change."""
        return frozenset(k for k, at in enumerate(self.device_inputs) if at in static)

    def returned(self, returned: int | None) -> int | None:
        """The number of the device's results that the program receives, given that of the whole graph."""
        return None if returned is None else self.from_host[:returned].count(False)

    def joined(self, host: Boxed, device: Boxed) -> Boxed:
        """Both compiled parts as one call, in boxed convention."""

        def run(args: list[Any]) -> tuple[Any, ...]:
            before, after = [args[k] for k in self.host_inputs], [args[k] for k in self.device_inputs]
            args.clear()
            made = host(before)
            after.extend(made[: self.given])
            own = iter(made[self.given :])
            results = iter(device(after))
            return tuple(next(own if here else results) for here in self.from_host)

        compat.mark_boxed(run)
        return run


def split_host(graph_module: fx.GraphModule) -> Split | None:
    """The parts of a graph with tensors on the CPU and a GPU; None for other graphs, or if each needs the other.

    Args:
        graph_module: functional except for writes to inputs, with metadata; it is not changed.
    """
    nodes = list(graph_module.graph.nodes)
    on_host = _sides(nodes)
    calls = [node for node in nodes if node.op == "call_function"]
    if on_host is None or len({node in on_host for node in calls}) < 2:
        return None
    given = [n for n in nodes if n in on_host and any(u.op == "call_function" and u not in on_host for u in n.users)]
    if any(not _is_on_gpu(node) for node in given):  # a kernel on the device would read memory of the CPU
        return None
    inputs = [node for node in nodes if node.op == "placeholder"]
    results = graph_module.graph.output_node().args[0]
    if not isinstance(results, (list, tuple)):
        return None
    from_host = tuple(isinstance(x, fx.Node) and x in on_host for x in results)
    own = [x for x, here in zip(results, from_host, strict=True) if here]
    rest = [x for x, here in zip(results, from_host, strict=True) if not here]
    host_inputs = [k for k, node in enumerate(inputs) if node in on_host]
    device_inputs = [k for k, node in enumerate(inputs) if node not in on_host]
    host = _part(graph_module, [n for n in nodes if n in on_host], [], [*given, *own])
    device = _part(graph_module, [n for n in nodes if n not in on_host and n.op != "output"], given, rest)
    return Split(host, device, tuple(host_inputs), tuple(device_inputs), len(given), from_host)


def _sides(nodes: Sequence[fx.Node]) -> set[fx.Node] | None:
    """The nodes on the host: those on the CPU, and copies from there; None if they read tensors on the GPU."""
    found: set[fx.Node] = set()
    for node in nodes:
        if node.op == "output":
            continue
        tensors = _tensors(node)
        if tensors is None and op_name(node) == "getitem" and not found.intersection(node.all_input_nodes):
            continue  # a number beside the tensors that a call on the GPU gives
        if tensors is None:
            return None
        on_cpu = [x in found and not _is_on_gpu(x) for x in node.all_input_nodes]
        if {x.device.type for x in tensors} == {"cpu"}:
            if not all(on_cpu):
                return None
            found.add(node)
        elif any(on_cpu):
            if op_name(node) != "aten._to_copy":
                return None
            found.add(node)
    return found


def _tensors(node: fx.Node) -> list[torch.Tensor] | None:
    """The tensors that a node gives, perhaps with numbers beside them; None if it gives no tensor."""
    value = val(node)
    values = value if isinstance(value, (list, tuple)) else [value]
    return [x for x in values if isinstance(x, torch.Tensor)] or None


def _is_on_gpu(node: fx.Node) -> bool:
    return all(x.device.type == "cuda" for x in _tensors(node) or ())


def _part(
    module: fx.GraphModule, nodes: Sequence[fx.Node], given: Sequence[fx.Node], results: Sequence[Any]
) -> fx.GraphModule:
    """A graph of some nodes of another graph; `given` become inputs after its own."""
    graph = fx.Graph()
    inputs = [node for node in nodes if node.op == "placeholder"]
    made = {node: graph.node_copy(node) for node in inputs}
    for node in given:
        made[node] = graph.placeholder(node.name)
        made[node].meta = dict(node.meta)
    for node in nodes:
        if node.op != "placeholder":
            made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(fx.node.map_arg(tuple(results), made.__getitem__))
    part = fx.GraphModule(module, graph)
    part.meta = dict(module.meta)
    return part
