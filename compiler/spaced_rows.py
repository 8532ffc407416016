"""Rows of matrices that begin at aligned addresses, where a generated kernel writes what a product reads.

    y = where(...)                  sizes [8192, 30522]: rows of 61044 bytes
    mm(y, w), mm(y.t(), x)

        ->  y = slice(constant_pad_nd(where(...), [0, 6]), -1, 0, 30522)     the same, strides [30528, 1]

Tensor cores load rows that begin at multiples of 16 bytes; for others, libraries have slower kernels (twice as slow on
Hopper). The kernel that makes a matrix writes it with gaps as fast as without, so nothing need be measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from ..rewrites.editor import Editor
from ..rewrites.graph import dtype, has_known_strides, is_tensor, op_name, rank, shape, val
from ..rewrites.layout import adapt_users, is_kernel
from ..rewrites.sizes import SizeTable
from .lowering.core import LOWERINGS

aten = torch.ops.aten

ALIGNED = 16  # bytes
_DEVICES = ("cuda",)
MOST = 1.05  # times as large as it was may a matrix become
_DTYPES = (torch.float16, torch.bfloat16)
_PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.linear", "aten.matmul")
_VIEWS = (
    "aten.view",
    "aten.permute",
    "aten.t",
    "aten.transpose",
    "aten.unsqueeze",
    "aten.squeeze",
    "aten._unsafe_view",
)


def space_rows(graph_module: fx.GraphModule) -> int:
    """Space the rows of matrices that are computed for products on a GPU, in place; returns of how many.

    Args:
        graph_module: a functional graph (writes to inputs at its end apart), before its kernels are generated.
    """
    graph = graph_module.graph
    editor = Editor(graph, SizeTable(graph))
    wanted = [(node, gap) for node in graph.nodes if (gap := _gap(node)) and _is_multiplied(node)]
    for node, gap in wanted:
        _space(editor, node, gap)
    if wanted:
        graph_module.recompile()
    return len(wanted)


def _gap(node: fx.Node) -> int:
    """How many elements are to follow each row of a matrix that a generated kernel writes; 0 where none should."""
    if not is_tensor(node) or not _is_written_by_us(node) or rank(node) < 2 or dtype(node) not in _DTYPES:
        return 0
    value = val(node)
    columns = shape(node)[-1]
    if value.device.type not in _DEVICES or any(type(n) is not int or n == 0 for n in value.shape):
        return 0
    if not value.is_contiguous() or columns * value.itemsize % ALIGNED == 0:
        return 0
    gap = -columns % (ALIGNED // value.itemsize)
    return gap if columns + gap <= MOST * columns else 0


def _is_written_by_us(node: fx.Node) -> bool:
    """Whether a generated kernel makes the value, in memory of its own."""
    if not isinstance(node.target, torch._ops.OpOverload) or op_name(node) not in LOWERINGS:
        return False
    return not any(result.alias_info is not None for result in node.target._schema.returns)


def _is_multiplied(node: fx.Node) -> bool:
    """Whether a product reads a value, perhaps through views, and nothing that trusts its strides does."""
    users = list(_readers(node))
    return any(op_name(u) in _PRODUCTS for u in users) and not any(u.op == "output" or is_kernel(u) for u in users)


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    for user in node.users:
        if op_name(user) in _VIEWS:
            yield from _readers(user)
        else:
            yield user


def _space(editor: Editor, node: fx.Node, gap: int) -> None:
    users = list(node.users)
    with editor.at(node.next):
        wide = editor.call(aten.constant_pad_nd.default, node, [0, gap])
        spaced = editor.call(aten.slice.Tensor, wide, -1, 0, shape(node)[-1])
    spaced.meta["regraft_layout"] = val(node)
    for user in users:
        user.replace_input_with(node, spaced)
    adapt_users(editor.graph, [spaced])


def strides_of_outputs(graph_module: fx.GraphModule) -> list[tuple[int, ...] | None]:
    """The strides of a graph's outputs, for the compiler of a graph that reads them; None where it need not know."""
    outputs = graph_module.graph.output_node().args[0]
    return [tuple(val(x).stride()) if has_known_strides(x) else None for x in outputs]  # type: ignore[union-attr]


def take_strides(graph_module: fx.GraphModule, inputs: Any) -> None:
    """Give a graph's placeholders the strides of its inputs, where a forward has laid out what it keeps otherwise."""
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
        graph_module.recompile()
