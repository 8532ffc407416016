"""Calls: arguments that say what the default says, and operators that are others by name or by their definition."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_tensor, op_name, rank, sees, shape
from ...rewrites.respell import Respelling, respelling
from ...rewrites.symbolic import same_shape
from . import builders
from .analysis import is_float, like

aten = torch.ops.aten

_POOLS = tuple(f"aten.{kind}_pool{dims}d" for kind in ("max", "avg") for dims in (1, 2, 3))


@respelling(*_POOLS)
def window_by_default(node: fx.Node, edit: Editor) -> fx.Node | None:
    """max_pool2d(x, 2, stride=2, padding=0)  ->  max_pool2d(x, [2, 2]); also avg_pool2d, of 1 to 3 dims."""
    values = arguments(node)
    x, kernel = values.pop("self"), list(values.pop("kernel_size"))
    kept = {name: value for name, value in values.items() if not _says_default(name, value, kernel)}
    if len(node.args) == 2 and kept == dict(node.kwargs):
        return None
    return edit.call(node.target, x, kernel, **kept)


def _says_default(name: str, value: Any, kernel: list[Any]) -> bool:
    if name == "stride":
        return not value or [*value] * (len(kernel) if len(value) == 1 else 1) == kernel
    if name in ("padding", "dilation"):
        usual = 0 if name == "padding" else 1
        return all(v == usual for v in (value if isinstance(value, (list, tuple)) else [value]))
    return value is None or value is (name == "count_include_pad")


@respelling("aten.pad")
def padded_by_zeros(node: fx.Node, edit: Editor) -> fx.Node | None:
    """pad(x, [1, 1], "constant", 0.0)  ->  pad(x, [1, 1])."""
    values = arguments(node)
    if values["mode"] != "constant" or values["value"] not in (None, 0) or len(node.args) + len(node.kwargs) == 2:
        return None
    return edit.call(aten.pad.default, values["self"], values["pad"])


@respelling("aten.std", "aten.var", "aten.std_mean", "aten.var_mean")
def usual_correction(node: fx.Node, edit: Editor) -> fx.Node | None:
    """std(x, [-1], correction=1), std(x, [-1], unbiased=True)  ->  std(x, [-1])."""
    values = arguments(node)
    if not (values.get("correction") == 1 or values.get("unbiased") is True):
        return None
    packet = getattr(aten, op_name(node).removeprefix("aten."))
    kept = {"keepdim": True} if values.get("keepdim") else {}
    return edit.call(packet.correction, values["self"], values.get("dim"), **kept)


@respelling("aten.round")
def whole_numbers(node: fx.Node, edit: Editor) -> fx.Node | None:
    """round(x, decimals=0)  ->  round(x)."""
    if node.target is not aten.round.decimals or arguments(node)["decimals"] != 0:
        return None
    return edit.call(aten.round.default, node.args[0])


@respelling("aten.conv1d", "aten.conv2d", "aten.conv3d")
def padding_by_name(node: fx.Node, edit: Editor) -> fx.Node | None:
    """conv2d(x, w, padding="same")  ->  conv2d(x, w, None, [1, 1], [1, 1]), for windows of odd sizes."""
    values = arguments(node)
    padding, window = values["padding"], shape(values["weight"])[2:]
    if not isinstance(padding, str) or not all(isinstance(size, int) for size in window):
        return None
    dims = len(window)
    dilation = [*values["dilation"]] * (dims if len(values["dilation"]) == 1 else 1)
    widths = [0 if padding == "valid" else d * (size - 1) for d, size in zip(dilation, window, strict=True)]
    if padding not in ("valid", "same") or any(width % 2 for width in widths):
        return None
    packet = getattr(aten, op_name(node).removeprefix("aten."))
    ones = [1] * dims
    usual = {"bias": None, "stride": ones, "padding": [0] * dims, "dilation": ones, "groups": 1}
    given = dict(values, padding=[width // 2 for width in widths], dilation=dilation)
    given["stride"] = [*values["stride"]] * (dims if len(values["stride"]) == 1 else 1)
    named = [name for name in usual if given[name] != usual[name]]
    kept = list(usual)[: list(usual).index(named[-1]) + 1] if named else []
    return edit.call(packet.default, values["input"], values["weight"], *(given[name] for name in kept))


@respelling("aten.floor_divide")
def floor_division(node: fx.Node, edit: Editor) -> fx.Node | None:
    """floor_divide(x, y), x // y  ->  div(x, y, rounding_mode="floor")."""
    x, y = node.args[:2]
    target = aten.div.Tensor_mode if is_tensor(y) else aten.div.Scalar_mode
    new = edit.call(target, x, y, rounding_mode="floor")
    return new if like(node, new) else None


