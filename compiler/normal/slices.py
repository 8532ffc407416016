"""Slices: one spelling for the parts of a tensor along a dim.

chunk(x, 2, -1)[1], split(x, 4, -1)[1], x[..., 4:8]    ->    slice(x, 2, 4, END)         for 8 elements
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_tensor, rank, sees, shape, val
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import known, known_equal, same_shape
from . import builders
from .analysis import holds_softmax
from .reshape_groups import regroup

aten = torch.ops.aten

_CUTS = ("aten.chunk", "aten.split", "aten.split_with_sizes", "aten.tensor_split")


@respelling("getitem")
def piece(node: fx.Node, edit: Editor) -> fx.Node | None:
    """getitem(chunk(x, 2, -1), 0), also of split, split_with_sizes and tensor_split  ->  slice(x, dim, start, end)."""
    call, index = node.args
    if not sees(node, call, *_CUTS) or not isinstance(index, int):
        return None
    x, dim = call.args[0], arguments(call).get("dim", 0)
    if not is_tensor(x) or not isinstance(dim, int) or holds_softmax(x):  # parts of probabilities: see parts.py
        return None
    dim %= rank(x)
    sizes = [part.shape[dim] for part in val(call)]
    start = sum(sizes[:index])
    return builders.part(edit, node, x, dim, start, start + sizes[index])


@respelling("aten.slice")
def to_the_end(node: fx.Node, edit: Editor) -> fx.Node | None:
    """slice(x, -1, 4, 8) of 8 elements  ->  slice(x, 2, 4, END)."""
    if node.target is not aten.slice.Tensor:
        return None
    values = arguments(node)
    x, dim, start, end, step = (values[n] for n in ("self", "dim", "start", "end", "step"))
    if not is_tensor(x) or not all(isinstance(n, int) for n in (dim, start, step)) or end is None:
        return None
    if known_equal(val(end), builders.END) or not known(val(end) >= shape(x)[dim]) or holds_softmax(x):
        return None
    return edit.call(aten.slice.Tensor, x, dim % rank(x), start, builders.END, *([step] if step != 1 else []))


@respelling("aten.narrow")
def narrowed(node: fx.Node, edit: Editor) -> fx.Node | None:
    """narrow(x, -1, 4, 4)  ->  slice(x, 2, 4, 8)."""
    x, dim, start, length = node.args[:4]
    if node.target is not aten.narrow.default or not all(isinstance(n, int) for n in (dim, start, length)) or start < 0:
        return None
    return builders.part(edit, node, x, dim % rank(x), start, start + length)


@respelling("getitem")
def unbound(node: fx.Node, edit: Editor) -> fx.Node | None:
    """getitem(unbind(x, d), i)  ->  select(x, d, i); of reshape(x, [..., n, 2]) a slice, as in `one_of_regrouped`."""
    call, index = node.args
    if not sees(node, call, "aten.unbind") or not isinstance(index, int):
        return None
    x, dim = call.args[0], arguments(call).get("dim", 0)
    picked = _picked(node, edit, x, dim, index)
    return edit.call(aten.select.int, x, dim % rank(x), index) if picked is None and index >= 0 else picked


@respelling("aten.select")
def one_of_regrouped(node: fx.Node, edit: Editor) -> fx.Node | None:
    """select(reshape(x, [..., n, 2]), -1, i)  ->  slice(x, d, i, END, 2); of [..., 2, n]: slice(x, d, i * n, END)."""
    if node.target is not aten.select.int:
        return None
    return _picked(node, edit, *node.args)


def _picked(node: fx.Node, edit: Editor, view: Any, dim: Any, index: Any) -> fx.Node | None:
    """Element `index` of dim `dim` of a view that splits the last dim of a tensor in two, as a slice of the tensor.

    The dims before these two may be permuted, as heads that are moved before rows after the split.
    """
    order = None
    if sees(node, view, "aten.permute"):
        view, order = view.args[0], [d % rank(view) for d in view.args[1]]
    if not sees(node, view, "aten.reshape", "aten.view", "aten.unflatten") or not isinstance(dim, int):
        return None
    if rank(view) < 2 or (order is not None and order[-2:] != [rank(view) - 2, rank(view) - 1]):
        return None  # flattened, so that nothing is split, or permuted
    n, (*lead, outer, inner) = rank(view), shape(view)
    dim %= n
    if dim < n - 2 or not all(isinstance(s, int) for s in (outer, inner, index)) or holds_softmax(view):
        return None
    before = lead if order is None else [lead[d] for d in order[:-2]]
    if not any(same_shape(shape(node), [*before, half]) for half in (outer, inner)) or _splits_more(view):
        return None
    x = builders.reshape(edit, node, view.args[0], [*lead, outer * inner])
    if order is not None:
        x = builders.permute(edit, node, x, order[:-1])
    if dim == n - 1:
        start, step = index % inner, inner
        end: Any = builders.END
    else:
        start, step = (index % outer) * inner, 1
        end = builders.end_of(start + inner, shape(x)[-1])
    return edit.call(aten.slice.Tensor, x, rank(x) - 1, start, end, *([step] if step != 1 else []))


def _splits_more(view: fx.Node) -> bool:
    """Whether a view splits more than the last dim, as heads and pairs of the result of a layer."""
    groups = regroup(shape(view.args[0]), shape(view))
    return groups is None or not all(g.is_split for g in groups) or len(groups[-1].new) < 2


SLICES: tuple[Respelling, ...] = (piece, narrowed, unbound, one_of_regrouped, to_the_end)
