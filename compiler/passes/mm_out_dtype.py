"""Lets matrix products in half precision write their result in single precision.

    return to(mm(a, b), float32)     a, b in bfloat16 or float16, on a GPU     ->     return mm(a, b, out_dtype=float32)

Libraries accumulate in single precision anyway. The change saves a rounding and a pass over the result; gradients of
weights under autocast are the usual case. If only generated kernels read the cast, they convert while reading, and the
product stays in half precision, which halves the bytes to write, to read and to store.
"""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, dtype, is_tensor, op_name, val
from ...rewrites.moves import VIEWS
from ...rewrites.walk import replaces_calls
from ..lowering.fallbacks import calls_library
from .registry import refuse

aten = torch.ops.aten

_CASTS = (aten._to_copy.default, aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.other)
_DEVICES = ("cuda",)
_HALF = (torch.float16, torch.bfloat16)


@replaces_calls(*_CASTS, same_strides=True)
def use_mm_out_dtype(editor: Editor, cast: fx.Node) -> fx.Node | None:
    """Let a product write single precision if all readers convert to it."""
    if not _is_cast(cast):
        return None
    views, product = [], cast.args[0]
    while len(product.users) == 1 and op_name(product) in VIEWS:  # type: ignore[union-attr]
        views.append(product)
        product = product.args[0]  # type: ignore[union-attr]
    if not isinstance(product, fx.Node) or product.target is not aten.mm.default:
        return None
    if len(product.users) != 1 or dtype(product.args[0]) != dtype(product.args[1]):
        refuse("other-readers", "the product has other readers, or operands of two dtypes", product)
        return None
    if not _is_written(cast):
        refuse("converted-by-kernels", "only generated kernels read the cast, and convert while they read", cast)
        return None
    new = editor.call(aten.mm.dtype, *product.args, torch.float32)
    for view in reversed(views):
        new = editor.call(view.target, new, *view.args[1:], **view.kwargs)  # type: ignore[union-attr]
    return new


def _is_cast(node: fx.Node) -> bool:
    if not is_tensor(node) or not is_tensor(node.args[0]):
        return False
    source = val(node.args[0])
    return (
        val(node).dtype == torch.float32
        and source.dtype in _HALF
        and source.device == val(node).device
        and source.device.type in _DEVICES
        and arguments(node).get("memory_format") in (None, torch.preserve_format)
    )


def _is_written(cast: fx.Node) -> bool:
    """Whether a cast is a result of the graph, or read by a library call, perhaps through a view."""
    return any(
        user.op == "output" or calls_library(op_name(user)) or (op_name(user) in VIEWS and _is_written(user))
        for user in cast.users
    )
