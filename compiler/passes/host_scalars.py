"""Copies numbers that are computed on the CPU and read by calls on a GPU to that GPU, all in one copy.

    c = 1 - 0.9 ** step         (CPU)                  c = 1 - 0.9 ** step;  d = sqrt(c)
    y = x / c                   (GPU)           ->     on_gpu = to_copy(stack([c, d]), cuda)
    d = sqrt(c)                 (CPU)                  y = x / on_gpu[0]
    z = y + d                   (GPU)                  z = y + on_gpu[1]

PyTorch allows a tensor without dims in calls on another device. Generated kernels cannot read CPU memory, so that such
a call would stay a call of ATen, and the graph could not be captured. Optimizers keep step counts and learning rates
so.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import nodes_in, op_name, val
from ...rewrites.purity import is_pure
from ...rewrites.walk import recompiles

aten = torch.ops.aten

Kind = tuple[torch.dtype, torch.device]

# Calls that are not elementwise, and yet take a tensor without dims from another device.
_TAKING_NUMBERS = frozenset({"aten.masked_fill", "aten.index_fill", "aten.index_put", "aten.fill"})


def takes_numbers(node: fx.Node) -> bool:
    """Whether a call computes with numbers, kept as tensors without dims on the CPU, beside tensors on a GPU."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or op_name(node) in _TAKING_NUMBERS


@recompiles
def copy_host_scalars(graph_module: fx.GraphModule) -> int:
    """Let calls on a GPU read copies of numbers that are on the CPU, in place; returns the number of numbers.

    Args:
        graph_module: a functional graph (writes to inputs at its end apart).
    """
    graph = graph_module.graph
    order = {node: k for k, node in enumerate(graph.nodes)}
    readers: dict[Kind, dict[fx.Node, list[fx.Node]]] = {}
    for node, scalar, device in _reads(graph):
        readers.setdefault((val(scalar).dtype, device), {}).setdefault(scalar, []).append(node)
    return sum(_bring(graph, order, device, found) for (_, device), found in readers.items())


def _reads(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node, torch.device]]:
    """Calls on a GPU, the numbers on the CPU that each reads, and the GPU."""
    for node in graph.nodes:
        device = _device(node)
        if device is not None:
            for x in dict.fromkeys(node.all_input_nodes):
                value = val(x)
                if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0:
                    yield node, x, device


def _device(node: fx.Node) -> torch.device | None:
    """The GPU on which a call takes numbers; None for other calls."""
    if not takes_numbers(node) and not op_name(node).startswith("aten._foreach_"):
        return None
    value = val(node)
    found = {x.device for x in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(x, torch.Tensor)}
    return next(iter(found)) if len(found) == 1 and all(x.type == "cuda" for x in found) else None


def _bring(
    graph: fx.Graph, order: dict[fx.Node, int], device: torch.device, readers: dict[fx.Node, list[fx.Node]]
) -> int:
    """Copy numbers of one dtype to one GPU, before the first call that reads one; returns the number of numbers."""
    first = min((node for nodes in readers.values() for node in nodes), key=order.__getitem__)
    later: set[fx.Node] = set()
    chosen = []
    for x in readers:
        cone = _after(x, first, order)
        if cone is not None:
            chosen.append(x)
            later |= cone
    if not chosen:
        return 0
    for node in sorted(later, key=order.__getitem__):
        first.prepend(node)
    editor = Editor(graph)
    with editor.at(first):
        copies = _copies(editor, chosen, device)
    for scalar, copy in zip(chosen, copies, strict=True):
        for node in readers[scalar]:
            node.replace_input_with(scalar, copy)
    return len(chosen)


def _after(scalar: fx.Node, first: fx.Node, order: dict[fx.Node, int]) -> set[fx.Node] | None:
    """The nodes that compute a number and stand after a call; None if they cannot be moved before the call."""
    found: set[fx.Node] = set()
    todo = [scalar]
    while todo:
        node = todo.pop()
        if node in found or order[node] < order[first]:
            continue
        if node is first or node.op != "call_function" or not is_pure(node) or _on_gpu(node):
            return None
        found.add(node)
        todo.extend(nodes_in([node.args, node.kwargs]))
    return found


def _on_gpu(node: fx.Node) -> bool:
    return any(isinstance(val(x), torch.Tensor) and val(x).device.type != "cpu" for x in (node, *node.all_input_nodes))


def _copies(editor: Editor, scalars: list[fx.Node], device: torch.device) -> list[fx.Node]:
    # Small copies from memory that is not pinned are staged before the call returns.
    def there(x: fx.Node) -> fx.Node:
        return editor.call(aten._to_copy.default, x, device=device, non_blocking=True)

    if len(scalars) == 1:
        return [there(scalars[0])]
    together = there(editor.call(aten.stack.default, scalars))
    return [editor.call(aten.select.int, together, 0, k) for k in range(len(scalars))]
