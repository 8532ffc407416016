"""Splits off the part of a graph that runs on the CPU, so that a CUDA graph can capture the rest.

    (x: cuda, n: cpu)                                 host      (n)     ->  m = n + 1;  c = copy of sqrt(m) on the GPU
    m = n + 1;  y = x / copy of sqrt(m)      ->       device    (x, c)  ->  y = x / c
    return y, m                                       together  (x, n)  ->  y of the device's, m of the host's

The host's part runs at every call; random numbers and writes to inputs on the CPU keep their order. Symbolic sizes, and
what is computed of them, belong to both parts, but a number on which nothing of the device's depends is the host's
alone: a capture would hold for one value of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.graph import op_name, val
from ....rewrites.purity import is_pure
from ....rewrites.symbolic import SYMBOLIC, symbols_of
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
    sides = _sides(nodes)
    if sides is None or not sides.host or not any(n.op == "call_function" and n in sides.device for n in nodes):
        return None
    on_host = sides.host
    if not any(node.op == "call_function" for node in on_host):
        return None
    given = [n for n in nodes if n in on_host and any(u.op == "call_function" and u not in on_host for u in n.users)]
    if any(not _is_on_gpu(node) for node in given):  # a kernel on the device would read memory of the CPU
        return None
    results = graph_module.graph.output_node().args[0]
    if not isinstance(results, (list, tuple)):
        return None
    from_host = tuple(isinstance(x, fx.Node) and (x in on_host or x in sides.numbers) for x in results)
    own = [x for x, here in zip(results, from_host, strict=True) if here]
    rest = [x for x, here in zip(results, from_host, strict=True) if not here]
    read, sizes = sides.computed_from([*on_host, *own]), sides.computed_from(_read_on_device(nodes, sides))
    host_nodes = [n for n in nodes if n in on_host or n in read]
    device_nodes = [n for n in nodes if n in sides.device or n in sizes]
    inputs = [node for node in nodes if node.op == "placeholder"]
    host_inputs = tuple(k for k, node in enumerate(inputs) if node in on_host or node in read)
    device_inputs = tuple(k for k, node in enumerate(inputs) if node in sides.device or node in sizes)
    host = _part(graph_module, host_nodes, [], [*given, *own])
    device = _part(graph_module, device_nodes, given, rest)
    return Split(host, device, host_inputs, device_inputs, len(given), from_host)


@dataclass
class _Sides:
    """The side on which each node of a graph is computed: `numbers`, of symbolic sizes alone, on both."""

    host: set[fx.Node] = field(default_factory=set)
    device: set[fx.Node] = field(default_factory=set)
    numbers: set[fx.Node] = field(default_factory=set)

    def computed_from(self, readers: Iterable[fx.Node]) -> set[fx.Node]:
        """The numbers among some nodes, and those from which they are computed."""
        found: set[fx.Node] = set()
        todo = [x for node in readers for x in (node, *node.all_input_nodes)]
        while todo:
            node = todo.pop()
            if node in self.numbers and node not in found:
                found.add(node)
                todo.extend(node.all_input_nodes)
        return found


def _read_on_device(nodes: Sequence[fx.Node], sides: _Sides) -> list[fx.Node]:
    """The inputs of the device's part: its nodes, and inputs that are the sizes on which its tensors depend."""
    symbols = {x for node in sides.device for n in _sizes(node) for x in symbols_of(n)}
    return [n for n in nodes if n in sides.device or (n.op == "placeholder" and symbols & symbols_of(val(n)))]


def _sizes(node: fx.Node) -> list[Any]:
    """What the metadata of a node's tensors is written in; a number that it gives itself."""
    return [val(node), *(n for x in _tensors(node) or () for n in (*x.shape, *x.stride(), x.storage_offset()))]


def _sides(nodes: Sequence[fx.Node]) -> _Sides | None:
    """The sides of all nodes: the host has those on the CPU, and copies from there; None if it reads from the GPU."""
    sides = _Sides()
    for node in nodes:
        if node.op == "output":
            continue
        side = _side(node, sides)
        if side is None:
            return None
        side.add(node)
    return sides


def _side(node: fx.Node, sides: _Sides) -> set[fx.Node] | None:
    """The side of a node, given those of all nodes before; None if each side needs the other."""
    tensors = _tensors(node)
    inputs = [x for x in node.all_input_nodes if x not in sides.numbers]
    if tensors is None:
        return _side_of_number(node, inputs, sides)
    on_cpu = [x in sides.host and not _is_on_gpu(x) for x in inputs]
    if {x.device.type for x in tensors} == {"cpu"}:
        return sides.host if all(on_cpu) else None
    if not any(on_cpu):
        return sides.device
    return sides.host if op_name(node) == "aten._to_copy" else None


def _side_of_number(node: fx.Node, inputs: Sequence[fx.Node], sides: _Sides) -> set[fx.Node] | None:
    """The same, of a node that gives no tensor, and reads `inputs` beside numbers of both sides."""
    if op_name(node) == "getitem" and not sides.host.intersection(inputs):
        return sides.device  # a number beside the tensors that a call on the GPU gives
    if not isinstance(val(node), SYMBOLIC) or not (node.op == "placeholder" or is_pure(node)):
        return None
    if not inputs:
        return sides.numbers
    return next((side for side in (sides.host, sides.device) if side.issuperset(inputs)), None)


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
