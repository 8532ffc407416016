"""Products that were padded for the library's sake, as what they were before: a kernel of our own needs no padding.

%wide = aten.constant_pad_nd(%w, [0, 0, 0, 7])
%y = aten.linear(%x, %wide)                       ->    linear(%x, %w), its rows written where %c has them
%s = aten.slice(%y, 2, 0, 50257);  %c = aten.clone(%s)
"""

from __future__ import annotations

from typing import Any

from torch import fx

from ....rewrites.compat import argument
from ..common.formula import packet

PAD, SLICE = "aten.constant_pad_nd", "aten.slice"


def crop_of(call: fx.Node, columns: int) -> fx.Node | None:
    """The slice that leaves the first `columns` of a product's columns, where nothing else reads the product."""
    if len(call.users) != 1:
        return None
    user = next(iter(call.users))
    if packet(user) != SLICE or user.args[0] is not call:
        return None
    rank = len(call.meta["val"].shape)
    dim, start, step = (argument(user, name) for name in ("dim", "start", "step"))
    last = isinstance(dim, int) and dim % rank == rank - 1
    return user if last and start in (0, None) and step in (1, None) and user.meta["val"].shape[-1] == columns else None


def before_padding(node: Any, dim: int) -> fx.Node | None:
    """The value before padding with zeros after its end along `dim` alone; None where it was not padded so."""
    if not isinstance(node, fx.Node) or packet(node) != PAD:
        return None
    source, pads = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    rank = len(node.meta["val"].shape)
    place = 2 * (rank - 1 - dim) + 1  # pairs of (before, after), the last dim first
    if not isinstance(source, fx.Node) or len(pads) <= place or any(n for k, n in enumerate(pads) if k != place):
        return None
    return source if type(pads[place]) is int and pads[place] >= 0 and not argument(node, "value") else None
