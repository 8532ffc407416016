"""Computes the gradients of lookups in tables of few rows as sums, without atomics.

    table of 32 rows, 262,144 lookups

    embedding_dense_backward(g, index, 32, -1, False)      ->   sum(where(index == arange(32)[:, None], g, 0), lookups)
    index_put(zeros, [index], g, accumulate=True)          ->   the same, the gradient of table[index]

Thousands of lookups add to each row, such as to a bucket of relative positions, a type of tokens, or a kind of bonds. A
GPU does such additions one after the other, so that their time is that of the lookups in one row. Sums compare each
lookup with each row instead, rows times as often as there are lookups and columns; their order is the same in each run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_tensor, op_name, rank, shape, val
from ...rewrites.symbolic import hint, known_equal
from ...rewrites.walk import replaces_calls
from .zeros import is_zeros

aten = torch.ops.aten

_MANY = 64  # least lookups a row for which additions wait for each other
_WORK = 1 << 15  # most rows * rows * columns: comparisons that replace additions which wait


@dataclass(frozen=True)
class Lookups:
    """The gradient of a lookup in a table of `rows` rows.

    Args:
        source: gradients of the rows that were looked up: (*lookups, *row).
        index: the rows that were looked up: (*lookups).
        rows: the number of rows of the table.
        padding: the row whose gradient is 0; negative if there is none.
        wraps: whether negative indices count from the end.
    """

    source: fx.Node
    index: fx.Node
    rows: int
    padding: int
    wraps: bool


@replaces_calls(aten.embedding_dense_backward.default, aten.index_put.default)
def sum_few_rows(editor: Editor, node: fx.Node) -> fx.Node | None:
    """Replace a scattered sum into few rows by a sum over all lookups."""
    found = _lookups(node)
    return _summed(editor, node, found) if found is not None and _pays(found) else None


def _lookups(node: fx.Node) -> Lookups | None:
    name = op_name(node)
    if name == "aten.embedding_dense_backward":
        given = arguments(node)
        if given["scale_grad_by_freq"] or not isinstance(given["num_weights"], int):
            return None
        padding = given["padding_idx"]
        return Lookups(given["grad_output"], given["indices"], given["num_weights"], padding, wraps=False)
    if name == "aten.index_put":
        return _put(node)
    return None


def _put(node: fx.Node) -> Lookups | None:
    """The lookups of the gradient of ``table[index]``, whose forward in the graph checks the range of the index."""
    given = arguments(node)
    zeros, places, source = given["self"], given["indices"], given["values"]
    if not given["accumulate"] or len(places) != 1 or not is_tensor(places[0]) or not is_zeros(zeros):
        return None
    (index,), table = places, val(zeros)
    looked_up = any(user < node and _looks_up(user, index, table) for user in index.users)
    whole = val(index).dtype in (torch.int64, torch.int32) and rank(source) == rank(index) + rank(node) - 1
    if not looked_up or not whole or type(table.shape[0]) is not int:
        return None
    return Lookups(source, index, table.shape[0], -1, wraps=True)


_LOOKUPS = {aten.index.Tensor, aten._unsafe_index.Tensor}


def _looks_up(user: fx.Node, index: fx.Node, table: torch.Tensor) -> bool:
    """Whether a call gives the rows of a tensor with as many rows as `table`."""
    if user.target not in _LOOKUPS:
        return False
    source, places = user.args[:2]
    return list(places) == [index] and known_equal(shape(source)[0], table.shape[0])  # type: ignore[arg-type]


def _pays(found: Lookups) -> bool:
    source, index = val(found.source), val(found.index)
    lookups, columns = hint(index.numel()), hint(math.prod(source.shape[index.dim() :]))
    if not source.dtype.is_floating_point or found.rows < 1 or lookups is None or columns is None:
        return False
    return lookups >= _MANY * found.rows and found.rows**2 * columns <= _WORK


def _summed(editor: Editor, node: fx.Node, found: Lookups) -> fx.Node:
    """Lookups stay dims of their own, behind that of rows: the source may have any strides."""
    index, kind, lookups = found.index, val(found.index).dtype, rank(found.index)
    if found.wraps:
        last = editor.call(aten.add.Tensor, index, found.rows)
        index = editor.call(aten.where.self, editor.call(aten.lt.Scalar, index, 0), last, index)
    rows = editor.call(aten.arange.default, found.rows, dtype=kind, device=val(index).device)
    rows = editor.call(aten.view.default, rows, [found.rows, *[1] * lookups])
    hits = editor.call(aten.eq.Tensor, editor.call(aten.unsqueeze.default, index, 0), rows)
    if found.padding >= 0:
        hits = editor.call(aten.logical_and.default, hits, editor.call(aten.ne.Scalar, rows, found.padding))
    for _ in range(rank(node) - 1):
        hits = editor.call(aten.unsqueeze.default, hits, -1)
    source = editor.call(aten.unsqueeze.default, found.source, 0)
    kept = editor.call(aten.where.ScalarOther, hits, source, 0)
    return editor.call(aten.sum.dim_IntList, kept, list(range(1, 1 + lookups)))
