"""Replaces the gradients of gathers at consecutive positions, which scatter and add, by padding.

    index = arange(s, s + n)                         g of n entries along dim d

    index_add(zeros, d, index, g)                ->  constant_pad_nd(g, s zeros before, the rest after)
    index_put(zeros, [.., index, ..], g, True)   ->  the same; also of scatter_add, with the index expanded
    embedding_dense_backward(g, index, ...)      ->  the same of g's sum over batches

The padding reads the gradient directly, without atomics and without zeros or an index in memory. A position out of
range is an error of the program, so that a sum is only replaced if its range is known to fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, op_name, rank, shape, val
from ...rewrites.moves import ALIASES, COPIES, RESHAPES
from ...rewrites.symbolic import known, known_equal, same_shape
from ...rewrites.walk import replaces_calls
from .zeros import is_zeros

aten = torch.ops.aten

_SAME = ALIASES | COPIES | {"aten.lift_fresh_copy", "aten._to_copy"}


@dataclass(frozen=True)
class Count:
    """An index with ``index[.., i, ..] == start + i`` along `dim`, for all positions in other dims."""

    start: Any
    dim: int


@dataclass(frozen=True)
class Scatter:
    """``zeros.narrow(dim, start, size) += source``, the sizes of both but for `dim` equal.

    Args:
        source: the tensor that is added.
        dim: the dim with consecutive positions.
        start: the first position.
        size: the number of positions.
        batch: dims of the source to sum over first, for the gradient of an embedding.
    """

    source: fx.Node
    dim: int
    start: Any
    size: Any
    batch: tuple[int, ...] = ()


def counted(node: Any) -> Count | None:
    """An index as a `Count`, seen through views, casts and sums with numbers; None if it is none."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or not isinstance(val(node), torch.Tensor):
        return None
    if val(node).dtype not in (torch.int64, torch.int32):
        return None
    name = op_name(node)
    if name in ("aten.arange", "prims.iota"):
        return _range(node)
    found = counted(node.args[0]) if node.args else None
    if found is None or name in _SAME:
        return found
    if name in RESHAPES:
        return _regrouped(found, shape(node.args[0]), shape(node))
    if name == "aten.expand":
        return _expanded(found, shape(node.args[0]), shape(node))
    if name in ("aten.add", "aten.sub"):
        return _moved(found, node, 1 if name == "aten.add" else -1)
    return None


def _range(node: fx.Node) -> Count | None:
    values = arguments(node)
    start, step = val(values.get("start", 0)), val(values.get("step", 1))
    if not isinstance(start, (int, torch.SymInt)) or not known_equal(step, 1):
        return None
    return Count(start, 0)


def _regrouped(count: Count, before: Sequence[Any], after: Sequence[Any]) -> Count | None:
    """The count after a view that only adds or drops dims of size 1."""
    wide = [[d for d, n in enumerate(sizes) if not known_equal(n, 1)] for sizes in (before, after)]
    if wide[0] != [count.dim] or len(wide[1]) != 1 or not known_equal(before[count.dim], after[wide[1][0]]):
        return None
    return replace(count, dim=wide[1][0])


def _expanded(count: Count, before: Sequence[Any], after: Sequence[Any]) -> Count | None:
    dim = count.dim + len(after) - len(before)
    return replace(count, dim=dim) if known_equal(before[count.dim], after[dim]) else None


def _moved(count: Count, node: fx.Node, sign: int) -> Count | None:
    values = arguments(node)
    other, alpha = val(values.get("other")), values.get("alpha", 1)
    if not isinstance(other, (int, torch.SymInt)) or isinstance(other, bool) or alpha != 1:
        return None
    return replace(count, start=count.start + sign * other)


def _index_add(given: Mapping[str, Any]) -> Scatter | None:
    zeros, index = given["self"], given["index"]
    count = counted(index)
    if count is None or given["alpha"] != 1 or rank(index) != 1 or not is_zeros(zeros):
        return None
    return Scatter(given["source"], given["dim"] % rank(zeros), count.start, shape(index)[0])


def _index_put(given: Mapping[str, Any]) -> Scatter | None:
    indices = [(dim, index) for dim, index in enumerate(given["indices"]) if index is not None]
    if len(indices) != 1 or not is_zeros(given["self"]):
        return None
    ((dim, index),) = indices
    count = counted(index)
    return None if count is None or rank(index) != 1 else Scatter(given["values"], dim, count.start, shape(index)[0])


def _scatter_add(given: Mapping[str, Any]) -> Scatter | None:
    zeros, index, source = given["self"], given["index"], given["src"]
    count = counted(index)
    if count is None or not is_zeros(zeros) or count.dim != given["dim"] % rank(zeros):
        return None
    if not same_shape(shape(index), shape(source)):
        return None
    return Scatter(source, count.dim, count.start, shape(index)[count.dim])


def _embedding(given: Mapping[str, Any]) -> Scatter | None:
    indices, skipped = given["indices"], val(given["padding_idx"])
    count = counted(indices)
    if count is None or given["scale_grad_by_freq"]:
        return None
    size = shape(indices)[count.dim]
    if not (known(skipped < 0) or known(skipped < count.start) or known(skipped >= count.start + size)):
        return None
    batch = tuple(d for d in range(rank(indices)) if d != count.dim)
    return Scatter(given["grad_output"], 0, count.start, size, batch)


_SCATTERS: dict[Any, Any] = {
    aten.index_add.default: _index_add,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.scatter_add.default: _scatter_add,
    aten.embedding_dense_backward.default: _embedding,
}


@replaces_calls(*_SCATTERS)
def pad_counted_scatters(editor: Editor, node: fx.Node) -> fx.Node | None:
    """Replace a scattered sum at consecutive positions by padding."""
    found = _SCATTERS[node.target](arguments(node))
    return _padded(editor, node, found) if found is not None and _fits(node, found) else None


def _fits(node: fx.Node, found: Scatter) -> bool:
    """Whether all positions are known to be in range, and sizes and dtypes are those of a padding."""
    given = [n for d, n in enumerate(shape(found.source)) if d not in found.batch]
    wanted, dim = shape(node), found.dim
    if len(given) != len(wanted) or val(found.source).dtype != val(node).dtype or val(node).dtype == torch.bool:
        return False
    if not known_equal(given[dim], found.size):  # a single value for all positions
        return False
    others = [known_equal(a, b) for d, (a, b) in enumerate(zip(given, wanted, strict=True)) if d != dim]
    return all(others) and known(found.start >= 0) and known(found.start + found.size <= wanted[dim])


def _padded(editor: Editor, node: fx.Node, found: Scatter) -> fx.Node:
    source, dim = found.source, found.dim
    if found.batch:
        source = editor.call(aten.sum.dim_IntList, source, list(found.batch))
    after = shape(node)[dim] - found.start - found.size
    if known_equal(found.start, 0) and known_equal(after, 0):
        return editor.call(aten.clone.default, source)
    ends = [0, 0] * (rank(node) - 1 - dim) + [found.start, after]
    return editor.call(aten.constant_pad_nd.default, source, ends, 0)