@respelling("aten.max", "aten.min")
def larger_of_two(node: fx.Node, edit: Editor) -> fx.Node | None:
    """max(x, y)  ->  maximum(x, y); min(x, y)  ->  minimum(x, y)."""
    targets = {aten.max.other: aten.maximum.default, aten.min.other: aten.minimum.default}
    return edit.call(targets[node.target], *node.args) if node.target in targets else None


@respelling("aten.mul")
def product_with_itself(node: fx.Node, edit: Editor) -> fx.Node | None:
    """x * x  ->  pow(x, 2)."""
    x, other = node.args[:2]
    return edit.call(aten.pow.Tensor_Scalar, x, 2) if other is x and is_float(x) else None


@respelling("aten.hstack", "aten.vstack", "aten.dstack", "aten.column_stack")
def stacked(node: fx.Node, edit: Editor) -> fx.Node | None:
    """hstack([x, y])  ->  cat([x, y], 1); vstack: along dim 0, dstack: along dim 2; if the tensors have these dims."""
    dim = {"aten.hstack": 1, "aten.vstack": 0, "aten.dstack": 2, "aten.column_stack": 1}[op_name(node)]
    parts: Any = node.args[0]
    lowest = min(rank(part) for part in parts)
    if op_name(node) == "aten.hstack" and lowest == 1:
        dim = 0
    if not all(is_tensor(part) for part in parts) or lowest < max(dim + 1, 1 if op_name(node) == "aten.hstack" else 2):
        return None
    return edit.call(aten.cat.default, list(parts), *([dim] if dim else []))


@respelling("aten.fliplr", "aten.flipud")
def flipped(node: fx.Node, edit: Editor) -> fx.Node | None:
    """fliplr(x)  ->  flip(x, [1]); flipud(x)  ->  flip(x, [0])."""
    return edit.call(aten.flip.default, node.args[0], [1 if op_name(node) == "aten.fliplr" else 0])


@respelling("aten.outer")
def outer_product(node: fx.Node, edit: Editor) -> fx.Node | None:
    """outer(a, b)  ->  mul(reshape(a, [n, 1]), reshape(b, [1, m]))."""
    a, b = node.args
    (n,), (m,) = shape(a), shape(b)
    return edit.call(aten.mul.Tensor, builders.reshape(edit, node, a, [n, 1]), builders.reshape(edit, node, b, [1, m]))


@respelling("aten.take_along_dim")
def taken_along(node: fx.Node, edit: Editor) -> fx.Node | None:
    """take_along_dim(x, index, -1)  ->  gather(x, -1, index), if only this dim may differ."""
    values = arguments(node)
    x, index, dim = values["self"], values["indices"], values["dim"]
    if not isinstance(dim, int) or rank(x) != rank(index) or rank(x) == 0:
        return None
    others = [d for d in range(rank(x)) if d != dim % rank(x)]
    if not same_shape([shape(x)[d] for d in others], [shape(index)[d] for d in others]):
        return None
    return edit.call(aten.gather.default, x, dim, index)


@respelling("aten.gather", "aten.index", "aten.index_select")
def in_order(node: fx.Node, edit: Editor) -> fx.Node | None:
    """gather(x, 1, getitem(sort(x, 1), 1)), of vectors also x[getitem(sort(x), 1)]  ->  getitem(sort(x, 1), 0)."""
    values = arguments(node)
    x, dim = values["self"], values.get("dim", 0)
    index = values["indices"] if op_name(node) == "aten.index" else values["index"]
    index = index[0] if isinstance(index, (list, tuple)) and len(index) == 1 else index
    if not (is_tensor(x) and is_tensor(index)) or not (op_name(node) == "aten.gather" or rank(x) == 1):
        return None
    made = _sort_that_gives(node, index, edit)
    if made is None or made.args[0] is not x or arguments(made)["dim"] % max(rank(x), 1) != dim % max(rank(x), 1):
        return None
    return edit.call(operator.getitem, made, 0)


