"""Values that a call asks nothing but the shape, dtype and device of are not read by it.

    full_like(scores, -inf), scores.new_full([S, S], -inf), zeros_like(scores)    ->    full([S, S], -inf, ...)

The same bits in the same layout. What was asked is free then: a mask made of scores would have them computed, whatever
takes their place, and keeps them from being freed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .editor import Editor
from .graph import arguments, is_tensor, op_name, val
from .purity import erase_dead, is_pure
from .sizes import SizeTable
from .symbolic import hint, known_equal

aten = torch.ops.aten

_NUMBERS = {
    "aten.full_like": None, "aten.new_full": None, "aten.zeros_like": 0, "aten.new_zeros": 0, "aten.ones_like": 1,
    "aten.new_ones": 1,
}  # fmt: skip


def asks_shape_alone(node: fx.Node) -> bool:
    """Whether a call makes a constant like a value that the program computes, in the layout that `full` has."""
    if op_name(node) not in _NUMBERS or not node.args or not _is_computed(node.args[0]) or not is_tensor(node):
        return False
    made, values = val(node), arguments(node)
    if isinstance(values.get("fill_value"), fx.Node):  # a number that changes stays with the tensor that it goes into
        return False
    if made.layout != torch.strided or values.get("pin_memory") or not _is_dense(made):
        return False
    return all(hint(size) is not None for size in made.shape)  # what is known when run is counted from what is asked


def _is_computed(node: Any) -> bool:
    return is_tensor(node) and node.op == "call_function"


def _is_dense(value: torch.Tensor) -> bool:
    """Whether the strides are those of a new tensor, for all values of its symbols."""
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not known_equal(stride, expected):  # of dims of size 1 too, since the program may return it
            return False
        expected = expected * size
    return True


def free_what_is_not_read(graph: fx.Graph) -> int:
    """Make constants of their own sizes; returns how many."""
    found = [node for node in graph.nodes if asks_shape_alone(node)]
    if not found:
        return 0
    edit = Editor(graph, SizeTable(graph))
    for node in found:
        made, number = val(node), _NUMBERS[op_name(node)]
        number = arguments(node)["fill_value"] if number is None else number
        with edit.at(node):
            new = edit.call(aten.full.default, list(made.shape), number, dtype=made.dtype, device=made.device)
        edit.replace(node, new)
        erase_dead(graph, [node], is_pure)
    return len(found)
