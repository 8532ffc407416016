"""Computes the backward of softmax and its logarithm from the input and two numbers per row, not from the result.

    y = _log_softmax(x, 1, True)                peak, logs = regraft.log_softmax_rows(x, 1, float32)
    loss = nll_loss_forward(y, target)    ->    y          = to(x, float32) - peak - logs
                                                loss       = nll_loss_forward(y, target)

    backward: reads y, float32                  backward: reads x, of 16 bits; computes y within its readers

The forward then saves the logits, which exist anyway, and no kernel writes the log-softmax over the vocabulary. `x -
peak` is computed first, as in eager, which is exact for large x. Softmax is ``exp(to(x, float32) - peak - logs)``: of
an attention under autocast, scores of 16 bits are kept in place of weights of 32.

Both passes run on the joint graph, before it is split.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import is_tensor, op_name, val
from ...rewrites.layout import same_layout
from ...rewrites.moves import ALIASES
from ...rewrites.symbolic import known_equal
from ..autograd.joint_graph import WHOLE_VIEWS, backward_nodes, mark_recomputed

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
_SAME = ALIASES | {"aten._to_copy", "aten.view"}
_CHAIN = 16  # steps from a product to the softmax of its scores: scale, bias, masks and views
ROWS = torch.ops.regraft.log_softmax_rows.default


def recompute_log_softmax(graph_module: fx.GraphModule) -> int:
    """Let the backward of a joint graph read two numbers per row, not log-softmax's result; returns how often.

    Left alone are results that the backward does not read, results of the graph, and nodes that the user checkpoints.
    """
    return _recompute(graph_module, aten._log_softmax.default, lambda node: True)


def recompute_softmax(graph_module: fx.GraphModule) -> int:
    """Let the backward of a joint graph compute softmax from scores of fewer bits than the result; returns how often.

    Calls that `recompute_log_softmax` leaves alone are left alone. A result that is no wider than the scores is left as
    well, since products in the backward read it from memory.
    """
    return _recompute(graph_module, aten._softmax.default, _widens)


def _recompute(graph_module: fx.GraphModule, target: Any, pays: Callable[[fx.Node], bool]) -> int:
    graph = graph_module.graph
    backward = backward_nodes(graph)
    stays = backward.union(graph.output_node().all_input_nodes)
    found = [
        node
        for node in graph.find_nodes(op="call_function", target=target)
        if node not in stays and _is_read(node, backward) and _is_plain(node) and pays(node)
    ]
    if not found:
        return 0
    made: list[fx.Node] = []
    editor = Editor(graph, listener=made.append)
    for node in found:
        made.clear()
        with editor.at(node):
            result = _split(editor, node)
        for other in _respelled(node, stays):
            mark_recomputed(other, True)
        for part in made:
            mark_recomputed(part, part.target is not ROWS and part.target is not operator.getitem)
        result.meta["val"] = node.meta["val"]  # the recorded layout
        editor.replace(node, result)
        editor.erase_dead(node)
    return len(found)


def _widens(node: fx.Node) -> bool:
    """Whether a result has more bits than the operands of the scores, element by element.

    scores = to(bmm(q, k), float32) + bias       16 bits an element
    """
    result = val(node)
    sources = _sources(node.args[0], result.numel())
    return sources is not None and sum(val(source).dtype.itemsize for source in sources) < result.dtype.itemsize


def _sources(x: Any, size: Any) -> set[fx.Node] | None:
    """The values of `size` elements from which one is computed elementwise; None if the chain is long.

    Smaller values that are broadcast, as a bias of all windows, do not count.
    """
    found: set[fx.Node] = set()
    waiting, steps = [x], 0
    while waiting:
        node = waiting.pop()
        operands = [n for n in node.all_input_nodes if is_tensor(n) and known_equal(val(n).numel(), size)]
        computed = op_name(node) in WHOLE_VIEWS | _SAME or torch.Tag.pointwise in getattr(node.target, "tags", ())
        if not computed:
            found.add(node)
            continue
        waiting += operands
        steps += 1
        if steps > _CHAIN:
            return None
    return found


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


def _split(editor: Editor, node: fx.Node) -> fx.Node:
    """``x - peak - logs``, or its power, in the dtype that was recorded."""
    x, dim, dtype = node.args[0], node.args[1], val(node).dtype
    within = _COMPUTED[dtype]
    rows = editor.call(ROWS, x, dim, within)
    peak, logs = (editor.call(operator.getitem, rows, k) for k in range(2))
    made = editor.call(aten.sub.Tensor, editor.call(aten.sub.Tensor, editor.cast(x, within), peak), logs)
    if node.target is aten._softmax.default:
        made = editor.call(aten.exp.default, made)
    made = editor.cast(made, dtype)
    if same_layout(val(made), val(node)):
        return made
    return editor.call(aten.clone.default, made, memory_format=torch.contiguous_format)  # of scores that are transposed


__all__ = ["ROWS", "recompute_log_softmax", "recompute_softmax"]
