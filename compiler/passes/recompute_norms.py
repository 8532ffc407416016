"""Recomputes the results of norms in the backward, from the input that is saved anyway.

    y, mean, rstd = native_group_norm(x, w, b, ...)          forward keeps x, mean, rstd, y     ->     x, mean, rstd
    z = silu(y)
    dy = silu_backward(dz, y)                   ->           dy = silu_backward(dz, (x - mean) * rstd * w + b)
    dx = native_group_norm_backward(dy, x, mean, rstd, ...)

Batch, group, layer and RMS norm, also where views lie between: the norm's own backward needs `x` and the statistics
anyway, and is fused with the activation's backward. The kernel reads one tensor less, and such layers save a third less
memory. The pass runs on the joint graph, before it is split.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import val
from ...rewrites.walk import recompiles
from ..autograd.joint_graph import backward_nodes, mark_recomputed, readers

aten = torch.ops.aten

_BATCH = (
    aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update_functional.default,
    aten._native_batch_norm_legit.no_stats,
)
_GROUP, _LAYER, _RMS = aten.native_group_norm.default, aten.native_layer_norm.default, aten._fused_rms_norm.default
_STEPS = 4  # operations between a norm and a reader in the backward


@recompiles
def recompute_norms(graph_module: fx.GraphModule) -> int:
    """Let the backward of a joint graph recompute the results of norms, in place; returns the number of norms.

    Left alone are results of the graph, nodes that the user checkpoints, and results that an operation reads in
    the backward which is not pointwise.
    """
    graph = graph_module.graph
    backward = backward_nodes(graph)
    norms = [n for n in graph.nodes if n.target in (*_BATCH, _GROUP, _LAYER, _RMS) and n not in backward]
    needed = _needed_by_forward(graph, backward) if norms else set()
    made: list[fx.Node] = []
    editor = Editor(graph, listener=made.append)
    count = 0
    for node in norms:
        result = _parts(node).get(0)
        found = None if result is None else _readers(result, needed)
        if not found or not _is_plain(node, result, backward):
            continue
        made.clear()
        with editor.at(max(_parts(node).values()).next):
            again = _again(editor, node, val(result).dtype)
        for reader, steps in found:
            reader.replace_input_with(steps[-1] if steps else result, _followed(editor, again, steps))  # type: ignore[arg-type]
        for part in made:
            mark_recomputed(part, True)
        count += 1
    return count


def _readers(
    value: fx.Node, needed: set[fx.Node], steps: tuple[fx.Node, ...] = ()
) -> list[tuple[fx.Node, tuple[fx.Node, ...]]] | None:
    """Nodes of the backward that read a value, each with the steps between them; None if the value must be kept.

    A value must be kept for a reader that is not pointwise. Steps are views and pointwise operations of one operand:

        y = silu(batch_norm(x))        the forward needs y, and the backward of y * gate reads it
    """
    found: list[tuple[fx.Node, tuple[fx.Node, ...]]] = []
    for user, views in readers(value):
        path = (*steps, *views)
        if user not in needed:
            if not _is_pointwise(user):
                return None
            found.append((user, path))
        elif len(path) < _STEPS and _is_pointwise(user) and len(user.all_input_nodes) == 1:
            returned = any(reader.op == "output" for reader in user.users)
            found += [] if returned else _readers(user, needed, (*path, user)) or []
    return found


def _is_pointwise(node: fx.Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _followed(editor: Editor, value: fx.Node, steps: Sequence[fx.Node]) -> fx.Node:
    """Repeat steps, here from a value that was computed again; returns the last result."""
    for step in steps:
        operands = [value if isinstance(x, fx.Node) else x for x in step.args]
        with editor.at(step.next):
            value = editor.call(step.target, *operands, **step.kwargs)
    return value


def _needed_by_forward(graph: fx.Graph, backward: set[fx.Node]) -> set[fx.Node]:
    """Nodes that the forward's results depend on, the results and the output node included."""
    waiting = [node for node in graph.output_node().all_input_nodes if node not in backward]
    found = {graph.output_node()}
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _parts(node: fx.Node) -> dict[int, fx.Node]:
    """The results of a call by their index."""
    return {user.args[1]: user for user in node.users if user.target is operator.getitem}  # type: ignore[misc]


def _is_plain(node: fx.Node, result: Any, backward: set[fx.Node]) -> bool:
    x, parts = node.args[0], _parts(node)
    statistics = (1,) if node.target is _RMS else (1, 2)
    if not {0, *statistics} <= parts.keys() or "recompute" in node.meta or "recompute" in result.meta:
        return False
    if node.target == _BATCH[0] and node.args[5] is not True:
        return False  # it uses running statistics, which the forward does not save
    kept = any(user in backward for user in x.users)  # type: ignore[union-attr]
    wide = all(val(parts[k]).dtype == _wide(val(x).dtype) for k in statistics)
    rows = node.target in (_LAYER, _RMS) or all(type(n) is int for n in val(x).shape)
    return kept and wide and rows


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize < 4 else dtype


def _again(editor: Editor, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    """The norm's result from its input and statistics, in the order in which kernels compute it."""
    call, (x, *_), parts = editor.call, node.args, _parts(node)
    wide = _wide(val(x).dtype)
    made = editor.cast(x, wide)
    if node.target is _RMS:
        made = call(aten.mul.Tensor, made, parts[1])
    else:
        mean, scale = (_statistic(editor, node, parts[k]) for k in (1, 2))
        made = call(aten.mul.Tensor, call(aten.sub.Tensor, made, mean), scale)
    weight, bias = (None if value is None else _factor(editor, node, value) for value in _factors(node))
    made = made if weight is None else call(aten.mul.Tensor, made, weight)
    made = made if bias is None else call(aten.add.Tensor, made, bias)
    return editor.cast(made, dtype)


def _factors(node: fx.Node) -> tuple[Any, Any]:
    """The weight and the bias of a norm."""
    if node.target is _RMS:
        return node.args[2], None
    return (node.args[2], node.args[3]) if node.target is _LAYER else (node.args[1], node.args[2])


def _factor(editor: Editor, node: fx.Node, value: Any) -> fx.Node:
    """A weight or bias, along the input's channels or its last dims."""
    value = editor.cast(value, _wide(val(node.args[0]).dtype))
    if node.target in (_LAYER, _RMS):
        return value
    _, channels, *rest = val(node.args[0]).shape
    return editor.call(aten.view.default, value, [1, channels, *[1] * len(rest)])


def _statistic(editor: Editor, node: fx.Node, value: fx.Node) -> fx.Node:
    """A mean or scale as the input is broadcast with it: layer norm's lies so, others are of channels or groups."""
    if node.target is _LAYER:
        return value
    if node.target is not _GROUP:
        return _factor(editor, node, value)
    batch, channels, *rest = val(node.args[0]).shape
    call, groups = editor.call, val(value).shape[1]
    each = call(aten.expand.default, call(aten.unsqueeze.default, value, 2), [batch, groups, channels // groups])
    flat = call(aten.clone.default, each, memory_format=torch.contiguous_format)
    return call(aten.view.default, flat, [batch, channels, *[1] * len(rest)])
