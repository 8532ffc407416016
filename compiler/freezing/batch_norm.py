"""Batch normalization of inference, folded into the convolution or linear layer before it.

    y = convolution(x, w, b);  (y - mean) / sqrt(var + eps) * gamma + beta
        ->  scale = gamma / sqrt(var + eps)
            convolution(x, w * scale, (b - mean) * scale + beta)

The new weights follow from weights alone, so they are folded to constants: computed in float64, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...patterns.packing import is_frozen
from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, op_name, rank
from ...rewrites.sizes import SizeTable

aten = torch.ops.aten

_NORM = "aten._native_batch_norm_legit_no_training"


def fold_batch_norms(graph_module: fx.GraphModule) -> int:
    """Fold every batch normalization that has a layer of its own before it, in place; returns how many."""
    graph = graph_module.graph
    editor = Editor(graph, SizeTable(graph))
    folded = sum(_fold(editor, node) for node in list(graph.nodes) if op_name(node) == _NORM)
    if folded:
        graph_module.recompile()
    return folded


def _fold(editor: Editor, norm: fx.Node) -> bool:
    values = arguments(norm)
    layer = values["input"]
    statistics = [values[n] for n in ("running_mean", "running_var", "weight", "bias")]
    result = _only_result(norm)
    if result is None or len(layer.users) > 1 or not all(s is None or is_frozen(s) for s in statistics):
        return False
    rewrite = _LAYERS.get(op_name(layer))
    with editor.at(layer):
        new = (
            None
            if rewrite is None or dtype(layer) != dtype(result)
            else rewrite(editor, layer, statistics, values["eps"])
        )
    if new is None:
        return False
    editor.replace(result, new)
    editor.erase_dead(result)
    return True


def _only_result(norm: fx.Node) -> fx.Node | None:
    """The node of the normalized tensor, where nobody reads the statistics of the batch."""
    users = [user for user in norm.users if user.users]
    return users[0] if len(users) == 1 and op_name(users[0]) == "getitem" and users[0].args[1] == 0 else None


def _convolution(editor: Editor, layer: fx.Node, statistics: Sequence[Any], eps: float) -> fx.Node | None:
    x, weight, bias, *geometry = (arguments(layer)[n] for n in _CONVOLUTION)
    transposed = geometry[3]
    if transposed or not _are_frozen(weight, bias):
        return None
    scaled, shifted = _scaled(editor, weight, bias, statistics, eps, [-1] + [1] * (rank(weight) - 1))
    return editor.call(aten.convolution.default, x, scaled, shifted, *geometry)


def _product(editor: Editor, layer: fx.Node, statistics: Sequence[Any], eps: float) -> fx.Node | None:
    """Rows times a matrix (in, out), with or without a bias."""
    values = arguments(layer)
    bias, x, weight = (None, *layer.args[:2]) if op_name(layer) == "aten.mm" else layer.args[:3]
    plain = values.get("beta", 1) == 1 and values.get("alpha", 1) == 1
    if not plain or not _are_frozen(weight, bias) or (bias is not None and rank(bias) != 1):
        return None
    scaled, shifted = _scaled(editor, weight, bias, statistics, eps, [1, -1])
    return editor.call(aten.addmm.default, shifted, x, scaled)


_CONVOLUTION = (
    "input", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups",
)  # fmt: skip
_LAYERS = {"aten.convolution": _convolution, "aten.addmm": _product, "aten.mm": _product}


def _are_frozen(weight: Any, bias: Any) -> bool:
    return is_frozen(weight) and (bias is None or is_frozen(bias)) and dtype(weight).is_floating_point


def _scaled(
    editor: Editor, weight: fx.Node, bias: Any, statistics: Sequence[Any], eps: float, along: list[int]
) -> tuple[fx.Node, fx.Node]:
    """Weight and bias of the layer and its normalization in one; `along` shapes the scale like the weight."""

    def wide(value: fx.Node | None) -> fx.Node | None:
        return None if value is None else editor.call(aten._to_copy.default, value, dtype=torch.float64)

    mean, variance, gamma, beta = map(wide, statistics)
    scale = editor.call(aten.rsqrt.default, editor.call(aten.add.Tensor, variance, eps))
    if gamma is not None:
        scale = editor.call(aten.mul.Tensor, scale, gamma)
    shift = editor.call(aten.neg.default, mean) if bias is None else editor.call(aten.sub.Tensor, wide(bias), mean)
    shift = editor.call(aten.mul.Tensor, shift, scale)
    if beta is not None:
        shift = editor.call(aten.add.Tensor, shift, beta)
    product = editor.call(aten.mul.Tensor, wide(weight), editor.call(aten.view.default, scale, along))
    narrow = {"dtype": dtype(weight)}
    return editor.call(aten._to_copy.default, product, **narrow), editor.call(aten._to_copy.default, shift, **narrow)
