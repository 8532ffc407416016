"""The template on GPUs: convolutions with the operations that read their results become calls of generated kernels.

%convolution = ...; %add = ...; %relu = ...   ->   convolution_add_relu_3f2a_128x64x64_4w4s_tma(%x, %weight, %bias)

cuDNN multiplies as fast as a GPU can, and a kernel follows it that reads and writes the image once more. A kernel of
our own pays where that pass counts: in early layers, whose images are large. That is estimated first; where all layers
of a kind may save 50 microseconds, it is measured as products are (see `gemm.triton_fuse`). Images of few channels, and
convolutions of single ones, cuDNN computes at a fraction of the speed of memory, and groups it computes one after the
other: these are asked about without an epilogue, and in training, too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import fx

from ....rewrites.profit import Decision
from ....rewrites.reason import Reason
from ...gpu import Gpu
from ..common.replacing import replace_by_call
from ..common.triton_call import TritonTemplateKernel
from ..gemm.description import Product
from ..gemm.match import FoundProduct
from ..gemm.triton_cost import fused_gain, is_notable
from ..gemm.triton_fuse import Described, ProductTemplate, computes, rereads, template_kernel
from ..gemm.triton_tiles import GemmTile
from .description import Convolution
from .match import match_convolution
from .triton_depthwise import Depthwise, DepthwiseTile, depthwise_tiles, depthwise_triton
from .triton_implicit_gemm import convolution_triton
from .triton_tiles import convolution_neighbours, convolution_tiles

RULE, FAMILY = "convolution-template", "convolution-kernel"
_SMALL = 1 << 27  # multiplications that take no longer than a launch
_SLOW = 32  # multiplications of many channels that take as long as one of few
_KERNELS = 6  # compiled for a graph by default: each takes a second
_WORTH = 0.18  # of the library's best time: an epilogue is measured if it saves more
# Passes over the result that a kernel saves: those of an epilogue, or of slow cases of the library.
_EPILOGUE, _SINGLE, _GROUP, _FEW = 2, 3, 4, 8
_ALONE = 1 << 24  # elements that are moved while a library computes one group after another: 10 us for each


class ConvolutionTemplate(ProductTemplate):
    """The differences from products; in training graphs, only `thorough` compilations measure convolutions."""

    rule, family, option, name = RULE, FAMILY, "convolutions", "convolutions"
    most_kinds = _KERNELS

    def match(self, node: fx.Node) -> FoundProduct | Reason | None:
        """A convolution with its epilogue."""
        return match_convolution(node)

    def variants(self, found: FoundProduct, node: fx.Node) -> Iterator[FoundProduct]:  # noqa: ARG002
        """Operands are read as they are."""
        yield found

    def candidates(self, described: Described) -> Sequence[GemmTile]:
        """The tiles to measure."""
        convolution = described.product
        assert isinstance(convolution, Convolution)
        if isinstance(convolution, Depthwise):
            return depthwise_tiles(convolution, self.count)
        return convolution_tiles(convolution, self.task.gpu, self.count)

    def around(self, described: Described, config: GemmTile) -> Sequence[GemmTile]:
        """Tiles that differ little from a given one."""
        convolution = described.product
        assert isinstance(convolution, Convolution)
        if isinstance(convolution, Depthwise):
            return []  # all of them have been measured
        return convolution_neighbours(convolution, config, self.task.gpu)

    def source(self, described: Described, config: GemmTile) -> TritonTemplateKernel:
        """The kernel with a tile."""
        convolution = described.product
        assert isinstance(convolution, Convolution)
        label = described.label.removeprefix("convolution").removeprefix("_")  # as the kernel's name begins
        if isinstance(convolution, Depthwise):
            assert isinstance(config, DepthwiseTile)
            return depthwise_kernel(convolution, config, label, self.task.device)
        return convolution_kernel(convolution, config, label, self.task.device, self.task.gpu)

    def work(self, described: Described) -> int:
        """Elements that are written or read less, more or less."""
        convolution = described.product
        assert isinstance(convolution, Convolution)
        groups = convolution.batch.extent
        passes = _FEW if convolution.merged else _GROUP if groups > 1 else _EPILOGUE
        elements = groups * convolution.row.extent * convolution.column.extent
        if isinstance(convolution, Depthwise):
            return _SINGLE * elements
        return passes * elements + (groups * _ALONE if groups > 1 else 0)

    def is_worth(self, described: Described, work: int) -> bool:
        """Whether all layers of a kind together save so much that it is worth a second of compilation."""
        convolution = described.product
        return is_slow(convolution) or is_notable(work * convolution.dtype.itemsize, self.task.gpu)

    def reconsidered(
        self,
        found: FoundProduct,  # noqa: ARG002
        described: Described,  # noqa: ARG002
        decision: Decision,
        kernels: Mapping[str, TritonTemplateKernel],  # noqa: ARG002
    ) -> Decision:
        """Convolutions share no launches."""
        return decision

    def finish(self) -> None:
        """Convolutions are not merged."""

    def replace(self, found: FoundProduct, kernel: TritonTemplateKernel, place: fx.Node) -> None:
        """Put the call into the graph, with the weight as the kernel reads it, for all that share it."""
        x, weight, *others = found.inputs
        inputs = (x, self.copies.of(weight, kernel.inputs[1].strides), *others)
        replace_by_call(self.task.graph, found, inputs, kernel, place, self.rule, found.kept)

    def considers(self, found: FoundProduct) -> bool:
        """Whether to look at a convolution at all: cuDNN does those without an epilogue as well, of many channels."""
        if self.task.measures_all:
            return True
        if is_slow(found.product):
            return True
        # Of single precision the library may well compute all digits, though the user's settings ask for fewer.
        return not self.task.training and computes(found) and found.product.a.buffer.dtype.itemsize == 2

    def estimate(self, found: FoundProduct) -> str | None:
        """Why a kernel cannot be faster, by an estimate; None if it may be."""
        slow = is_slow(found.product)
        if found.product.multiplications * (_SLOW if slow else 1) < _SMALL:
            return "less work than a launch"
        if self.task.thorough or slow:
            return None
        gain = fused_gain(found.product, self.task.gpu, 1 if rereads(found) else 0)
        return None if gain >= _WORTH else f"the epilogue would save {gain:.0%} of the convolution's time"


def is_slow(product: Product) -> bool:
    """Whether the library has no good kernel: images of few channels, groups, and channels apart from each other."""
    few = isinstance(product, Convolution) and (product.merged or product.batch.extent > 1)
    return few or isinstance(product, Depthwise)


@functools.lru_cache(maxsize=256)
def convolution_kernel(
    convolution: Convolution, tile: GemmTile, label: str, device: int, gpu: Gpu
) -> TritonTemplateKernel:
    """The kernel of a convolution with a tile; equal ones are the same.

    Raises:
        UnsupportedDtypeError: the epilogue computes with a dtype that Triton has no type for.
    """
    source = convolution_triton(convolution, tile, gpu.processors, label)
    plain = convolution_triton(convolution, replace(tile, descriptors=False), gpu.processors, label)
    return template_kernel("convolution", convolution, source, plain, device)


@functools.lru_cache(maxsize=256)
def depthwise_kernel(convolution: Depthwise, tile: DepthwiseTile, label: str, device: int) -> TritonTemplateKernel:
    """The kernel of a convolution of single channels; equal ones are the same.

    Raises:
        UnsupportedDtypeError: the epilogue computes with a dtype that Triton has no type for.
    """
    source = depthwise_triton(convolution, tile, label)
    return template_kernel("depthwise", convolution, source, source, device)
