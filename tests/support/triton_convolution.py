"""The convolution template in Triton without a GPU: from a function to a kernel, interpreted or compiled.

agrees(lambda x, w: F.conv2d(x, w).relu(), x, w)        interpreted; as near to float64 as eager
on_gpu(function, x, w)                                  its graph, as if the tensors lay on a GPU, channels last
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch

from regraft.compiler.codegen.triton import KernelSource
from regraft.compiler.templates.common.formula import packet
from regraft.compiler.templates.convolution.description import Convolution
from regraft.compiler.templates.convolution.match import CONVOLUTION, match_convolution
from regraft.compiler.templates.convolution.triton_depthwise import Depthwise, DepthwiseTile, depthwise_triton
from regraft.compiler.templates.convolution.triton_implicit_gemm import convolution_triton
from regraft.compiler.templates.gemm.match import FoundProduct
from regraft.compiler.templates.gemm.triton_tiles import GemmTile

from . import triton_gemm
from .triton_gemm import interpret, near

SMALL = GemmTile(32, 32, 16, 4, 2)


def on_gpu(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The graph of a function after autograd, of tensors like these on a GPU, where convolutions keep channels last."""
    with mock.patch("torch._C._conv_determine_backend_memory_format", _as_cudnn):
        return triton_gemm.on_gpu(function, *inputs)


def _as_cudnn(x: torch.Tensor, weight: torch.Tensor, _: Any) -> torch.memory_format:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(x.dim(), torch.contiguous_format)
    laid_out = any(t.is_contiguous(memory_format=wanted) for t in (x, weight))
    return wanted if laid_out else torch.contiguous_format


def found_in(module: torch.fx.GraphModule) -> FoundProduct:
    """The first convolution of a graph, with its epilogue."""
    found = match_convolution(next(node for node in module.graph.nodes if packet(node) == CONVOLUTION))
    assert isinstance(found, FoundProduct), found
    return found


def run(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], tile: GemmTile = SMALL, processors: int = 3
) -> tuple[list[torch.Tensor], FoundProduct, KernelSource]:
    """The results of the kernel of a function's convolution, interpreted."""
    module = on_gpu(function, *inputs)
    found = found_in(module)
    values = triton_gemm.Values(module, inputs)
    results, source = interpreted(found, [values.env[node] for node in found.inputs], tile, processors)
    return results, found, source


def interpreted(
    found: FoundProduct, inputs: Sequence[torch.Tensor], tile: GemmTile, processors: int
) -> tuple[list[torch.Tensor], KernelSource]:
    """The results of a convolution's kernel, given what it reads."""
    assert isinstance(found.product, Convolution)
    if isinstance(tile, DepthwiseTile):
        x, weight, *others = inputs
        wanted = found.product.b.buffer
        placed = torch.empty_strided(wanted.sizes, wanted.strides, dtype=weight.dtype).copy_(weight)
        assert isinstance(found.product, Depthwise)
        return interpret(depthwise_triton(found.product, tile), found, [x, placed, *others])
    return interpret(convolution_triton(found.product, tile, processors), found, inputs)


def agrees(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor, slack: float = 1.5, **options: Any
) -> tuple[FoundProduct, KernelSource]:
    """Assert that the kernel computes the function, as near to float64 as eager does."""
    (result, *more), found, source = run(function, inputs, **options)
    assert not more
    near(result, function, inputs, slack, source)
    return found, source
