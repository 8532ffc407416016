"""Slices: one spelling for the parts of a tensor along a dim.

chunk(x, 2, -1)[1], split(x, 4, -1)[1], x[..., 4:8]    ->    slice(x, 2, 4, END)         for 8 entries
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_tensor, rank, sees, shape, val
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import hint, known, known_equal
from .analysis import holds_softmax

aten = torch.ops.aten

_END = torch.iinfo(torch.int64).max  # what x[n:] has for the end


@respelling("getitem")
def piece(node: fx.Node, edit: Editor) -> fx.Node | None:
    """getitem(chunk(x, 2, -1), 0), also of split and split_with_sizes  ->  slice(x, dim, start, end)."""
    call, index = node.args
    if not sees(node, call, "aten.chunk", "aten.split", "aten.split_with_sizes") or not isinstance(index, int):
        return None
    x, dim = call.args[0], arguments(call).get("dim", 0)
    if not is_tensor(x) or not isinstance(dim, int) or holds_softmax(x):  # parts of probabilities: see parts.py
        return None
    dim %= rank(x)
    sizes = [part.shape[dim] for part in val(call)]
    start = sum(sizes[:index])
    if hint(start) is None or hint(sizes[index]) is None:  # of data: a slice is as long as it can be, a part as told
        return None
    return edit.call(aten.slice.Tensor, x, dim, start, _end(start + sizes[index], shape(x)[dim]))


@respelling("aten.slice")
def to_the_end(node: fx.Node, edit: Editor) -> fx.Node | None:
    """slice(x, -1, 4, 8) of 8 entries  ->  slice(x, 2, 4, END)."""
    if node.target is not aten.slice.Tensor:
        return None
    values = arguments(node)
    x, dim, start, end, step = (values[n] for n in ("self", "dim", "start", "end", "step"))
    if not is_tensor(x) or not all(isinstance(n, int) for n in (dim, start, step)) or end is None:
        return None
    if known_equal(val(end), _END) or not known(val(end) >= shape(x)[dim]) or holds_softmax(x):
        return None
    return edit.call(aten.slice.Tensor, x, dim % rank(x), start, _END, *([step] if step != 1 else []))


def _end(end: Any, size: Any) -> Any:
    return _END if known_equal(end, size) else end


SLICES: tuple[Respelling, ...] = (piece, to_the_end)
