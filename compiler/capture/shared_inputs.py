"""Finds what AOTAutograd makes otherwise of tensors that overlap in memory that is written to.

    torch._foreach_mul_([x, x], 2)                          eager multiplies twice, AOTAutograd once
    x, y = t[0:4], t[2:6]      y.add_(1); return x.t()      AOTAutograd makes one tensor of such inputs, and then
                                                            applies the views of `x` to it in place of `x`
    x = t[2:6]            x.as_strided([2], [1], 0).add_(1) AOTAutograd takes `x` for all of its memory
    u = x.as_strided([5, 3], [2, 1])      u[0].mul_(2)      the last element of a row is the first of the next one
    x, y = t[4:8], t.view(float64)[2:4]                     AOTAutograd counts elements, of which one begins at 4, the
                                                            other at 2, and does not see that they overlap

Such programs run as they were written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx

from ...rewrites.compat.memory import storage_key
from ...rewrites.graph import arguments, val
from ...rewrites.purity import written
from ...rewrites.reach import meet, overlaps_itself, reach, reach_in_elements
from ...rewrites.reason import Reason
from ...rewrites.symbolic import hint


def view_of_shared_input(graph: fx.Graph) -> Reason | None:
    """The reason for the first such result of a captured graph; None if there is none."""
    inputs = [node for node in graph.find_nodes(op="placeholder") if _memory(node) is not None]
    keys = {_memory(node) for node in inputs}
    if len(keys) == len(inputs):
        return None
    touched = {_memory(target) for node in graph.nodes for target in written(node)}
    shared = {key for key in touched & keys if _overlap([node for node in inputs if _memory(node) == key])}
    results = graph.output_node().args[0]
    for node in results if shared and isinstance(results, (tuple, list)) else ():
        if isinstance(node, fx.Node) and _memory(node) in shared and _itself(node).op != "placeholder":
            message = (
                f"{node.name} is a view of an input whose memory another input shares, and the program writes to it; "
                "the program runs as it was written"
            )
            return Reason("view-of-shared-input", message, (node,))
    return None


def overlapping_targets(graph: fx.Graph) -> Reason | None:
    """The reason for the first call that writes to a list in which tensors overlap, or overlap others that it reads."""
    for node in graph.nodes:
        targets = written(node)
        if len(targets) > 1 and isinstance(node.args[0], (list, tuple)) and _meet(targets, node):
            message = f"{node.name} writes to tensors that overlap, one by one; the program runs as it was written"
            return Reason("overlapping-targets", message, (node,))
    return None


def view_by_place(graph: fx.Graph) -> Reason | None:
    """The reason for the first view by its place in memory of an input that is written to; no guard fixes the place."""
    inputs = {_memory(node) for node in graph.find_nodes(op="placeholder")} - {None}
    views = graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default)
    views = [node for node in views if _memory(node) in inputs and _is_by_place(node)]
    touched = {_memory(target) for node in graph.nodes for target in written(node)} if views else set()
    view = next((node for node in views if _memory(node) in touched), None)
    if view is None:
        return None
    message = f"{view.name} views memory of an input which is written to; the program runs as it was written"
    return Reason("view-by-place", message, (view,))


def written_overlapping_itself(graph: fx.Graph) -> Reason | None:
    """The reason for the first write to an input, or to a view by places, in which an element has several indices.

    Written through one of them, it is to be seen through the others. Expanded tensors are what AOTAutograd sees so.
    """
    for node in graph.nodes:
        for target in written(node):
            overlapping = next(filter(_overlaps_itself, _views_up_from(target)), None)
            if overlapping is not None:
                message = f"{node.name} writes to {overlapping.name}, in which elements share memory"
                return Reason("overlaps-itself", f"{message}; the program runs as it was written", (node, overlapping))
    return None


def _views_up_from(node: fx.Node) -> Iterator[fx.Node]:
    """A tensor, what it is a view of, and so on."""
    memory = _memory(node)
    while isinstance(node, fx.Node) and memory is not None and _memory(node) == memory:
        yield node
        if node.op != "call_function" or not node.args:
            return
        node = node.args[0]  # type: ignore[assignment]


def _overlaps_itself(node: fx.Node) -> bool:
    """Whether an input, or a view by places, has an element more than once; of symbolic sizes, as in the example."""
    if node.op != "placeholder" and node.target is not torch.ops.aten.as_strided.default:
        return False
    x = val(node)
    sizes, strides = ([hint(n) for n in part] for part in (x.shape, x.stride()))
    return None not in (*sizes, *strides) and overlaps_itself(sizes, strides)  # type: ignore[arg-type]


def inputs_of_other_dtypes(graph: fx.Graph) -> Reason | None:
    """The reason for the first memory that is written to, and in which inputs of several dtypes overlap."""
    own: dict[int | None, list[fx.Node]] = {}
    for node in graph.find_nodes(op="placeholder"):
        own.setdefault(_memory(node), []).append(node)
    mixed = {key: nodes for key, nodes in own.items() if key and len({val(node).dtype for node in nodes}) > 1}
    touched = {_memory(target) for node in graph.nodes for target in written(node)} if mixed else set()
    for key, nodes in mixed.items():
        values = [val(node) for node in nodes]
        if key in touched and (meet(map(reach, values)) or meet(map(reach_in_elements, values))):
            names = " and ".join(node.name for node in nodes[:2])
            message = f"{names} are views of one memory in several dtypes, and the program writes to it"
            return Reason("dtypes-of-shared-input", f"{message}; the program runs as it was written", tuple(nodes))
    return None


def _is_by_place(view: fx.Node) -> bool:
    """Whether a view begins at a place in memory, or is one of another view, which AOTAutograd refuses to write to."""
    place = arguments(view).get("storage_offset")
    return place is not None or not (isinstance(view.args[0], fx.Node) and view.args[0].op == "placeholder")


def _meet(targets: Sequence[fx.Node], call: fx.Node) -> bool:
    """Whether a target overlaps what the call is given at other positions of its lists, or only in part."""
    given = [enumerate(a) if isinstance(a, (list, tuple)) else [(-1, a)] for a in (*call.args, *call.kwargs.values())]
    placed: dict[int | None, list[tuple[int, fx.Node]]] = {}
    for k, x in (pair for own in given for pair in own if isinstance(pair[1], fx.Node)):
        placed.setdefault(_memory(x), []).append((k, x))
    written_to = set(targets)
    pairs = (
        (j, x, k, y)
        for memory, own in placed.items()
        for j, x in (own if memory is not None and len(own) > 1 else ())
        for k, y in (own if x in written_to else ())
    )
    return any((j != k or reach(val(x)) != reach(val(y))) and _overlap([x, y]) for j, x, k, y in pairs)


def _memory(node: fx.Node) -> int | None:
    value = val(node)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    try:
        return storage_key(value)
    except (AttributeError, NotImplementedError, RuntimeError):  # a tensor without memory of its own
        return None


def _itself(node: fx.Node) -> fx.Node:
    """The tensor that a call writes to and gives."""
    while (targets := written(node)) and _memory(targets[0]) == _memory(node):
        node = targets[0]
    return node


def _overlap(inputs: Sequence[fx.Node]) -> bool:
    """Whether some of the inputs in one memory overlap; of symbolic sizes, as in the example."""
    return meet(reach(val(node)) for node in inputs)
