"""Resampling that autograd differentiates as one operator, as eager does.

    y = upsample_bilinear2d(x)      backward of torch's spelling: 4 index_put of grad * weights
                                    backward here: upsample_bilinear2d_backward

For tracing torch spells these operators as indexing, whose gradient scatters the terms one by one; the operator's own
gradient is gathered (`lowering/ops/resampling.py`), or one call of eager's kernel. Images of bytes are weighted in
whole numbers by that kernel, and in floats by torch's spelling: they differ by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.sizes import SizeTable
from ...rewrites.symbolic import concrete, hint
from ...rewrites.walk import recompiles

aten = torch.ops.aten
_NAMES = (
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d"
)
# What eager calls for `vec`: sizes of the result, and a scale for each dim.
_VEC = {getattr(aten, name).vec: getattr(aten, name).default for name in _NAMES.split()}
_PACKETS = [getattr(aten, name) for name in (*_NAMES.split(), "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")]
_BACKWARD = tuple(getattr(aten, f"{packet.__name__}_backward").default for packet in _PACKETS)
_CALLS = (*(packet.default for packet in _PACKETS), *_BACKWARD)


@recompiles
def keep_whole(graph_module: fx.GraphModule) -> int:
    """Have calls of known sizes differentiated as one operator, in place; returns how many."""
    found = [(node, _outs(node)) for node in graph_module.graph.nodes if node.target in _VEC]
    calls = [(node, outs) for node, outs in found if outs is not None]
    table = SizeTable(graph_module.graph)
    for node, sizes in calls:
        with graph_module.graph.inserting_before(node):
            outs = table.resolve(sizes)
        scales = node.args[-1] or [None] * len(outs)
        node.target, node.args = _WHOLE[node.target], (node.args[0], outs, *node.args[2:-1], *scales)
    return len(calls)


def _outs(node: fx.Node) -> list[int] | None:
    """The sizes of the result; None where they are not known, or those of neighbours' copies are symbolic.

    Only eager's kernel says for nearest neighbours where an output lies among an unknown number of elements, while
    torch's spelling is one kernel with what is around it.
    """
    x, result = node.args[0].meta.get("val"), node.meta.get("val")
    if node.kwargs or not isinstance(x, torch.Tensor) or not isinstance(result, torch.Tensor):
        return None
    if any(concrete(size) and size == 0 for size in x.shape):  # torch's metadata raises
        return None
    copies = "nearest" in compat.packet_name(node.target) and x.is_floating_point()
    known = not copies or all(map(concrete, (*x.shape[2:], *result.shape[2:])))
    return list(result.shape[2:]) if known else None


def kept_whole(target: Any) -> Callable[..., Any]:
    """A call of an operator that is traced, and differentiated, as one: not as what Python makes of it."""

    def call(*args: Any) -> Any:
        with compat.kernels_of_torch():
            return target(*args)

    call.__name__ = call.__qualname__ = compat.packet_name(target)  # nodes are named after it
    return call


_WHOLE = {vec: kept_whole(target) for vec, target in _VEC.items()}


def of_symbolic_sizes(func: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """What such a call of symbolic sizes gives on fake tensors, for which torch's metadata raises; None for others.

    It is laid out as torch has it for the example values.
    """
    if func not in _CALLS:
        return None
    (x, outs, *rest), of_gradient = args, func in _BACKWARD
    sizes = rest.pop(0) if of_gradient else (*x.shape[:2], *outs)
    if all(map(concrete, (*x.shape, *outs, *sizes))):
        return None
    told = [[hint(n) for n in numbers] for numbers in (x.shape, x.stride(), outs, sizes)]
    if any(None in numbers for numbers in told):
        return x.new_empty(sizes)
    with compat.no_dispatch_modes():
        example = torch.empty_strided(*told[:2], dtype=x.dtype, device="meta")
        strides = func(example, *told[2 : 4 if of_gradient else 3], *rest).stride()
    order = sorted(range(x.dim()), key=lambda dim: (-strides[dim], dim))
    return x.new_empty([sizes[dim] for dim in order]).permute([order.index(dim) for dim in range(x.dim())])
