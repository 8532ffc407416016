"""A program as a graph of ATen calls with the values of its inputs: what a repro is cut from.

model, 3 graphs of Dynamo's   ->   the calls of one of them, parameters and constants among its inputs
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.compat import capture_function
from ..bisect import Subject
from ..profile.running import of_its_own
from .values import SeededTensor


class NotWritableError(ValueError):
    """A program that can't be written as calls of ATen; the message says what is in the way."""


@dataclass(frozen=True)
class ReproProgram:
    """A graph of calls.

    Args:
        graph: placeholders are tensors; the output is a tuple of tensors.
        values: of the placeholders, by name, and of the values in between where they are known.
    """

    graph: fx.Graph
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The values of the placeholders, in order."""
        values = [self.values[node.name] for node in self.graph.find_nodes(op="placeholder")]
        return [value.make() if isinstance(value, SeededTensor) else value for value in values]

    @property
    def calls(self) -> list[fx.Node]:
        """The nodes that compute something."""
        return [node for node in self.graph.nodes if node.op == "call_function"]

    @property
    def outputs(self) -> list[fx.Node]:
        """The nodes that are given out."""
        return list(self.graph.output_node().args[0])

    def subject(self, train: bool, tolerance: float | None) -> Subject:
        """The program as what a search runs."""
        module = fx.GraphModule(torch.nn.Module(), self.graph)
        return Subject(module, self.inputs, train=train, tolerance=tolerance)


def collect(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], train: bool
) -> list[ReproProgram]:
    """The graphs that Dynamo makes of one call, as programs.

    Raises:
        NotWritableError: one of them has other things in it than calls of ATen.
    """
    recorded: list[tuple[fx.GraphModule, list[Any]]] = []

    def record(gm: fx.GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            recorded.append((gm, [own(x) for x in given]))
            return gm(*given)

        return run

    torch.compiler.reset()
    with torch.set_grad_enabled(train):
        torch.compile(of_its_own(function), backend=record)(*args, **kwargs)
        return [program_of(gm, inputs) for gm, inputs in recorded]


def program_of(gm: fx.GraphModule, inputs: Sequence[Any]) -> ReproProgram:
    """The ATen calls of a graph of Dynamo's on these inputs."""

    def run(*given: Any) -> Any:
        found = fx.Interpreter(gm).run(*given)  # which hands on the lines of the source
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)

    traced, places = capture_function(run, inputs, dynamic=False)
    given = [inputs[place] for place in places]
    graph, values = fx.Graph(), {}
    copies: dict[fx.Node, fx.Node] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            copies[node] = graph.placeholder(node.name)
            values[copies[node].name] = given.pop(0)
        elif node.op == "get_attr":
            copies[node] = _constant(graph, node, compat.attribute(traced, str(node.target)), values)
        elif node.op == "output":
            kept = [copies[n] for n in node.args[0] if isinstance(n, fx.Node)]
            graph.output(tuple(kept))
        elif node.op == "call_function":
            copies[node] = graph.node_copy(node, copies.__getitem__)
        else:
            raise NotWritableError(f"the graph has a {node.op} of {node.target}, which is no call of ATen")
    _inputs_first(graph)
    program = ReproProgram(graph, values)
    return ReproProgram(graph, {**values, **evaluated(program)})


def _constant(graph: fx.Graph, node: fx.Node, value: Any, values: dict[str, Any]) -> fx.Node:
    if not isinstance(value, torch.Tensor):
        raise NotWritableError(f"the graph has {node.target}, a {type(value).__name__}: bodies of control flow, say")
    made = graph.placeholder(node.name)
    values[made.name] = own(value)
    return made


def _inputs_first(graph: fx.Graph) -> None:
    placeholders = graph.find_nodes(op="placeholder")
    for node in reversed(placeholders):
        first = next(iter(graph.nodes))
        if node is not first:
            first.prepend(node)


def evaluated(program: ReproProgram) -> dict[str, Any]:
    """The value of every tensor in between, by name."""
    found: dict[str, Any] = {}

    class Keeping(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if n.op == "call_function" and isinstance(value, torch.Tensor):
                found[n.name] = own(value)
            return value

    torch.manual_seed(0)
    Keeping(fx.GraphModule(torch.nn.Module(), program.graph)).run(*[own(x) for x in program.inputs])
    return found


def own(value: Any) -> Any:
    """A copy of a tensor, a leaf that wants a gradient where the tensor has one."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def cut(
    program: ReproProgram, outputs: Sequence[str], given: Collection[str] = (), same: Mapping[str, str] | None = None
) -> ReproProgram:
    """The part of a program that some values take.

    Args:
        program: what to cut.
        outputs: names of the nodes to give out.
        given: names of nodes that become inputs, with the values that they had.
        same: names of nodes that another one stands for.
    """
    by_name = {node.name: node for node in program.graph.nodes}
    same = same or {}
    needed: set[fx.Node] = set()
    waiting = [by_name[same.get(name, name)] for name in outputs]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            if node.name not in given:
                waiting += [by_name[same.get(n.name, n.name)] for n in node.all_input_nodes]
    graph = fx.Graph()
    copies: dict[str, fx.Node] = {}
    inputs = [n for n in program.graph.nodes if n in needed and (n.op == "placeholder" or n.name in given)]
    for node in inputs:
        copies[node.name] = graph.placeholder(node.name)
        copies[node.name].meta = dict(node.meta)
    for node in program.calls:
        if node in needed and node.name not in copies:
            copies[node.name] = graph.node_copy(node, lambda n: copies[same.get(n.name, n.name)])
    graph.output(tuple(copies[same.get(name, name)] for name in outputs))
    renamed = {copy.name: name for name, copy in copies.items()}
    values = {new: program.values[old] for new, old in renamed.items() if old in program.values}
    return ReproProgram(graph, values)
