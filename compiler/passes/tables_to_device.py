"""Makes tensors on a GPU that a program makes on the CPU from nothing, and moves.

    to_copy(masked_fill(zeros(cpu), ...), device=cuda)     ->     masked_fill(zeros(cuda), ...)

Masks of windows and tables of positions are often written without a device. On the GPU they are part of a kernel; a
copy at each call would make the CPU wait for all that the GPU has to do, and could not be captured. Only calls are
moved whose results are the same on both, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor
from ...rewrites.facts import literal
from ...rewrites.graph import arguments, is_tensor, op_name, val
from ...rewrites.purity import is_pure
from ...rewrites.walk import recompiles

aten = torch.ops.aten

_NEW = """
    arange eye full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zeros zeros_like
"""
_EXACT = """
    _to_copy _unsafe_view abs add alias bitwise_and bitwise_not bitwise_or bitwise_xor cat clamp clone constant_pad_nd
    contiguous copy detach eq expand fill flip ge gt le lift_fresh_copy logical_and logical_not logical_or logical_xor
    lt masked_fill maximum minimum mul ne neg permute repeat reshape roll rsub select select_scatter slice
    slice_scatter squeeze stack sub t transpose tril triu unsqueeze view where
"""
_MADE = frozenset(f"aten.{name}" for name in _NEW.split())
_SAME = _MADE | frozenset(f"aten.{name}" for name in _EXACT.split())
_MOST = 256  # calls that make one tensor


@recompiles
def make_tables_on_device(graph_module: fx.GraphModule) -> int:
    """Make tensors on the GPU to which they are moved, in place; returns their number.

    Args:
        graph_module: a functional graph (writes to inputs at its end apart).
    """
    graph, made = graph_module.graph, 0
    editor = Editor(graph)
    moved: dict[tuple[fx.Node, torch.device], fx.Node] = {}
    for node in list(graph.find_nodes(op="call_function", target=aten._to_copy.default)):
        if compat.is_erased(node) or not brings(node):
            continue
        cone = _cone(node.args[0])
        if cone is None:
            continue
        with editor.at(node):
            for one in cone:
                key = one, val(node).device
                if key not in moved:
                    moved[key] = _on_device(editor, one, val(node).device, moved)
            table = moved[node.args[0], val(node).device]
            new = editor.call(aten._to_copy.default, table, **{k: v for k, v in node.kwargs.items() if k != "device"})
        editor.replace(node, new)
        editor.erase_dead(node)
        made += 1
    return made


def brings(node: fx.Node) -> bool:
    """Whether a call copies from the CPU to a GPU."""
    source = node.args[0]
    return is_tensor(source) and val(source).device.type == "cpu" and val(node).device.type == "cuda"


def _cone(node: Any) -> list[fx.Node] | None:
    """The calls that make a tensor, in order; None where any of them reads an input, or computes otherwise on a GPU."""
    found: dict[fx.Node, None] = {}
    todo = [node]
    while todo:
        one = todo.pop()
        if one in found:
            continue
        if not _is_same_everywhere(one) or len(found) >= _MOST:
            return None
        found[one] = None
        todo += [] if literal(one) is not None else one.all_input_nodes
    return [one for one in node.graph.nodes if one in found]


def _is_same_everywhere(node: fx.Node) -> bool:
    number = literal(node)
    if number is not None:
        return number.dim() == 0
    if op_name(node) not in _SAME or not is_tensor(node) or not is_pure(node):
        return False
    if op_name(node) in _MADE or node.all_input_nodes:
        return val(node).device.type == "cpu" and all(isinstance(size, int) for size in val(node).shape)
    return False


def _on_device(
    editor: Editor, node: fx.Node, device: torch.device, moved: dict[tuple[fx.Node, torch.device], fx.Node]
) -> fx.Node:
    """The call on a GPU, of operands that are on the GPU."""
    number = literal(node)
    if number is not None:
        with compat.plain_eager():
            value = number.item()
        return editor.call(aten.full.default, [], value, dtype=number.dtype, device=device)
    args, given = fx.node.map_arg((node.args, node.kwargs), lambda source: moved[source, device])
    kwargs = {name: value for name, value in given.items() if name != "pin_memory"}
    named = any(one.name == "device" for one in compat.schema(node.target).arguments)
    if named and (op_name(node) in _MADE or arguments(node).get("device") is not None):
        kwargs["device"] = device
    return editor.call(node.target, *args, **kwargs)
