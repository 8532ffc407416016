"""A graph as rules see it: its own simplifications made, and its mirror in normal form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from .functional import functionalize_temporaries, remove_inactive_dropout, write_to_whole_tensors
from .graph import op_name, val
from .mirror import Mirror
from .purity import is_pure
from .reason import site_of
from .respell import Normalizer, Respelling
from .unread import free_what_is_not_read
from .walk import recompiles


@recompiles
def simplified(graph_module: fx.GraphModule) -> int:
    """Make the simplifications that keep every bit of a program; returns how many."""
    graph = graph_module.graph
    changed = write_to_whole_tensors(graph) + functionalize_temporaries(graph)
    return changed + remove_inactive_dropout(graph) + free_what_is_not_read(graph)


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


def as_text(graph: fx.Graph) -> str:
    """A graph as rules see it, an operator a line, with its dtype, sizes and the user's source line.

    %softmax = softmax(%mul, -1)        float32[2, 5, 5]        # model.py:12
    """
    lines = []
    for node in graph.nodes:
        if node.op == "output":
            lines.append(f"return {_shown(node.args[0])}")
            continue
        given = [*map(_shown, node.args), *(f"{key}={_shown(value)}" for key, value in node.kwargs.items())]
        call = f"{op_name(node).removeprefix('aten.')}({', '.join(given)})" if node.op == "call_function" else node.op
        site = site_of(node) if node.op == "call_function" else None
        place = f"# {site.file.rpartition('/')[2]}:{site.line}" if site is not None else ""
        lines.append(f"{f'%{node.name} = {call}':<72} {_meta(val(node)):<24} {place}".rstrip())
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, fx.Node):
        return f"%{value.name}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value)


def _meta(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    return str(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else ""
