"""Flattens results: AOTAutograd requires the output of a graph to be one flat tuple."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import fx

from ...rewrites import compat


def flat_outputs(gm: fx.GraphModule) -> tuple[fx.GraphModule, Callable[[Sequence[Any]], Any] | None]:
    """A graph module like `gm` whose output is a flat tuple, as Dynamo's always is.

    Returns:
        `gm` and None if its output is a flat tuple already. Otherwise a copy that shares its attributes, and a function
        from the flat results to the structure of the results of `gm`.
    """
    structure = gm.graph.output_node().args[0]
    if not compat.has_plain_signature(gm.graph) or _is_flat(structure):
        return gm, None
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    copied = graph.graph_copy(gm.graph, values)
    graph.output(tuple(compat.tree_leaves(copied)))
    flat = fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    flat.meta = dict(gm.meta)
    return flat, lambda results: _rebuilt(structure, iter(results))


def _is_flat(structure: Any) -> bool:
    return isinstance(structure, (tuple, list)) and not any(isinstance(s, (tuple, list, dict)) for s in structure)


def _rebuilt(structure: Any, results: Iterator[Any]) -> Any:
    if isinstance(structure, dict):
        return {key: _rebuilt(value, results) for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        items = [_rebuilt(value, results) for value in structure]
        return items if isinstance(structure, list) else tuple(items)
    return next(results)
