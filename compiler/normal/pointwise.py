"""Elementwise operations: constants on the right, one name for each."""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.facts.fact import same_number
from ...rewrites.graph import arguments, dtype, is_number, is_tensor, op_name
from ...rewrites.respell import respelling
from . import builders
from .analysis import factor_of, is_float, is_literal, is_scalar, like, uniform

aten = torch.ops.aten


@respelling("aten.add", "aten.sub")
def number_added(node: fx.Node, edit: Editor) -> fx.Node | None:
    """add(1.0, x), sub(x, -1.0), add.Scalar(x, 1.0), add(x, a known constant)  ->  add.Tensor(x, 1.0)."""
    a, b, alpha = node.args[0], node.args[1], arguments(node).get("alpha", 1)
    if is_scalar(a) and is_tensor(b) and not is_scalar(b) and op_name(node) == "aten.add" and alpha == 1:
        a, b = b, a
    known = uniform(b)
    if known is None or not is_float(a) or not like(node, a) or not is_literal(alpha):
        return None
    term = known * alpha * (1 if op_name(node) == "aten.add" else -1)
    if node.target is aten.add.Tensor and node.args[0] is a and same_number(node.args[1], term) and not node.kwargs:
        return None
    return edit.call(aten.add.Tensor, a, term)


@respelling("aten.rsub", "aten.sub")
def number_minus(node: fx.Node, edit: Editor) -> fx.Node | None:
    """rsub(x, c), sub(c, x)  ->  add(mul(x, -1), c)."""
    a, b = node.args[:2]
    constant, x = (b, a) if op_name(node) == "aten.rsub" else (a, b)
    if arguments(node).get("alpha", 1) != 1 or not is_float(x) or not like(node, x):
        return None
    factor = factor_of(constant) if is_number(constant) or is_tensor(constant) else None
    if factor is None or is_scalar(x):
        return None
    return edit.call(aten.add.Tensor, builders.scaled(edit, x, -1), factor)


@respelling("aten.clamp", "aten.maximum", "aten.max")
def lower_bound(node: fx.Node, edit: Editor) -> fx.Node | None:
    """clamp(x, min=c), maximum(x, full(c))  ->  clamp_min(x, c)."""
    x = node.args[0]
    if op_name(node) == "aten.clamp":
        values = arguments(node)
        bound = None if values.get("max") is not None or node.target is not aten.clamp.default else values.get("min")
    else:
        bound = uniform(node.args[1]) if len(node.args) == 2 and is_tensor(node.args[1]) else None
    if bound is None or not is_float(x) or not like(node, x):
        return None
    return edit.call(aten.clamp_min.default, x, bound)


@respelling("aten.square")
def square(node: fx.Node, edit: Editor) -> fx.Node | None:
    """square(x)  ->  pow(x, 2)."""
    return edit.call(aten.pow.Tensor_Scalar, node.args[0], 2) if dtype(node) == dtype(node.args[0]) else None
