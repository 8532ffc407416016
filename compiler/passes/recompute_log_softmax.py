"""Computes the backward of log-softmax from its input and two numbers per row, instead of from its result.

    y = _log_softmax(x, 1, True)                peak, logs = regraft.log_softmax_rows(x, 1, float32)
    loss = nll_loss_forward(y, target)    ->    y          = to(x, float32) - peak - logs
                                                loss       = nll_loss_forward(y, target)

    backward: reads y, float32                  backward: reads x, of 16 bits; computes y within what reads it

The pass runs on the joint graph, before it is split. The forward then saves the logits, which exist anyway, and no
kernel writes the log-softmax over the vocabulary. `x - peak` is computed first, as in eager, which is exact for large
x.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import op_name, val
from ...rewrites.sizes import SizeTable
from ..autograd.joint_graph import backward_nodes, mark_recomputed

aten = torch.ops.aten

_library = torch.library.Library("regraft", "FRAGMENT")
_library.define("log_softmax_rows(Tensor x, int dim, ScalarType dtype) -> (Tensor, Tensor)")
_COMPUTED = {torch.float32: torch.float32, torch.bfloat16: torch.float32, torch.float16: torch.float32,
             torch.float64: torch.float64}  # fmt: skip


def _rows(x: torch.Tensor, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest element of each row, and the log of the sum of ``exp(x - largest)``; dim is kept, of size 1.

    This function runs if no kernel was generated.
    """
    x = x.to(dtype)
    peak = x.amax(dim, keepdim=True)
    return peak, (x - peak).exp().sum(dim, keepdim=True).log()


def _fake_rows(x: torch.Tensor, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = list(x.shape)
    sizes[dim] = 1
    return x.new_empty(sizes, dtype=dtype), x.new_empty(sizes, dtype=dtype)


_library.impl("log_softmax_rows", _rows, "CompositeExplicitAutograd")
torch.library.register_fake("regraft::log_softmax_rows", _fake_rows, lib=_library)
_SAME = ("aten.detach", "aten.alias", "aten._to_copy", "aten.view")
ROWS = torch.ops.regraft.log_softmax_rows.default


def recompute_log_softmax(graph_module: fx.GraphModule) -> int:
    """Let the backward of a joint graph read two numbers per row, not log-softmax's result; returns how often.

    Left alone are results that the backward does not read, results of the graph, and nodes that the user checkpoints.
    """
    graph = graph_module.graph
    backward = backward_nodes(graph)
    stays = backward.union(graph.output_node().all_input_nodes)
    found = [
        node
        for node in graph.find_nodes(op="call_function", target=aten._log_softmax.default)
        if node not in stays and _is_read(node, backward) and _is_plain(node)
    ]
    if not found:
        return 0
    made: list[fx.Node] = []
    editor = Editor(graph, SizeTable(graph, {node for node in backward if node.op == "placeholder"}), made.append)
    for node in found:
        made.clear()
        with editor.at(node):
            result = _split(editor, node.args[0], node.args[1], val(node).dtype)
        for other in _respelled(node, stays):
            mark_recomputed(other, True)
        for part in made:
            mark_recomputed(part, part.target is not ROWS and part.target is not operator.getitem)
        result.meta["val"] = node.meta["val"]  # the recorded layout
        editor.replace(node, result)
        editor.erase_dead(node)
    return len(found)


def _is_read(node: fx.Node, backward: set[fx.Node]) -> bool:
    """Whether the backward reads a value, perhaps in another dtype: under autocast the loss reads single precision."""
    return any(user in backward or (op_name(user) in _SAME and _is_read(user, backward)) for user in node.users)


def _respelled(node: fx.Node, stays: set[fx.Node]) -> Iterator[fx.Node]:
    """The same value under other names and in other dtypes, as long as nothing else needs to store it."""
    for user in node.users:
        if user not in stays and op_name(user) in _SAME and "recompute" not in user.meta:
            yield user
            yield from _respelled(user, stays)


def _is_plain(node: fx.Node) -> bool:
    x, dim, _ = node.args
    taken = val(x)  # type: ignore[arg-type]
    if "recompute" in node.meta or val(node).dtype not in _COMPUTED or not taken.dim():
        return False
    return isinstance(taken.shape[dim], int) and taken.shape[dim] > 0  # type: ignore[index]


def _split(editor: Editor, x: Any, dim: Any, dtype: torch.dtype) -> fx.Node:
    """``x - peak - logs``, in the dtype that was recorded."""
    within = _COMPUTED[dtype]
    rows = editor.call(ROWS, x, dim, within)
    peak, logs = (editor.call(operator.getitem, rows, k) for k in range(2))
    wide = x if val(x).dtype == within else editor.call(aten._to_copy.default, x, dtype=within)
    away = editor.call(aten.sub.Tensor, editor.call(aten.sub.Tensor, wide, peak), logs)
    return away if dtype == within else editor.call(aten._to_copy.default, away, dtype=dtype)


__all__ = ["ROWS", "recompute_log_softmax"]
