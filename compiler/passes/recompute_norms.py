"""Recomputes the results of batch and group norm in the backward, from the input that is saved anyway.

    y, mean, rstd = native_group_norm(x, w, b, ...)          forward keeps x, mean, rstd, y     ->     x, mean, rstd
    z = silu(y)
    dy = silu_backward(dz, y)                   ->           dy = silu_backward(dz, (x - mean) * rstd * w + b)
    dx = native_group_norm_backward(dy, x, mean, rstd, ...)

The norm's own backward needs `x` and the statistics anyway, and is fused with the activation's backward. The kernel
reads one tensor less, and such layers save a third less memory. The pass runs on the joint graph, before it is split.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import val
from ...rewrites.sizes import SizeTable
from ..autograd.joint_graph import backward_nodes, mark_recomputed

aten = torch.ops.aten

_BATCH = (aten._native_batch_norm_legit_functional.default, aten._batch_norm_with_update_functional.default)
_GROUP = aten.native_group_norm.default


def recompute_norms(graph_module: fx.GraphModule) -> int:
    """Let the backward of a joint graph recompute the results of norms, in place; returns the number of norms.

    Left alone are results of the graph, nodes that the user checkpoints, and results that a call reads which is not
    pointwise.
    """
    graph = graph_module.graph
    backward = backward_nodes(graph)
    made: list[fx.Node] = []
    editor = Editor(graph, SizeTable(graph, {n for n in backward if n.op == "placeholder"}), made.append)
    count = 0
    for node in [n for n in graph.nodes if n.target in (*_BATCH, _GROUP) and n not in backward]:
        result = _parts(node).get(0)
        readers = [] if result is None else [user for user in result.users if user in backward]
        if not readers or not _is_plain(node, result, readers, backward):
            continue
        made.clear()
        with editor.at(max(_parts(node).values()).next):
            again = _again(editor, node, val(result).dtype)
        for part in made:
            mark_recomputed(part, True)
        for reader in readers:
            reader.replace_input_with(result, again)  # type: ignore[arg-type]
        count += 1
    if count:
        graph_module.recompile()
    return count


def _parts(node: fx.Node) -> dict[int, fx.Node]:
    """The results of a call by their index."""
    return {user.args[1]: user for user in node.users if user.target is operator.getitem}  # type: ignore[misc]


def _is_plain(node: fx.Node, result: Any, readers: list[fx.Node], backward: set[fx.Node]) -> bool:
    x, parts = node.args[0], _parts(node)
    if not {0, 1, 2} <= parts.keys() or "recompute" in node.meta or "recompute" in result.meta:
        return False
    if (
        node.target == _BATCH[0] and node.args[5] is not True
    ):  # it uses running statistics, which the forward does not save
        return False
    kept = any(user in backward for user in x.users)  # type: ignore[union-attr]
    statistics = all(val(parts[k]).dtype == _wide(val(x).dtype) for k in (1, 2))
    pointwise = all(torch.Tag.pointwise in getattr(r.target, "tags", ()) for r in readers)
    return kept and statistics and pointwise and all(type(n) is int for n in val(x).shape)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize < 4 else dtype


def _again(editor: Editor, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    """The norm's result from its input and statistics, in the order in which kernels compute it."""
    call, (x, weight, bias, *_), parts = editor.call, node.args, _parts(node)
    wide, (batch, channels, *rest) = _wide(val(x).dtype), val(x).shape
    ones = [1] * len(rest)

    def of_channels(value: Any) -> fx.Node:
        value = value if val(value).dtype == wide else call(aten._to_copy.default, value, dtype=wide)
        return call(aten.view.default, value, [1, channels, *ones])

    def of_groups(value: fx.Node) -> fx.Node:
        groups = val(value).shape[1]
        each = call(aten.expand.default, call(aten.unsqueeze.default, value, 2), [batch, groups, channels // groups])
        flat = call(aten.clone.default, each, memory_format=torch.contiguous_format)
        return call(aten.view.default, flat, [batch, channels, *ones])

    statistic = of_groups if node.target is _GROUP else of_channels
    made = x if val(x).dtype == wide else call(aten._to_copy.default, x, dtype=wide)
    made = call(aten.mul.Tensor, call(aten.sub.Tensor, made, statistic(parts[1])), statistic(parts[2]))
    made = made if weight is None else call(aten.mul.Tensor, made, of_channels(weight))
    made = made if bias is None else call(aten.add.Tensor, made, of_channels(bias))
    return made if val(made).dtype == dtype else call(aten._to_copy.default, made, dtype=dtype)