_SORTS = {aten.argsort.default: aten.sort.default, aten.argsort.stable: aten.sort.stable}


def _sort_that_gives(node: fx.Node, places: fx.Node, edit: Editor) -> fx.Node | None:
    """The call of `sort` whose second result these places are; made of one of `argsort`."""
    if sees(node, places, "aten.argsort"):
        return edit.call(_SORTS[places.target], *places.args, **places.kwargs)
    if sees(node, places, "getitem") and places.args[1] == 1 and sees(node, places.args[0], "aten.sort"):
        return places.args[0]  # type: ignore[return-value]
    return None


@respelling("aten.dot", "aten.vdot", "aten.inner")
def product_of_vectors(node: fx.Node, edit: Editor) -> fx.Node | None:
    """dot(a, b), vdot(a, b), inner(a, b)  ->  matmul(a, b), for real vectors."""
    a, b = node.args
    if not (is_float(a) and is_float(b) and rank(a) == rank(b) == 1):
        return None
    return edit.call(aten.matmul.default, a, b)


@respelling("aten.glu")
def gated_half(node: fx.Node, edit: Editor) -> fx.Node | None:
    """glu(x, -1)  ->  mul(slice(x, -1, 0, n), sigmoid(slice(x, -1, n, END)))."""
    x, dim = node.args[0], arguments(node)["dim"] % max(rank(node), 1)
    size = shape(node)[dim]
    if not is_float(x):  # which eager refuses
        return None
    first = builders.part(edit, node, x, dim, 0, size)
    second = builders.part(edit, node, x, dim, size, shape(x)[dim])
    if first is None or second is None:
        return None
    return edit.call(aten.mul.Tensor, first, edit.call(aten.sigmoid.default, second))


@respelling(*(f"aten.adaptive_avg_pool{dims}d" for dims in (1, 2, 3)))
def pooled_to_one(node: fx.Node, edit: Editor) -> fx.Node | None:
    """adaptive_avg_pool2d(x, 1)  ->  mean(x, [-1, -2], True)."""
    x, sizes = node.args[:2]
    if not is_float(x) or any(size != 1 for size in sizes):  # type: ignore[union-attr]
        return None
    return edit.call(aten.mean.dim, x, [-1 - d for d in range(len(sizes))], True)  # type: ignore[arg-type]


@respelling("getitem")
def broadcast_together(node: fx.Node, edit: Editor) -> fx.Node | None:
    """getitem(broadcast_tensors([x, y]), 0)  ->  x, if it has the size already."""
    call, index = node.args
    if not sees(node, call, "aten.broadcast_tensors") or not isinstance(index, int):
        return None
    x = call.args[0][index]
    return x if like(node, x) else None


@respelling("aten.sum", "aten.mean", "aten.max", "aten.min", "aten.all", "aten.any")
def whole_of_view(node: fx.Node, edit: Editor) -> fx.Node | None:
    """sum(reshape(x, [-1]))  ->  sum(x); also of a permuted tensor, and mean, max, min, all, any."""
    x = node.args[0]
    whole = (
        aten.sum.default,
        aten.mean.default,
        aten.max.default,
        aten.min.default,
        aten.all.default,
        aten.any.default,
    )
    if node.target not in whole or not sees(node, x, "aten.reshape", "aten.permute"):
        return None
    return edit.call(node.target, x.args[0], *node.args[1:], **node.kwargs)


CALL_FORMS: tuple[Respelling, ...] = (
    window_by_default, padded_by_zeros, usual_correction, whole_numbers, padding_by_name, floor_division, larger_of_two,
    product_with_itself, stacked, flipped, outer_product, taken_along, in_order, product_of_vectors, gated_half,
    pooled_to_one, broadcast_together, whole_of_view,
)  # fmt: skip
