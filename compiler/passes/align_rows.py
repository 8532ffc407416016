"""Aligns the rows of matrices that a generated kernel writes and a matrix product reads.

    y = where(...)                  sizes [8192, 30522]: rows of 61044 bytes

        ->  wide = constant_pad_nd(where(...), [0, 6])                       written as fast as without the zeros
            y = slice(wide, 1, 0, 30522)                                     for all that reads it but products

    mm(y, w)         ->  mm(wide, constant_pad_nd(w, [0, 0, 0, 6]))          the zeros add nothing
    mm(y.t(), x)     ->  slice(mm(wide.t(), x), 0, 0, 30522)                 rows of zeros are left out

Tensor cores load rows whose start and size are multiples of 16 bytes. For other rows, libraries use kernels that are
two to three times as slow on Hopper. The padding adds at most one percent, so that nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor
from ...rewrites.graph import dtype, has_known_strides, is_tensor, op_name, rank, shape, val
from ...rewrites.layout import adapt_users, is_kernel, missing
from ...rewrites.moves import REORDERS, RESIZES
from ...rewrites.walk import recompiles
from ..lowering.call import becomes_kernel
from .registry import refuse

aten = torch.ops.aten

_DEVICES = ("cuda",)
MOST = 1.01  # largest ratio of a matrix's size after padding to its size before
_DTYPES = (torch.float16, torch.bfloat16)
_VIEWS = RESIZES | REORDERS


@recompiles
def align_rows(graph_module: fx.GraphModule) -> int:
    """Pad the rows of matrices that are computed for products on a GPU, in place; returns the number of matrices.

    Args:
        graph_module: a functional graph (writes to inputs at its end apart), before its kernels are generated.
    """
    graph = graph_module.graph
    editor = Editor(graph)
    wanted = [(node, gap) for node in graph.nodes if (gap := _gap(node)) and _is_multiplied(node)]
    for node, gap in wanted:
        _space(editor, node, gap)
    return len(wanted)


def _gap(node: fx.Node) -> int:
    """The number of elements to add to each row that a generated kernel writes; 0 if none should be added."""
    if not is_tensor(node) or not _is_written_by_us(node) or rank(node) < 2 or dtype(node) not in _DTYPES:
        return 0
    value = val(node)
    columns = shape(node)[-1]
    if value.device.type not in _DEVICES or any(type(n) is not int or n == 0 for n in value.shape):
        return 0
    gap = missing(columns, value.itemsize) if value.is_contiguous() else 0
    if columns + gap > MOST * columns:
        if any(op_name(u) == "aten.mm" for u in _readers(node)):
            refuse("too-short", f"{gap} more columns are more than {MOST - 1:.0%} of rows of {columns}", node)
        return 0
    return gap


def _is_written_by_us(node: fx.Node) -> bool:
    """Whether a generated kernel computes the value, in memory of its own."""
    if not becomes_kernel(node.target):
        return False
    return not any(result.alias_info is not None for result in compat.schema(node.target).returns)


def _is_multiplied(node: fx.Node) -> bool:
    """Whether a product reads a matrix, perhaps through views, and no reader relies on its strides."""
    users = list(_readers(node))
    if not any(op_name(u) == "aten.mm" for u in users):
        return False
    if any(u.op == "output" or is_kernel(u) for u in users):
        refuse("strides-needed", "a result of the program, or a kernel, relies on the strides of the matrix", node)
        return False
    return True


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    for user in node.users:
        if op_name(user) in _VIEWS:
            yield from _readers(user)
        else:
            yield user


def _space(editor: Editor, node: fx.Node, gap: int) -> None:
    users = list(node.users)
    products = [user for user in _readers(node) if op_name(user) == "aten.mm"]
    with editor.at(node.next):
        wide = editor.call(aten.constant_pad_nd.default, node, [0, gap])
        spaced = editor.call(aten.slice.Tensor, wide, -1, 0, shape(node)[-1])
    for product in dict.fromkeys(products):
        _widen(editor, product, node, wide, gap)
    spaced.meta["regraft_layout"] = val(node)
    for user in users:
        user.replace_input_with(node, spaced)
    adapt_users(editor.graph, [spaced])


def _widen(editor: Editor, product: fx.Node, node: fx.Node, wide: fx.Node, gap: int) -> None:
    """The product of the padded matrix, in place of the product `node`, if the zeros do not change its result."""
    with editor.at(product):
        left, right = (_seen(editor, operand, node, wide) for operand in product.args)
        if (left is None) == (right is None):
            return
        (first, along), (second, beside) = left or (product.args[0], None), right or (product.args[1], None)
        if beside == 1:  # padded columns would be columns of the result, whose rows must stay dense
            return
        if along == 1:
            second = editor.call(aten.constant_pad_nd.default, second, [0, 0, 0, gap])
        if beside == 0:
            first = editor.call(aten.constant_pad_nd.default, first, [0, gap])
        new = editor.call(aten.mm.default, first, second)
        if along == 0:
            new = editor.call(aten.slice.Tensor, new, 0, 0, shape(product)[0])
    editor.replace(product, new)
    editor.erase_dead(product)


def _seen(editor: Editor, operand: Any, node: fx.Node, wide: fx.Node) -> tuple[fx.Node, int] | None:
    """The view of `wide` that matches `operand`, a view of `node`, and which of its two dims is the padded one."""
    if operand is node:
        return wide, rank(node) - 1
    if not isinstance(operand, fx.Node) or op_name(operand) not in _VIEWS:
        return None
    below = _seen(editor, operand.args[0], node, wide)
    if below is None:
        return None
    base, longer = below
    if op_name(operand) in ("aten.view", "aten._unsafe_view"):
        sizes = list(shape(operand))
        if longer != rank(base) - 1 or sizes[-1] != shape(node)[-1]:
            return None
        return editor.call(aten.view.default, base, [*sizes[:-1], shape(base)[-1]]), len(sizes) - 1
    if op_name(operand) in ("aten.t", "aten.permute") and rank(operand) == 2:
        order = operand.args[1] if op_name(operand) == "aten.permute" else [1, 0]
        order = [d % 2 for d in order]  # type: ignore[union-attr]
        return editor.call(aten.permute.default, base, order), order.index(longer)
    return None


def strides_of_outputs(graph_module: fx.GraphModule) -> list[tuple[int, ...] | None]:
    """The strides of a graph's outputs, for compiling a graph that reads them; None if they are as recorded."""
    outputs = graph_module.graph.output_node().args[0]
    return [tuple(val(x).stride()) if has_known_strides(x) else None for x in outputs]  # type: ignore[union-attr]


@recompiles
def take_strides(graph_module: fx.GraphModule, inputs: Any) -> int:
    """Set the strides of a graph's placeholders to those of its inputs, which the forward may have changed.

    Returns:
        The number of placeholders whose strides were others.
    """
    graph = graph_module.graph
    changed = []
    for node, given in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        old = val(node)
        if not has_known_strides(given) or not has_known_strides(node) or given.stride() == old.stride():
            continue
        node.meta["val"], node.meta["regraft_layout"] = given, old
        changed.append(node)
    if changed:
        adapt_users(graph, changed)
    return len(changed)
