"""Reorders the elements of a dim by the order within a group, where an index of constants has such a period.

    x[:, [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, ...]]   ->   x.view(n, -1, 8)[:, :, [0, 4, 1, 5, 2, 6, 3, 7]].view(n, -1)

The order of a group is a small table, and what is read stays near: AWQ orders the columns that words of four bits hold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor, hold_constant
from ...rewrites.facts import literal
from ...rewrites.graph import is_tensor, val
from ...rewrites.walk import replaces_calls
from ..lowering.core import TABLE_SPAN
from .fold_constant_tables import describe, free_name, memory_like

aten = torch.ops.aten

_PERIODS = (2, 4, 8, 16, 32, 64)


@replaces_calls(aten.index.Tensor, same_strides=True)
def order_within_groups(editor: Editor, node: fx.Node) -> fx.Node | None:
    """Index groups by the order that all of them have."""
    x, dim, index = _reordered(node)
    order = None if index is None else _order(index)
    if x is None or index is None or order is None:
        return None
    sizes, period, module = list(val(x).shape), len(order), index.graph.owning_module
    promised = val(index).new_empty(period)
    with compat.plain_eager():
        table = memory_like(promised, [period]).copy_(order)
    constant = hold_constant(module, free_name(module), table, node)
    constant.meta["val"] = promised
    groups = editor.call(aten.view.default, x, [*sizes[:dim], sizes[dim] // period, period, *sizes[dim + 1 :]])
    ordered = editor.call(aten.index.Tensor, groups, [*[None] * (dim + 1), constant])
    describe(module, constant, table)
    if not val(ordered).is_contiguous():
        return ordered  # of other strides: it is dropped
    return editor.call(aten.view.default, ordered, sizes)


def _reordered(node: fx.Node) -> tuple[fx.Node | None, int, fx.Node | None]:
    """What is reordered along one dim, the dim, and the index, which has as many elements."""
    x, indices = node.args
    found: list[tuple[int, Any]] = [(dim, index) for dim, index in enumerate(indices) if index is not None]  # type: ignore[arg-type]
    if len(found) != 1 or not is_tensor(x) or not isinstance(found[0][1], fx.Node) or not is_tensor(found[0][1]):
        return None, 0, None
    ((dim, index),) = found
    known = all(isinstance(size, int) for size in (*val(x).shape, *val(x).stride(), *val(index).shape))
    fits = known and val(x).is_contiguous() and tuple(val(index).shape) == (val(x).shape[dim],)
    return (x, dim, index) if fits else (None, 0, None)  # type: ignore[return-value]


def _order(index: fx.Node) -> torch.Tensor | None:
    """The order within the smallest groups that are all ordered alike."""
    table = _table(index)
    if table is None or table.dtype not in (torch.int32, torch.int64):
        return None
    with compat.plain_eager():
        for period in _PERIODS:
            if len(table) % period or len(table) <= period:
                continue
            groups = table.long().view(-1, period)
            order = groups[0].clone()
            first = torch.arange(0, len(table), period).unsqueeze(1)
            inside = 0 <= int(order.min()) <= int(order.max()) < period
            if inside and torch.equal(groups - first, order.expand_as(groups)):
                return order.to(table.dtype)
    return None


def _table(index: fx.Node) -> torch.Tensor | None:
    """The numbers of a constant, on the CPU."""
    if index.op == "get_attr" and TABLE_SPAN in index.meta:
        with compat.plain_eager():
            return getattr(index.graph.owning_module, str(index.target)).cpu()
    return literal(index.all_input_nodes[0] if index.target is aten.lift_fresh_copy.default else index)
