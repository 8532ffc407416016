"""Saves 16-bit offsets within windows for the backward of max pooling, instead of its input or a ReLU's result.

    y = relu(x)                                           y = relu(x)
    out, at = max_pool2d_with_indices(y)                  out, at = max_pool2d_with_indices(y)
                                                          near = int16(at - first place of the window)
    d = max_pool2d_with_indices_backward(g, y, at)   ->   g' = threshold_backward(g, out, 0)
    e = threshold_backward(d, y, 0)                       e = max_pool2d_with_indices_backward(g', like y,
                                                                                               near + first)

The pass runs on the joint graph, before it is split. The backward needs the sizes and strides of `y`, not its memory.
An element receives gradients only from windows whose maximum it is, so that the window's result tells as well as the
element itself whether the ReLU stops the gradient.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import op_name, val
from ...rewrites.moves import ALIASES
from ...rewrites.walk import recompiles
from ..autograd.joint_graph import mark_recomputed
from .registry import refuse

aten = torch.ops.aten

_FORWARD, _BACKWARD = aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default


@recompiles
def save_max_pool_offsets(graph_module: fx.GraphModule) -> int:
    """Let the backward of max pooling in a joint graph read offsets within windows; returns the number of poolings.

    Left alone are poolings with symbolic sizes, with offsets of more than 16 bits, with indices that the program
    returns, and poolings that the user checkpoints.
    """
    graph = graph_module.graph
    found = [node for node in graph.find_nodes(op="call_function", target=_BACKWARD) if _is_plain(node)]
    if not found:
        return 0
    editor = Editor(graph)
    for node in found:
        _respell(editor, node)
    return len(found)


def _is_plain(node: fx.Node) -> bool:
    """Whether only the pooling's gradient reads the indices, and offsets are small and static."""
    _, x, *geometry, indices = node.args
    pool = indices.args[0] if isinstance(indices, fx.Node) and indices.target is operator.getitem else None
    if not isinstance(pool, fx.Node) or pool.target is not _FORWARD or pool.args[0] is not x or len(indices.users) != 1:
        return False
    sizes = (*val(x).shape, *val(node.args[0]).shape)
    if "recompute" in pool.meta or not all(isinstance(n, int) and n for n in sizes):
        refuse("sizes", "a size is symbolic or 0, or the user checkpoints the pooling", pool)
        return False
    if _reach(val(x).shape[-1], geometry) > torch.iinfo(torch.int16).max:
        refuse("offsets", "offsets within a window need more than 16 bits", pool)
        return False
    return True


def _reach(width: int, geometry: Sequence[Any]) -> int:
    """The offset of a window's last element from its first, in an image with rows of this width."""
    (rows, columns), (down, right) = _pair(geometry[0]), _pair(geometry[3])
    return (rows - 1) * down * width + (columns - 1) * right


def _pair(numbers: Sequence[int], otherwise: Sequence[int] = ()) -> tuple[int, int]:
    """A number for rows and a number for columns; a single number stands for both."""
    numbers = tuple(numbers) or _pair(otherwise)
    return (numbers[0], numbers[-1])


def _respell(editor: Editor, node: fx.Node) -> None:
    grad, x, *geometry, indices = node.args
    stops = _rectifier(node)
    with editor.at(indices.next):
        away = editor.call(aten.sub.Tensor, indices, _first(editor, indices, x, geometry))
        near = editor.call(aten._to_copy.default, away, dtype=torch.int16)
        mark_recomputed(near, False)
    with editor.at(node):
        if stops is not None:
            out = next(user for user in indices.args[0].users if user.args[1] == 0)
            grad = editor.call(aten.threshold_backward.default, grad, out, stops.args[2])
        wide = editor.call(aten._to_copy.default, near, dtype=torch.int64)
        places = editor.call(aten.add.Tensor, wide, _first(editor, near, x, geometry))
        like = val(x)  # only its sizes and strides are used, for the gradient
        unread = editor.call(aten.empty_strided.default, list(like.shape), list(like.stride()),
                             dtype=like.dtype, device=like.device)  # fmt: skip
        mark_recomputed(unread, True)
        result = editor.call(_BACKWARD, grad, unread, *geometry, places)
    editor.replace(stops or node, result)
    editor.erase_dead(stops or node)


def _rectifier(node: fx.Node) -> fx.Node | None:
    """The only reader of this gradient of a pooling, if it is the gradient of a ReLU of the pooling's input."""
    user = next(iter(node.users)) if len(node.users) == 1 else None
    if user is None or user.target is not aten.threshold_backward.default or user.args[0] is not node:
        return None
    indices = node.args[-1]
    has_result = any(item.args[1] == 0 for item in indices.args[0].users)
    return user if has_result and _source(user.args[1]) is _source(node.args[1]) else None


def _source(node: Any) -> Any:
    """The value without its other names."""
    while isinstance(node, fx.Node) and op_name(node) in ALIASES:
        node = node.args[0]
    return node


def _first(editor: Editor, indices: fx.Node, x: fx.Node, geometry: Sequence[Any]) -> fx.Node:
    """The first position of each window in the flattened image, which may be negative: ``[rows, columns]``, int64."""
    kernel, stride, padding, *_ = geometry
    width, (rows, columns) = val(x).shape[-1], val(indices).shape[-2:]
    (down, right), (above, before) = _pair(stride, kernel), _pair(padding)

    def numbers(count: int, step: int) -> fx.Node:
        each = editor.call(aten.arange.default, count, dtype=torch.int64, device=val(x).device)
        return editor.call(aten.mul.Tensor, each, step)

    column = editor.call(aten.sub.Tensor, numbers(columns, right), above * width + before)
    return editor.call(aten.add.Tensor, editor.call(aten.unsqueeze.default, numbers(rows, down * width), 1), column)
