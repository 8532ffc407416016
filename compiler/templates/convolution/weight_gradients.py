"""The template on GPUs for gradients of the weights of single channels.

%grads = aten.convolution_backward(%g, %x, %w, ..., groups, [False, True, False])   ->   depthwise_weight_3f2a(%g, %x)
%weight = getitem(%grads, 1)

Libraries sum up such a gradient at a third of the speed of memory, and in float32 at a thirtieth.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from ....rewrites.graph import arguments
from ....rewrites.reason import Reason
from ...ir.program import Buffer
from ..common.baseline import Baseline
from ..common.cpp_call import Layout
from ..common.formula import packet
from ..common.replacing import replace_by_call
from ..common.task import Task
from ..common.template import ComparedProgram, GpuTemplate
from ..common.triton_call import TritonTemplateKernel
from ..gemm.triton_cost import is_notable
from .description import sides_of
from .triton_depthwise_weight import WeightGradient, WeightTile, weight_tiles, weight_triton, workspace

RULE, FAMILY = "convolution-gradient", "convolution-gradient-kernel"
_WEIGHT = 1  # index among the results
# Passes over the image that are saved: in general, and of wide windows in float32.
_PASSES, _WIDE_PASSES, _WIDE = 4, 64, 9
_TILES, _MORE_TILES, _KERNELS, _SECONDS = 1, 4, 8, 3.0
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class FoundGradient:
    """A gradient in a graph: `output` is read by others, `inputs` are the gradient above, the image and the weight."""

    gradient: WeightGradient
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    output: fx.Node


class WeightGradientTemplate(GpuTemplate):
    """Gradients of weights of single channels."""

    rule, family, option, name = RULE, FAMILY, "convolutions", "weight-gradients"
    size = 1
    most_kinds = _KERNELS

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.seconds = _SECONDS

    def match(self, node: fx.Node) -> FoundGradient | Reason | None:
        """The gradient that a node picks from the results of a call."""
        return match_weight_gradient(node)

    def description(self, found: FoundGradient) -> WeightGradient:
        """The gradient without nodes."""
        return found.gradient

    def candidates(self, described: WeightGradient) -> Sequence[WeightTile]:
        """The tiles to measure."""
        count = _MORE_TILES if self.task.thorough or self.task.generated else _TILES
        return weight_tiles(described, self.task.gpu.processors, count)

    def source(self, described: WeightGradient, config: WeightTile) -> TritonTemplateKernel:
        """The kernel with a tile."""
        return weight_kernel(described, config, self.task.device)

    def compared(self, found: FoundGradient) -> ComparedProgram:
        """The library's call, which is given the weight as well."""
        baseline = Baseline(found.nodes, found.inputs, [found.output])
        return ComparedProgram(found.nodes, found.inputs, baseline, adapted=_WithoutWeight)

    def replace(self, found: FoundGradient, kernel: TritonTemplateKernel, place: fx.Node) -> None:
        """Put the call of a kernel into the graph."""
        replace_by_call(self.task.graph, found, found.inputs[:2], kernel, place, self.rule)

    def work(self, described: WeightGradient) -> int:
        """An estimate of the bytes that a kernel saves over the library."""
        image = described.image
        is_wide = image.dtype == torch.float32 and prod(described.window) > _WIDE
        return (_WIDE_PASSES if is_wide else _PASSES) * prod(image.sizes) * image.dtype.itemsize

    def is_worth(self, described: WeightGradient, work: int) -> bool:  # noqa: ARG002
        """Whether all layers of a kind together save so much that it is worth a second of compilation."""
        return self.task.measures_all or is_notable(work, self.task.gpu)


class _WithoutWeight:
    """A kernel as a function of what the library's call is given."""

    def __init__(self, kernel: TritonTemplateKernel) -> None:
        self.kernel = kernel

    def __call__(self, above: torch.Tensor, image: torch.Tensor, _: torch.Tensor) -> Any:
        """The gradient."""
        return self.kernel(above, image)


def match_weight_gradient(node: fx.Node) -> FoundGradient | Reason | None:
    """The gradient of the weight of single channels that a node is, why there is no kernel, or None."""
    if node.target is not operator.getitem or node.args[1] != _WEIGHT:
        return None
    call = node.args[0]
    if not isinstance(call, fx.Node) or packet(call) != "aten.convolution_backward":
        return None
    values = arguments(call)
    weight = values["weight"].meta["val"]
    if values["groups"] == 1 or weight.shape[1] != 1 or weight.shape[0] != values["groups"]:
        return None
    if list(values["output_mask"]) != [False, True, False] or len(call.users) != 1:
        return Reason("shared", "the call computes other gradients as well", (call,))
    refusal = _refusal(node, call)
    if refusal is not None:
        return refusal
    above, x = values["grad_output"], values["input"]
    read = _buffer("<g>", above, "input"), _buffer("<x>", x, "input")
    lines, columns = sides_of(x.meta["val"], above.meta["val"], weight, values)
    gradient = WeightGradient(*read, _buffer("<w>", node, "output"), (lines, columns))
    if not gradient.fits:
        return Reason("window", "the sums of all places of the window do not fit into registers", (call,))
    return FoundGradient(gradient, (above, x, values["weight"]), (call, node), node)


def _refusal(node: fx.Node, call: fx.Node) -> Reason | None:
    values = arguments(call)
    tensors = [values[name].meta["val"] for name in ("grad_output", "input")]
    if tensors[0].device.type != "cuda":
        return Reason("device", "the template for gradients of convolutions is for GPUs", (call,))
    if any(x.dim() != 4 for x in tensors):
        return Reason("rank", "images have other than two dims", (call,))
    if values["transposed"] or any(values["output_padding"]):
        return Reason("transposed", "a transposed convolution", (call,))
    if len({x.dtype for x in (*tensors, node.meta["val"])}) > 1 or tensors[0].dtype not in _DTYPES:
        return Reason("dtype", "the dtype is none of float16, bfloat16 and float32, or differs", (call,))
    sizes = [n for x in tensors for n in (*x.shape, *x.stride())]
    if not all(isinstance(n, int) for n in sizes) or 0 in (*tensors[0].shape, *tensors[1].shape):
        return Reason("symbolic", "sizes are symbolic, or there is no pixel", (call,))
    if any(x.stride(1) != 1 for x in tensors):
        return Reason("layout", "channels do not lie side by side", (call,), "channels last", "channels apart")
    return None


def _buffer(name: str, node: fx.Node, kind: str) -> Buffer:
    val = node.meta["val"]
    return Buffer(name, val.dtype, tuple(val.shape), tuple(val.stride()), val.device, kind)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=256)
def weight_kernel(gradient: WeightGradient, tile: WeightTile, device: int) -> TritonTemplateKernel:
    """The kernel of a gradient with a tile; equal ones are the same.

    Raises:
        UnsupportedDtypeError: Triton has no type for one of the dtypes.
    """
    source = weight_triton(gradient, tile)
    inputs, outputs = tuple(map(Layout.of, (gradient.above, gradient.image))), (Layout.of(gradient.weight),)
    flops = 2 * prod((*gradient.above.sizes, *gradient.window))
    own = (Layout.of(workspace(gradient, tile)),)
    return TritonTemplateKernel(
        source.launches[0].name, "depthwise_weight", source, source, inputs, outputs, device, flops, own
    )
