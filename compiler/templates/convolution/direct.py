"""Direct convolutions on CPUs: which calls the kernel of `cpp_direct` computes, and how it is called for them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from ....rewrites.graph import arguments
from ...codegen.kernel_call import Layout
from ...lowering.core import contiguous
from ..common.cpp_call import TemplateKernel, lanes, template_kernel
from ..common.formula import packet
from .cpp_direct import direct_cpp
from .description import in_each_dim

_CONVOLUTION, _GRADIENT = "aten.convolution", "aten.convolution_backward"
_DTYPES = (torch.float32, torch.bfloat16)
_DIMS = 3


@dataclass(frozen=True)
class Geometry:
    """How windows lie on images, in each dim of space; `transposed`: how images are spread over windows."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    groups: int


def direct_kernel(node: fx.Node) -> TemplateKernel | None:
    """The kernel of a convolution in a graph after autograd; None where there is none.

    There is one for one to three dims of space, any stride, dilation and number of groups, transposed or not, if sizes
    are known and the images lie channel by channel.
    """
    if packet(node) != _CONVOLUTION:
        return None
    values = arguments(node)
    metas = [x.meta["val"] for x in (values["input"], values["weight"]) + ((values["bias"],) if values["bias"] else ())]
    return _kernel_of([*metas, node.meta["val"]], _geometry(values))


def gradient_kernel(node: fx.Node) -> TemplateKernel | None:
    """The kernel of a convolution's gradient for its images, a convolution of the gradient above, if asked for.

    The weight is the convolution's own: what one calls channels of the image are the other's channels of the result.
    """
    if packet(node) != _GRADIENT or not arguments(node)["output_mask"][0]:
        return None
    values = arguments(node)
    given = _geometry(values)
    above, x, weight = (values[name].meta["val"] for name in ("grad_output", "input", "weight"))
    back = Geometry(given.stride, given.padding, given.dilation, not given.transposed, given.groups)
    made = node.meta["val"][0]
    return _kernel_of([above, weight, made], back) if tuple(made.shape) == tuple(x.shape) else None


def _geometry(values: dict[str, Any]) -> Geometry:
    dims = values["input"].meta["val"].dim() - 2
    stride, padding, dilation = (in_each_dim(values[name], dims) for name in ("stride", "padding", "dilation"))
    return Geometry(stride, padding, dilation, bool(values["transposed"]), values["groups"])


def _kernel_of(metas: Sequence[torch.Tensor], geometry: Geometry) -> TemplateKernel | None:
    """The kernel from images, weight, perhaps bias, and result."""
    x, out = metas[0], metas[-1]
    if not all(map(_is_plain, metas)) or len({meta.dtype for meta in metas}) > 1:
        return None
    if x.dim() != out.dim() or not 3 <= x.dim() <= 2 + _DIMS or not (x.is_contiguous() and out.is_contiguous()):
        return None
    return _kernel(tuple(tuple(meta.shape) for meta in metas), geometry, x.dtype)


def _is_plain(meta: torch.Tensor) -> bool:
    static = all(type(n) is int for n in (*meta.shape, *meta.stride()))
    return static and meta.device.type == "cpu" and meta.dtype in _DTYPES and all(meta.shape)


@functools.lru_cache(maxsize=1024)
def _kernel(shapes: tuple[tuple[int, ...], ...], geometry: Geometry, dtype: torch.dtype) -> TemplateKernel:
    x, weight, out = shapes[0], shapes[1], shapes[-1]
    *inputs, output = (Layout(size, contiguous(size), dtype) for size in shapes)
    pixels = prod((x if geometry.transposed else out)[2:])
    groups = geometry.groups
    source = direct_cpp(dtype, lanes(), out[1] // groups)
    heads = (x[0], groups, x[1] // groups, out[1] // groups, int(len(shapes) > 3), int(geometry.transposed))
    return template_kernel(
        "convolution", source, tuple(inputs), output, 2 * x[0] * pixels * prod(weight),
        (*heads, *_sides(x, weight, out, geometry)),
    )  # fmt: skip


def _sides(x: tuple[int, ...], weight: tuple[int, ...], out: tuple[int, ...], geometry: Geometry) -> list[int]:
    """For each of three dims of space: sizes of the image and the result, window, stride, padding, dilation."""
    sides: list[int] = [1, 1, 1, 1, 0, 1] * (_DIMS + 2 - len(x))
    steps = geometry.stride, geometry.padding, geometry.dilation
    for facts in zip(x[2:], out[2:], weight[2:], *steps, strict=True):
        sides += facts
    return sides
