"""The column of a sink in a backward: one more score, whose key has the value 0.

%w  = slice(%p, 3, 0, 64)             ->   %dp = slice_backward(%dw, [2, 8, 64, 65], 3, 0, 64, 1)
%x  = cat([%s, %sink], 3)                  %dx = _softmax_backward_data(%dp, %p)
                                           %ds = slice(%dx, 3, 0, 64);  %dsink = slice(%dx, 3, 64, 65)
"""

from __future__ import annotations

from typing import Any

from torch import fx

from ...common.formula import packet
from ..description import Attention
from .forward_backward import NoBackwardError


def without_sink(gradient: Any, attention: Attention) -> Any:
    """The gradient of the weights that are multiplied with v, from that of all.

    Raises:
        NoBackwardError: it is not made of that.
    """
    while packet(gradient) == "aten.slice_backward":
        source, sizes, _, start, _, step = gradient.args
        shape = [int(size) for size in source.meta["val"].shape]
        ends = [int(size) for size in sizes]
        cut = shape[:-1] == ends[:-1] and shape[-1] == attention.key.extent and ends[-1] - shape[-1] in (0, 1)
        if (start, step) != (0, 1) or not cut:
            raise NoBackwardError(
                "sink-gradient", f"{gradient.name} pads {shape} to {ends}, not by a column for the sink", gradient
            )
        gradient = source
    return gradient


def split_sink(whole: fx.Node, attention: Attention) -> tuple[fx.Node, fx.Node | None]:
    """The gradient of scores, and of the sink where somebody wants it, from that of all columns.

    Raises:
        NoBackwardError: columns are used together.
    """
    if attention.sink is None:
        return whole, None
    keys = attention.key.extent
    parts = {_columns(user, keys): user for user in whole.users}
    scores, sink = parts.pop((0, keys), None), parts.pop((keys, keys + 1), None)
    if scores is None or parts or len(whole.users) != 1 + (sink is not None):
        raise NoBackwardError("sink-gradient", f"{whole.name} is not split into scores and sink", whole)
    if sink is not None and any(packet(user) != "aten.sum" for user in sink.users):
        raise NoBackwardError("sink-gradient", f"{sink.name} is not summed", sink)
    return scores, sink


def _columns(node: fx.Node, keys: int) -> tuple[int, int] | None:
    """The columns that a slice along the last dim takes."""
    if packet(node) != "aten.slice" or len(node.args) not in (3, 4):
        return None
    _, dim, start, *end = node.args
    sizes = node.meta["val"].shape
    last = dim in (-1, len(sizes) - 1) and isinstance(start, int)
    stop = end[0] if end and isinstance(end[0], int) else keys + 1
    known = last and int(sizes[-1]) == min(stop, keys + 1) - start  # type: ignore[operator, type-var]
    return (start, min(stop, keys + 1)) if known else None  # type: ignore[return-value, type-var]
