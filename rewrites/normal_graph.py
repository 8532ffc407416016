"""A graph as rules see it: its own simplifications made, and its mirror in normal form."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from .functional import functionalize_temporaries, remove_inactive_dropout
from .graph import is_pure
from .mirror import Mirror
from .respell import Normalizer, Respelling


def simplified(graph_module: fx.GraphModule) -> int:
    """Make the simplifications that keep every bit of a program; returns how many."""
    made = functionalize_temporaries(graph_module.graph) + remove_inactive_dropout(graph_module.graph)
    if made:
        graph_module.recompile()
    return made


def normalize(normalizer: Normalizer) -> None:
    """Bring a mirror into normal form, and drop what nobody reads there."""
    normalizer.run()
    graph = normalizer.mirror.graph
    for node in reversed(list(graph.nodes)):
        if not node.users and is_pure(node):
            graph.erase_node(node)


def in_normal_form(graph_module: fx.GraphModule, form: Iterable[Respelling]) -> Mirror:
    """The mirror in normal form of a graph, which gets its simplifications."""
    simplified(graph_module)
    normalizer = Normalizer(Mirror(graph_module), form)
    normalize(normalizer)
    return normalizer.mirror
