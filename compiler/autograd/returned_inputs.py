"""Results that are inputs which the program has written to.

    y = mul(v, 2, out=u);  w.detach().mul_(2);  return x * 2, y      ->      return x * 2, None      and `u` for None

AOTAutograd returns such inputs too, but counts them among its own results as if it had added none before them: where
the graph also returns what becomes of another input, it gave `u` in place of ``x * 2``. The graph does so of inputs
that have gradients, or get other sizes or strides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.graph import nodes_in

_Program = Callable[..., Any]


@contextmanager
def without_returned_inputs(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any]
) -> Iterator[Callable[[_Program], _Program]]:
    """Inside, `graph_module` returns None for inputs that it has written to.

    Yields:
        What makes of the graph, compiled inside, one that gives the inputs themselves.
    """
    output = graph_module.graph.output_node()
    results = output.args[0]
    places = {node: k for k, node in enumerate(graph_module.graph.find_nodes(op="placeholder"))}
    found = dict(_inputs_among(results, places) if isinstance(results, (tuple, list)) else ())
    if not found or not (torch.is_grad_enabled() or any(map(_changes_sizes, graph_module.graph.nodes))):
        yield lambda compiled: compiled
        return
    split = any(map(compat.is_fake_of_dynamo, example_inputs))
    nothing = _nothing(graph_module.graph, next(iter(found.values()))) if split else None
    output.args = (tuple(nothing if k in found else result for k, result in enumerate(results)),)
    graph_module.recompile()
    try:
        yield lambda compiled: WithInputs(compiled, tuple(found.items()))
    finally:
        output.args = (results,)
        if nothing is not None:
            graph_module.graph.erase_node(nothing)
        graph_module.recompile()


def _nothing(graph: fx.Graph, place: int) -> fx.Node:
    """A tensor without elements, like that input: AOTAutograd takes no None where Dynamo splits graphs for DDP."""
    given = graph.find_nodes(op="placeholder")[place]
    with graph.inserting_before(graph.output_node()):
        return graph.call_function(torch.ops.aten.new_empty.default, (given, [0]))


def _changes_sizes(node: fx.Node) -> bool:
    """Whether a call gives a tensor other sizes or strides in place: `t_`, `unsqueeze_`."""
    named = getattr(torch.ops.aten, str(node.target), None) if node.op == "call_method" else None
    target = node.target if named is None else getattr(named, named.overloads()[0])
    return torch.Tag.inplace_view in getattr(target, "tags", ())


def _inputs_among(results: Any, places: dict[fx.Node, int]) -> Iterator[tuple[int, int]]:
    """Positions of such results, and of the inputs."""
    for k, result in enumerate(results):
        if isinstance(result, fx.Node) and result.op != "placeholder" and (node := _itself(result)) in places:
            yield k, places[node]


@dataclass(frozen=True)
class WithInputs:
    """A graph that gives inputs beside what it computes.

    Args:
        compiled: what gives None in their places.
        places: positions of results, and of the inputs that they are.
    """

    compiled: _Program
    places: tuple[tuple[int, int], ...]

    def __call__(self, *inputs: Any) -> Any:
        """The results, with these inputs in their places."""
        results = list(self.compiled(*inputs))
        for k, place in self.places:
            results[k] = inputs[place]
        return results


def _itself(node: fx.Node) -> fx.Node:
    """The tensor that a call has written to and gives."""
    while (written := _given(node)) is not None:
        node = written
    return node


def _given(node: fx.Node) -> fx.Node | None:
    """The argument that a call gives again; None if it gives something new."""
    if node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__"):
        return next(nodes_in(node.args[0]), None)
    if node.op != "call_function":
        return None
    call, part = (node.args[0], node.args[1]) if node.target is operator.getitem else (node, 0)
    if not isinstance(call, fx.Node) or not isinstance(part, int):
        return None
    return _of_operator(call, part) if isinstance(call.target, compat.OpOverload) else _of_function(node, call, part)


def _of_operator(call: fx.Node, part: int) -> fx.Node | None:
    schema = compat.schema(call.target)
    alias = schema.returns[part].alias_info if part < len(schema.returns) else None
    if alias is None or not alias.is_write:
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set == alias.before_set:
            given = call.args[position] if position < len(call.args) else call.kwargs.get(argument.name)
            return given if isinstance(given, fx.Node) else None
    return None


def _of_function(node: fx.Node, call: fx.Node, part: int) -> fx.Node | None:
    """The same of one of torch's functions, in a graph that was not captured."""
    given = call.kwargs.get("out")
    if isinstance(given, (tuple, list)):
        given = given[part] if node is not call and part < len(given) else None
    return given if isinstance(given, fx.Node) and isinstance(node.meta.get("example_value"), torch.Tensor) else None
