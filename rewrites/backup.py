"""Copies of graphs, to put them back as they were."""

from __future__ import annotations

from torch import fx

from . import compat


class Backup:
    """A graph as it was when it was about to be changed; nothing is copied where that never comes."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self._graph_module = graph_module
        self._graph: fx.Graph | None = None

    def take(self) -> None:
        """The graph is about to be changed."""
        if self._graph is None:
            self._graph = copied(self._graph_module)

    def restore(self) -> None:
        """Undo all changes; what is put back may be changed again, and put back again."""
        if self._graph is not None:
            self._graph_module.graph = self._graph
            self._graph = copied(self._graph_module)


def copied(graph_module: fx.GraphModule) -> fx.Graph:
    """A copy of a module's graph, its metadata and its inputs' origins too."""
    graph = fx.Graph(graph_module)
    renamed: dict[fx.Node, fx.Node] = {}
    output = graph.graph_copy(graph_module.graph, renamed, return_output_node=True)
    if output is not None:
        value, old = output  # type: ignore[misc]
        graph.output(value).meta = dict(old.meta)
    compat.adopt_signature(graph, graph_module.graph)
    for old, new in renamed.items():
        compat.adopt_source(new, old)
    return graph
