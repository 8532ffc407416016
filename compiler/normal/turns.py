"""Rotations of pairs: the negated half comes first, and halves are joined by `cat`.

x * cos + cat([b, -a]) * sin     ->   x * cos + cat([-b, a]) * (sin * -1)
x * cos - cat([-b, a]) * sin     ->   x * cos + cat([-b, a]) * (sin * -1)
stack([-b, a], -2).flatten(-2)   ->   cat([-b, a], -1)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, rank, sees, shape
from ...rewrites.respell import Respelling, respelling
from . import builders
from .analysis import is_float, last, like
from .reshape_groups import ReshapedDims, regroup
from .scale import scale_of

aten = torch.ops.aten


@respelling("aten.reshape")
def stacked_in_a_row(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(stack([a, b], -2), [..., 2 * n])  ->  cat([a, b], -1), of any dim and number of parts."""
    stack = node.args[0]
    if not sees(node, stack, "aten.stack"):
        return None
    parts, dim = stack.args[0], arguments(stack).get("dim", 0)
    groups = regroup(shape(stack), shape(node))
    if groups is None or not isinstance(dim, int) or len(parts) < 2:
        return None
    dim, n = dim % rank(stack), rank(node)
    kept = [ReshapedDims((d,), (d,)) for d in range(dim)]
    if groups != [
        *kept,
        ReshapedDims((dim, dim + 1), (dim,)),
        *[ReshapedDims((d + 1,), (d,)) for d in range(dim + 1, n)],
    ]:
        return None
    return edit.call(aten.cat.default, list(parts), dim if dim < n - 1 else -1)


@respelling("aten.complex")
def complex_of_pairs(node: fx.Node, edit: Editor) -> fx.Node | None:
    """complex(a, b)  ->  view_as_complex(stack([a, b], -1))."""
    a, b = node.args
    if not like(a, b) or not is_float(a) or dtype(a) == torch.float16:
        return None
    return edit.call(aten.view_as_complex.default, edit.call(aten.stack.default, [a, b], -1))


@respelling("aten.stack")
def pairs_of_complex(node: fx.Node, edit: Editor) -> fx.Node | None:
    """stack([real(z), imag(z)], -1)  ->  view_as_real(z)."""
    parts, dim = node.args[0], arguments(node).get("dim", 0)
    if len(parts) != 2 or not last(node, dim):
        return None
    taken = [_part_of_complex(node, part) for part in parts]
    (z, first), (other, second) = taken
    return (
        edit.call(aten.view_as_real.default, z) if z is not None and z is other and (first, second) == (0, 1) else None
    )


def _part_of_complex(user: fx.Node, node: Any) -> tuple[fx.Node | None, int]:
    """(z, 0) of real(z), and (z, 1) of imag(z)."""
    if sees(user, node, "aten.real", "aten.imag"):
        z = node.args[0]
        return (z, int(sees(user, node, "aten.imag"))) if dtype(z).is_complex else (None, 0)
    if sees(user, node, "aten.select") and sees(user, node.args[0], "aten.view_as_real"):
        x, dim, index = node.args
        return (x.args[0], index) if last(x, dim) else (None, 0)
    return None, 0


@respelling("aten.mul")
def turned_back(node: fx.Node, edit: Editor) -> fx.Node | None:
    """mul(cat([b, mul(a, -1)], -1), sin)  ->  mul(cat([mul(b, -1), a], -1), mul(sin, -1))."""
    for turned, sin in (node.args, node.args[::-1]):
        parts = _parts(node, turned)
        if parts is None or not is_float(sin) or not is_float(node) or rank(sin) == 0:
            continue
        first, second = parts
        if _is_negated(node, first) or not _is_negated(node, second):
            continue
        joined = edit.call(aten.cat.default, [builders.scaled(edit, first, -1), second.args[0]], *turned.args[1:])
        return edit.call(aten.mul.Tensor, joined, builders.scaled(edit, sin, -1))
    return None


@respelling("aten.sub")
def turned_back_by_difference(node: fx.Node, edit: Editor) -> fx.Node | None:
    """sub(mul(x, cos), mul(cat([mul(b, -1), a], -1), sin))  ->  add(mul(x, cos), mul(cat(...), mul(sin, -1)))."""
    first, second = node.args[:2]
    if arguments(node).get("alpha", 1) != 1 or not sees(node, second, "aten.mul") or not like(node, second):
        return None
    for turned, sin in (second.args, second.args[::-1]):
        parts = _parts(node, turned)
        if parts is not None and _is_negated(node, parts[0]) and is_float(sin) and rank(sin) > 0:
            turn = edit.call(aten.mul.Tensor, turned, builders.scaled(edit, sin, -1))
            return edit.call(aten.add.Tensor, first, turn)
    return None


def _parts(user: fx.Node, node: Any) -> list[fx.Node] | None:
    """The two parts that `node` joins along the last dim."""
    if not sees(user, node, "aten.cat") or not is_float(node) or len(node.args[0]) != 2:
        return None
    return list(node.args[0]) if last(node, arguments(node).get("dim", 0)) else None


def _is_negated(user: fx.Node, node: Any) -> bool:
    return is_tensor(node) and sees(user, node, "aten.mul") and scale_of(node) == -1


TURNS: tuple[Respelling, ...] = (
    stacked_in_a_row,
    complex_of_pairs,
    pairs_of_complex,
    turned_back,
    turned_back_by_difference,
)
