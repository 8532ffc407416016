"""Views: one `permute` for each reordering of dims, one `reshape` for each regrouping, one `expand` for broadcasts.

Calls that change nothing (copies, slices of all, casts to the same type) are removed: a mirror has no memory layout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor
from ...rewrites.effects import wants_gradient
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, rank, sees, shape, val
from ...rewrites.respell import respelling
from ...rewrites.symbolic import known_equal
from . import builders
from .analysis import is_literal, like

aten = torch.ops.aten

_RESHAPES = {
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten._reshape_alias.default,
    aten.flatten.using_ints, aten.unflatten.int, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.view_as.default, aten.reshape_as.default, aten.ravel.default,
}  # fmt: skip


@respelling(
    "aten.permute", "aten.transpose", "aten.t", "aten.mT", "aten.mH", "aten.adjoint", "aten.numpy_T", "aten.swapaxes",
    "aten.swapdims", "aten.movedim", "aten.moveaxis", "aten.matrix_H",
)  # fmt: skip
def permutation(node: fx.Node, edit: Editor) -> fx.Node | None:
    """transpose(x, 1, 2), x.mT, movedim(x, ...), permute(permute(x, p), q)  ->  permute(x, [nonnegative dims])."""
    x, dims = node.args[0], _order(node)
    if dims is None or not is_tensor(x) or dtype(x).is_complex:
        return None
    settled = node.target is aten.permute.default and list(node.args[1]) == dims
    if settled and not sees(node, x, "aten.permute") and builders.reorders(x, dims):
        return None
    return builders.permute(edit, node, x, dims)


def _order(node: fx.Node) -> list[int] | None:
    """The order of dimensions of a call that permutes."""
    name, n = op_name(node), rank(node)
    given = list(arguments(node).values())[1:]
    if name == "aten.permute":
        return [d % n for d in given[0]]
    if name == "aten.numpy_T" or (name == "aten.t" and n == 2):
        return list(range(n))[::-1]
    if name == "aten.t":
        return list(range(n))
    if name in ("aten.movedim", "aten.moveaxis"):
        return _moved(n, *given)
    pair = [-2, -1] if name in ("aten.mT", "aten.mH", "aten.adjoint", "aten.matrix_H") else given
    return _swapped(n, pair)


def _swapped(n: int, pair: list[Any]) -> list[int] | None:
    if n == 0 or not all(isinstance(d, int) for d in pair):
        return None
    order = list(range(n))
    a, b = pair
    order[a], order[b] = order[b], order[a]
    return order


def _moved(n: int, source: Any, destination: Any) -> list[int] | None:
    if n == 0:  # a 0-d tensor has dims 0 and -1 nevertheless
        return None
    sources = [d % n for d in ([source] if isinstance(source, int) else source)]
    targets = [d % n for d in ([destination] if isinstance(destination, int) else destination)]
    rest = iter(d for d in range(n) if d not in sources)
    place = dict(zip(targets, sources, strict=True))
    return [place[d] if d in place else next(rest) for d in range(n)]


@respelling(*sorted({f"aten.{compat.schema(target).name.split('::')[-1]}" for target in _RESHAPES}))
def regrouping(node: fx.Node, edit: Editor) -> fx.Node | None:
    """view(x, [2, -1]), unsqueeze(x, 1), flatten(x), reshape(reshape(x, a), b)  ->  reshape(x, [explicit sizes])."""
    x = node.args[0]
    if node.target not in _RESHAPES or not is_tensor(x):
        return None
    if _is_settled(node) and not sees(node, x, "aten.reshape") and not like(node, x):
        return None
    return builders.reshape(edit, node, x, shape(node))


def _is_settled(node: fx.Node) -> bool:
    if node.target not in (aten.reshape.default, aten.expand.default) or len(node.args) < 2:
        return False
    return not any(isinstance(s, int) and s < 0 for s in node.args[1])


@respelling("aten.reshape", "aten.permute", "aten.expand", "aten.slice", "aten.select", "aten.to")
def repeated(node: fx.Node, edit: Editor) -> fx.Node | None:
    """reshape(x, sizes) written twice  ->  the first of the two; also permute, expand, slice, select, and casts."""
    x = node.args[0]
    if not is_tensor(x) or len(x.users) < 2:
        return None
    return next((other for other in x.users if other < node and _is_same_call(node, other)), None)


def _is_same_call(node: fx.Node, other: fx.Node) -> bool:
    if "opaque" in other.meta or other.meta.get("region") != node.meta.get("region"):
        return False
    return other.target is node.target and other.args == node.args and other.kwargs == node.kwargs


@respelling("aten.select", "aten.squeeze_copy")
def only_entry(node: fx.Node, edit: Editor) -> fx.Node | None:
    """select(x, d, 0) of a dimension of size 1  ->  reshape(x, sizes without d)."""
    x = node.args[0]
    if node.target is not aten.select.int or not is_tensor(x) or not known_equal(shape(x)[node.args[1]], 1):
        return None
    return builders.reshape(edit, node, x, shape(node))


@respelling("aten.expand", "aten.expand_as", "aten.broadcast_to")
def broadcast(node: fx.Node, edit: Editor) -> fx.Node | None:
    """expand(x, [-1, 4, ...]), expand_as, broadcast_to  ->  expand(x, [explicit sizes]), both of equal rank."""
    x = node.args[0]
    if not is_tensor(x):
        return None
    if _is_settled(node) and rank(x) == rank(node) and not sees(node, x, "aten.expand") and not like(node, x):
        return None
    return builders.expand(edit, node, x, shape(node))


@respelling(
    "aten.contiguous", "aten.clone", "aten.alias", "aten.positive",
    "aten.slice", "aten.narrow", "aten.to", "aten._to_copy", "aten.type_as", "aten.detach", "aten.view",
)  # fmt: skip
def identity(node: fx.Node, edit: Editor) -> fx.Node | None:
    """contiguous(x), clone(x), slice(x, 0, None), to(x, its own dtype), detach(x without grad)  ->  x.

    A slice with as many elements as its operand has all of them, in order.
    """
    x = node.args[0]
    if not like(node, x) or val(node).layout != val(x).layout:
        return None
    name = op_name(node)
    if name == "aten.detach" and wants_gradient(x):
        return None
    return x if name != "aten.view" or node.target is aten.view.default else None


@respelling("aten.add", "aten.sub", "aten.mul", "aten.div")
def neutral(node: fx.Node, edit: Editor) -> fx.Node | None:
    """x + 0, x - 0, x * 1, x / 1 with a Python number  ->  x."""
    x, other = node.args[0], node.args[1]
    if not is_literal(other) or not like(node, x) or arguments(node).get("rounding_mode"):
        return None
    unit = 0 if op_name(node) in ("aten.add", "aten.sub") else 1
    return x if other == unit else None


@respelling("aten.cat", "aten.concat", "aten.concatenate")
def lone_part(node: fx.Node, edit: Editor) -> fx.Node | None:
    """cat([x]), cat([x, y]) with `y` of size 0 in this dim  ->  x; an empty key cache may have a single dimension."""
    dim = arguments(node).get("dim", 0)
    if not isinstance(dim, int):
        return None
    parts = [p for p in node.args[0] if not known_equal(shape(p)[dim if rank(p) > 1 else 0], 0)]
    return parts[0] if len(parts) == 1 and like(node, parts[0]) else None
