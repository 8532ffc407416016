"""Sums over rows that a mask chooses, without asking how many rows these are.

    sum(x[mask], 0)     ->     sum(where(mask[:, None], x, 0), 0)

What a mask chooses has a size that only the data tells: a GPU would be waited for, and the program could not be
captured. Gradients contain such sums: of `e` in `h[mask] = e`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, op_name, rank, shape, val
from ...rewrites.symbolic import same_shape
from ...rewrites.walk import replaces_calls

aten = torch.ops.aten


@replaces_calls(aten.sum.default, aten.sum.dim_IntList)
def sum_by_mask(editor: Editor, node: fx.Node) -> fx.Node | None:
    """Replace rows that are chosen to be summed only."""
    rows = node.args[0]
    before = _dims_before_mask(rows) if rows.target is aten.index.Tensor else None  # type: ignore[union-attr, arg-type]
    if before is None or any(before not in _summed(one, rows) for one in rows.users):  # type: ignore[union-attr, arg-type]
        return None
    return _whole(editor, node, rows, before)  # type: ignore[arg-type]


def _dims_before_mask(node: fx.Node) -> int | None:
    """The number of dims before those that the only index, a mask on the tensor's device, covers; None otherwise."""
    x, indices = node.args
    given = [(k, index) for k, index in enumerate(indices) if index is not None]
    if len(given) != 1 or dtype(given[0][1]) != torch.bool or val(given[0][1]).device != val(x).device:
        return None
    before, mask = given[0]
    covered = shape(x)[before : before + rank(mask)]
    return before if rank(mask) and same_shape(covered, shape(mask)) else None


def _summed(node: fx.Node, rows: fx.Node) -> tuple[int, ...]:
    """The dims of `rows` over which a call sums; none for other calls."""
    if op_name(node) != "aten.sum":
        return ()
    dims = arguments(node).get("dim")
    return tuple(range(rank(rows))) if not dims else tuple(d % rank(rows) for d in dims)


def _whole(editor: Editor, node: fx.Node, rows: fx.Node, before: int) -> fx.Node:
    """The sum over all rows, of zeros where the mask is false."""
    x, mask = rows.args[0], rows.args[1][before]
    after = rank(x) - before - rank(mask)
    wide = editor.call(aten.view.default, mask, [*shape(mask), *[1] * after]) if after else mask
    chosen = editor.call(aten.where.ScalarOther, wide, x, False if dtype(x) == torch.bool else 0)
    dims = [d for one in _summed(node, rows) for d in _covered(one, before, rank(mask))]
    total = editor.call(aten.sum.dim_IntList, chosen, dims, dtype=arguments(node).get("dtype"))
    return total if same_shape(shape(total), shape(node)) else editor.call(aten.view.default, total, list(shape(node)))


def _covered(dim: int, before: int, masked: int) -> Iterator[int]:
    """The dims of the tensor that a dim of the chosen rows stands for."""
    first = dim if dim <= before else dim + masked - 1
    yield from range(first, first + (masked if dim == before else 1))
