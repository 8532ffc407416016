"""The pass on GPUs: convolutions with the operations that read their results become calls of generated kernels.

%convolution = ...; %add = ...; %relu = ...   ->   convolution_add_relu_3f2a_128x64x64_4w4s_tma(%x, %weight, %bias)

cuDNN multiplies as fast as a GPU can, and a kernel follows it that reads and writes the image once more. A kernel of
our own pays where that pass counts: in early layers, whose images are large. That is estimated first; where all layers
of a kind may save 50 microseconds, it is measured as products are (see `gemm.triton_fuse`). Images of few channels, and
convolutions of single ones, cuDNN computes at a fraction of the speed of memory, and groups it computes one after the
other: these are asked about without an epilogue, and in training, too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from torch import fx

from ....rewrites.reason import Reason
from ...gpu import Gpu
from ..attention.bias_layout import Copies
from ..common.task import Task
from ..common.triton_call import TritonTemplateKernel
from ..gemm.description import Product
from ..gemm.match import FoundProduct
from ..gemm.triton_cost import cycles_to_move, fused_gain
from ..gemm.triton_fuse import ProductPass, computes, rereads, template_kernel
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
_NOTABLE = 85_000  # cycles, 50 microseconds, that all layers of a kind must save together
# Passes over the result that a kernel saves: those of an epilogue, or of slow cases of the library.
_EPILOGUE, _SINGLE, _GROUP, _FEW = 2, 3, 4, 8
_ALONE = 1 << 24  # elements that are moved while a library computes one group after another: 10 us for each


class ConvolutionPass(ProductPass):
    """The differences from products; in training graphs, only `thorough` compilations measure convolutions."""

    rule, family = RULE, FAMILY
    kinds = _KERNELS

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._copies = Copies()

    def match(self, node: fx.Node) -> FoundProduct | Reason | None:
        """A convolution with its epilogue."""
        return match_convolution(node)

    def found(self, plain: FoundProduct | Reason | None, node: fx.Node) -> Iterator[FoundProduct]:  # noqa: ARG002
        """The convolution that a kernel could compute: operands are read as they are."""
        if isinstance(plain, FoundProduct):
            yield plain

    def tiles(self, product: Product) -> list[GemmTile]:
        """The tiles to ask about."""
        assert isinstance(product, Convolution)
        if isinstance(product, Depthwise):
            return depthwise_tiles(product, self._count)
        return convolution_tiles(product, self.task.gpu, self._count)

    def around(self, product: Product, tile: GemmTile) -> list[GemmTile]:
        """Tiles that differ from one in little."""
        assert isinstance(product, Convolution)
        if isinstance(product, Depthwise):
            return []  # all of them have been asked about
        return convolution_neighbours(product, tile, self.task.gpu)

    def kernel(self, product: Product, tile: GemmTile, label: str) -> TritonTemplateKernel:
        """The kernel with a tile."""
        assert isinstance(product, Convolution)
        label = label.removeprefix("convolution").removeprefix("_")  # as the kernel's name begins
        if isinstance(product, Depthwise):
            assert isinstance(tile, DepthwiseTile)
            return depthwise_kernel(product, tile, label, self.task.device)
        return convolution_kernel(product, tile, label, self.task.device, self.task.gpu)

    def work(self, product: Product) -> int:
        """Elements that are written or read less, more or less."""
        assert isinstance(product, Convolution)
        groups = product.batch.extent
        passes = _FEW if product.merged else _GROUP if groups > 1 else _EPILOGUE
        elements = groups * product.row.extent * product.column.extent
        if isinstance(product, Depthwise):
            return _SINGLE * elements
        return passes * elements + (groups * _ALONE if groups > 1 else 0)

    def is_worth(self, product: Product, work: int) -> bool:
        """Whether all layers of a kind together save so much that it is worth a second of compilation."""
        return is_slow(product) or cycles_to_move(work * product.dtype.itemsize, self.task.gpu) >= _NOTABLE

    def laid_out(self, found: FoundProduct, kernel: TritonTemplateKernel) -> FoundProduct:
        """The same with the weight as the kernel reads it, for all that share it."""
        x, weight, *others = found.inputs
        return replace(found, inputs=(x, self._copies.of(weight, kernel.inputs[1].strides), *others))

    def considers(self, found: FoundProduct) -> bool:
        """Whether to look at a convolution at all: cuDNN does those without an epilogue as well, of many channels."""
        if self.task.measures_all:
            return True
        if is_slow(found.product):
            return True
        # Of single precision the library may well compute all digits, though the user's settings ask for fewer.
        return not self.task.training and computes(found) and found.product.a.buffer.dtype.itemsize == 2

    def cannot_win(self, found: FoundProduct) -> str | None:
        """Why a kernel cannot pay, by an estimate; None where it may."""
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
