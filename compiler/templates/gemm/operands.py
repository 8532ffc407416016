"""The operands of a matrix product in a graph: which calls are products, and which operands the template supports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ....rewrites.compat.memory import allows_tf32
from ....rewrites.reason import Reason
from ...lowering.positions import numel
from ..common.formula import packet
from .description import CPU_FEW_ROWS, LANES_ROWS
from .unpad import before_padding, crop_of
from .windows import Windows, windows_of

LINEAR, ONEDNN, REORDER = "aten.linear", "mkldnn._linear_pointwise", "mkldnn._reorder_linear_weight"
BYTES = "aten._int_mm"  # on CPUs
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", LINEAR, ONEDNN, BYTES)
# Tensor cores round float32 before they multiply it: `_dtypes` looks at the settings that allow it.
_BY_LANES = {"cpu": (torch.bfloat16, torch.float16), "cuda": (torch.float32,)}
DTYPES = {"cpu": (torch.float32,), "cuda": (torch.bfloat16, torch.float16)}
TOGETHER = 4  # bytes along the depth that are multiplied in one lane
_FEW = {"cuda": LANES_ROWS, "cpu": CPU_FEW_ROWS}


def is_product(node: fx.Node) -> bool:
    """Whether a node is a call that multiplies matrices."""
    return packet(node) in PRODUCTS and node.target is not torch.ops.aten.mm.dtype


@dataclass(frozen=True)
class Operands:
    """`x` of (batch, rows, depth) elements and `weight` of (batch, depth, columns) with the strides of the latter."""

    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    sizes: tuple[int, int, int, int]  # batch, rows, columns, depth
    strides: tuple[int, int, int]  # of the weight
    windows: Windows | None = None  # of `x`, whose sizes are then those of images


def operands_of(call: fx.Node) -> Operands | Reason:
    """The operands of a product, or the reason why the template does not support it."""
    bias, x, weight = arguments(call)
    if packet(call) == BYTES:
        return _operands_of_bytes(call, x, weight)
    if packet(weight) == REORDER:
        weight = weight.args[0]
    for node in (call, x, weight):
        reason = unfit(node, call, _is_for_lanes(x) or None)
        if reason is not None:
            return reason
    apart = mixture(call, x, weight, bias) or _unfit_factor(call)
    if apart is not None:
        return apart
    x_sizes, sizes, strides = x.meta["val"].shape, tuple(weight.meta["val"].shape), tuple(weight.meta["val"].stride())
    rows, depth = numel(x_sizes[:-1]), x_sizes[-1]
    if packet(call) in (LINEAR, ONEDNN):
        if len(sizes) != 2:
            return Reason("weight-rank", "the weight is not a matrix", (call,), "2 dims", str(len(sizes)))
        return Operands(x, weight, bias, (1, rows, sizes[0], depth), (0, strides[1], strides[0]))
    if packet(call) == "aten.bmm":
        return Operands(x, weight, bias, (sizes[0], x_sizes[1], sizes[2], depth), strides)
    return Operands(x, weight, bias, (1, rows, sizes[1], depth), (0, *strides))


def _operands_of_bytes(call: fx.Node, x: fx.Node, weight: fx.Node) -> Operands | Reason:
    if call.meta["val"].device.type != "cpu":
        return Reason("device", "bytes are multiplied on CPUs", (call,), "cpu", str(call.meta["val"].device))
    for node in (call, x, weight):
        reason = _unfit_layout(node, call)
        if reason is not None:
            return reason
    if weight.meta["val"].dtype != torch.int8:
        return Reason("dtype", f"{weight.name} is {weight.meta['val'].dtype}", (call,), "int8")
    (rows, depth), columns = x.meta["val"].shape, weight.meta["val"].shape[1]
    images, windows = windows_of(x, TOGETHER) or (x, None)
    strides = (0, *weight.meta["val"].stride())
    return Operands(images, weight, None, (1, rows, columns, depth), strides, windows)


def mixture(call: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None) -> Reason | None:
    """Operands of several dtypes: eager rejects most of them, and the call is kept so that it raises eager's error."""
    for node in (weight, bias):
        if node is not None and node.meta["val"].dtype != x.meta["val"].dtype:
            return Reason("dtype", f"{x.name} and {node.name} differ in dtype", (call,))
    return None


def _unfit_factor(call: fx.Node) -> Reason | None:
    """`addmm` with a factor that is known when it runs, or is 0: eager does not read what it multiplies by 0."""
    named = {name: call.kwargs.get(name, 1) for name in ("alpha", "beta")}
    unknown = [name for name, factor in named.items() if isinstance(factor, fx.Node)]
    if unknown:
        message = f"{', '.join(unknown)} of {call.name} is known when it runs"
        return Reason("factor", message, (call,), "a number", "a symbol")
    zeros = [name for name, factor in named.items() if factor == 0]
    message = f"{', '.join(zeros)} of {call.name} is 0"
    return Reason("factor", message, (call,), "a factor", "0") if zeros else None


def _is_for_lanes(x: fx.Node) -> bool:
    """Whether the product has so few rows that it needs no matrix units: float32 on GPUs, 16 bits on CPUs."""
    val = x.meta["val"]
    rows = numel(val.shape[:-1])
    return isinstance(rows, int) and rows <= _FEW.get(val.device.type, 0)


def before_crop(call: fx.Node, operands: Operands) -> tuple[Operands, fx.Node] | None:
    """The product before it was padded for the library on a GPU, and the slice that is read."""
    weight, bias = before_padding(call.args[1], 0), operands.bias
    if packet(call) != LINEAR or weight is None or call.meta["val"].device.type != "cuda":
        return None
    val = weight.meta["val"]
    crop, bias = crop_of(call, val.shape[0]), bias if bias is None else before_padding(bias, 0)
    if crop is None or (bias is None) != (operands.bias is None) or unfit(weight, call) is not None:
        return None
    batch, rows, _, depth = operands.sizes
    strides = (0, *(val.stride()[::-1]))
    return Operands(operands.x, weight, bias, (batch, rows, val.shape[0], depth), strides), crop


def arguments(call: fx.Node) -> tuple[Any, Any, Any]:
    """The bias, the left and the right operand."""
    if packet(call) == "aten.addmm":
        return call.args[0], call.args[1], call.args[2]
    bias = call.args[2] if len(call.args) > 2 else call.kwargs.get("bias")
    return bias, call.args[0], call.args[1]


def _dtypes(device: torch.device, lanes: bool) -> tuple[torch.dtype, ...]:
    """The dtypes that the template multiplies on a device; with `lanes`, those multiplied without matrix units."""
    return (*DTYPES[device.type], *(_BY_LANES[device.type] if lanes else ()))


def unfit(node: fx.Node, call: fx.Node, by_lanes: bool | None = None) -> Reason | None:
    """Why the template does not support an operand or result.

    Args:
        node: the operand or the result.
        call: the product.
        by_lanes: whether it is multiplied without tensor cores; by default, on GPUs, whether float32 may be rounded.
    """
    val = node.meta["val"]
    if val.device.type not in DTYPES or val.device != call.meta["val"].device:
        return Reason("device", f"the template is for {' and '.join(DTYPES)}, not {val.device}", (call,))
    cut_short = val.device.type == "cuda" and allows_tf32()
    dtypes = _dtypes(val.device, cut_short if by_lanes is None else by_lanes)
    if val.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return Reason("dtype", f"{node.name} is {val.dtype}", (call,), wanted, str(val.dtype))
    return _unfit_layout(node, call)


def _unfit_layout(node: fx.Node, call: fx.Node) -> Reason | None:
    """Why the template does not support where the elements of an operand or result lie."""
    val = node.meta["val"]
    if not all(isinstance(size, int) for size in (*val.shape, *val.stride())) or 0 in val.shape:
        return Reason("symbolic", f"sizes {tuple(val.shape)}: static ones above 0 needed", (call,))
    if node.op == "get_attr":
        val = getattr(node.graph.owning_module, str(node.target), val)
    if val.layout != torch.strided or val.is_mkldnn:
        return Reason("layout", f"{node.name} is in a packed layout that only oneDNN reads", (call,))
    return None
