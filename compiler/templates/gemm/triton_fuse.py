"""The template on GPUs: matrix products, with the operations on their results, become calls of generated kernels.

%addmm = ...; %view = ...; %gelu = ...     ->   gemm_gelu_3f2a_128x256x64_8w3s(%x, %weight, %bias)

Libraries multiply as fast as the GPU can. A generated kernel is faster if it saves a pass over memory, or if the
library has no good kernel for unaligned rows. Both gains are estimated first. If a gain is possible, a few tiles are
measured against the library call and the kernel that would follow it (see `autotune`). Products with few rows are
limited by reading their weights; they are measured too, as are weights that are computed from fewer bytes, which the
kernel then reads (see `gemm.prologue`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ....rewrites.profit import Decision
from ....rewrites.reason import Reason
from ...codegen.triton import KernelSource
from ...gpu import Gpu
from ...ir.program import Buffer
from ...ir.value import Load, Rewriter, Value
from ..common.cpp_call import Layout
from ..common.formula import is_move, packet
from ..common.replacing import replace_by_call
from ..common.task import Task
from ..common.template import ComparedProgram, GpuTemplate
from ..common.triton_call import TritonTemplateKernel
from .description import ExtraOutput, Product, Prologue
from .epilogue import is_read_by_loops
from .match import FoundProduct, has_prologue, match_gemm
from .replacement import FAMILY, RULE, ProductBaseline
from .splice import anchor_of
from .still import Still
from .triton_candidates import gemm_tiles, neighbours, promises
from .triton_cost import FEW, fused_gain, has_few_rows, has_rows_for_lanes, is_skinny
from .triton_merge import Merge, Part, can_join
from .triton_source import gemm_triton
from .triton_split_k import workspaces
from .triton_tiles import GemmTile, is_aligned

_TILES, _MORE_TILES = 1, 12  # tiles measured for each product: by default, and with max-autotune
_SOME_TILES = 3  # tiles measured if one of them will be taken in any case
_KERNELS = 4  # kernels compiled for a graph by default: each takes seconds
_SECONDS, _MORE_SECONDS = 2.0, 20.0  # budget for all questions of a graph
_FEW_ROWS_TILES, _FEW_ROWS_KERNELS, _FEW_ROWS_SECONDS = 6, 8, 4.0  # the same for few rows, whose kernels compile fast
_WORTH = 0.08  # share of the product's time that an epilogue must save to be measured
_SMALL = 1 << 27  # number of multiplications that takes no longer than a launch
_SHARED = 2e-6  # seconds saved if two products share a launch
# Relative error against the library call in float32: it allows another order of summation, but not rounding operands to
# 10 bits. Settings may permit such rounding, but a library may have no such kernel for some sizes.
_AS_PRECISE = 1e-4


@dataclass(frozen=True)
class Described:
    """A product without the names of its buffers, and the operations of its epilogue, for the kernel's name."""

    product: Product
    label: str


class ProductTemplate(GpuTemplate):
    """Products with their epilogues; convolutions override the methods in which they differ.

    In training, products are often saved as well as read by an epilogue, so that there is little to gain. There, only
    products with unaligned rows are measured. With `thorough`, every product is measured, and a search around the best
    tile follows.
    """

    rule, family, option, name = RULE, FAMILY, "products", "products"
    most_kinds = _KERNELS

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.seconds = _MORE_SECONDS if task.thorough else _SECONDS
        self.count = _MORE_TILES if task.thorough else _SOME_TILES if task.generated else _TILES
        self._still = Still(task.graph)
        self._parts: dict[str, Part] = {}  # the products of kernels, by name

    # -- the protocol ---------------------------------------------------------------------------------------------

    def match(self, node: fx.Node) -> FoundProduct | Reason | None:
        """The product that a node computes."""
        return match_gemm(node)

    def description(self, found: FoundProduct) -> Described:
        """The product without the names of its buffers."""
        return Described(renamed(found.product), _label(found))

    def candidates(self, described: Described) -> Sequence[GemmTile]:
        """The tiles to measure."""
        count = max(self.count, _FEW_ROWS_TILES) if has_few_rows(described.product) else self.count
        return gemm_tiles(described.product, self.task.gpu, count)

    def estimate(self, found: FoundProduct) -> str | None:
        """Why a kernel cannot be faster: less work than a launch, or a small epilogue."""
        return cannot_win(found, self.task.gpu, self.task.thorough)

    def source(self, described: Described, config: GemmTile) -> TritonTemplateKernel:
        """The kernel with a tile."""
        kernel = gemm_kernel(described.product, config, described.label, self.task.device, self.task.gpu)
        self._parts[kernel.name] = Part(described.product, config, described.label)
        return kernel

    # -- what is found ----------------------------------------------------------------------------------------------

    def considers(self, found: FoundProduct) -> bool:
        """Whether libraries compute the product less well."""
        if self.task.measures_all:
            return True
        return not is_aligned(found.product) if self.task.training else is_promising(found)

    def variants(self, found: FoundProduct, node: fx.Node) -> Iterator[FoundProduct]:
        """The product with operands that are computed as they are read, if that may pay, and with operands as read."""
        sides = self._sides(found.product)
        computed = match_gemm(node, sides=sides) if has_prologue(node, sides) else None
        if isinstance(computed, FoundProduct) and computed.before and self._pays(computed, found):
            yield self._early(computed)
        yield self._early(found)

    def _early(self, found: FoundProduct) -> FoundProduct:
        """For few rows, read weights before earlier kernels have ended, if nothing writes to them.

        Programs that use tensor cores would occupy shared memory that the earlier kernels need.
        """
        if self.task.gpu.capability < 90 or not has_rows_for_lanes(found.product):
            return found
        return replace(found, product=replace(found.product, early=self._still.allows(found)))

    def _sides(self, product: Product) -> str:
        """The operands that may be computed while they are read: by default those whose elements one program reads."""
        if self.task.thorough or self.task.is_forced:
            return "ab"
        few_rows, few_columns = product.row.extent <= FEW, product.column.extent <= FEW
        return "" if self.task.training else "b" * few_rows + "a" * few_columns

    def _pays(self, computed: FoundProduct, plain: FoundProduct) -> bool:
        if self.task.is_forced:
            return True
        known = self.task.thorough or is_skinny(computed.product)
        return known and promises(computed.product, plain.product, self.task.gpu)

    # -- what is measured -------------------------------------------------------------------------------------------

    def compared(self, found: FoundProduct) -> ComparedProgram:
        """The library's product, with a kernel for the epilogue."""
        return ComparedProgram(
            found.nodes,
            found.inputs,
            ProductBaseline(found),
            adapted=_Reread if rereads(found) else lambda kernel: kernel,
            cold=is_skinny(found.product),
            precision=_AS_PRECISE if found.product.dtype == torch.float32 else None,
        )

    def work(self, described: Described) -> int:
        """Multiplications."""
        return described.product.multiplications

    def most_worth(self, ranked: list[Described]) -> list[Described]:
        """The first of the ranking; products with few rows are counted separately."""
        few = [kind for kind in ranked if has_few_rows(kind.product)]
        return [*few[:_FEW_ROWS_KERNELS], *[kind for kind in ranked if kind not in few][: self.most_kinds]]

    def seconds_for(self, described: Described) -> float:
        """More time for few rows, of which more are measured."""
        return _FEW_ROWS_SECONDS if has_few_rows(described.product) else 0.0

    def around(self, described: Described, config: GemmTile) -> Sequence[GemmTile]:
        """Tiles that differ little from a given one."""
        return neighbours(described.product, config, self.task.gpu)

    # -- the graph ----------------------------------------------------------------------------------------------------

    def place(self, found: FoundProduct) -> fx.Node | str:
        """The place where the operands of the epilogue are known, before others read the product; or why none is."""
        why = "the product is read before the epilogue has its operands, or memory is written to in between"
        return anchor_of(self.task.graph, found) or why

    def replace(self, found: FoundProduct, kernel: TritonTemplateKernel, place: fx.Node) -> None:
        """Put the call of a kernel into the graph; it reads operands as they lie."""
        replace_by_call(self.task.graph, found, found.inputs, kernel, place, self.rule, found.kept)

    def reconsidered(
        self,
        found: FoundProduct,
        described: Described,  # noqa: ARG002
        decision: Decision,
        kernels: Mapping[str, TritonTemplateKernel],
    ) -> Decision:
        """A kernel that loses by less than one launch, if another product of its activation can share its launch.

        %q = gemm(%x, %w_q); %k = mm(%x, %w_k)     ->   %q, %k = gemm(%x, %w_q, %w_k)     (see `gemm.triton_merge`)
        """
        times = decision.evidence.times
        tiles = {name: self._parts[kernel.name].tile for name, kernel in kernels.items()}
        measured = [name for name, tile in tiles.items() if name in times and not tile.descriptors]
        if decision.chosen or "original" not in times or not measured or not can_join(found.product):
            return decision
        name = min(measured, key=times.__getitem__)
        beside = [self._parts.get(getattr(user.target, "name", "")) for user in found.inputs[0].users]
        alike = any(part is not None and _may_share(part, found.product, tiles[name]) for part in beside)
        if not alike or times[name] > times["original"] + _SHARED:
            return decision
        return Decision(name, replace(decision.evidence, note="shares the launch of another product of its activation"))

    def finish(self) -> None:
        """Merge kernels that read the same few rows."""
        Merge(self.task, self._parts).run()


def _may_share(part: Part, product: Product, tile: GemmTile) -> bool:
    """Whether a product may share a launch with another product of the same activation."""
    mine, theirs = (product.depth, tile.by_lanes, product.early), (part.product.depth, part.tile.by_lanes)
    return can_join(part.product) and mine == (*theirs, part.product.early)


def rereads(found: FoundProduct) -> bool:
    """Whether the loops that would otherwise compute the epilogue must then load its result."""
    return computes(found) and is_read_by_loops(found.output)


class _Reread:
    """A kernel followed by one read of its result, which the loops that would compute the epilogue need."""

    def __init__(self, kernel: TritonTemplateKernel) -> None:
        self.kernel = kernel

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The kernel's results."""
        made = self.kernel(*tensors)
        torch.sum(made[0] if isinstance(made, tuple) else made)
        return made


def cannot_win(found: FoundProduct, gpu: Gpu, thorough: bool) -> str | None:
    """Why a kernel cannot be faster, by an estimate; None if it may be."""
    product = found.product
    if is_skinny(product):
        return None
    if product.multiplications < _SMALL:
        return "less work than a launch"
    if thorough or not computes(found):
        return None
    gain = fused_gain(product, gpu, 1 if rereads(found) else 0)
    return None if gain >= _WORTH else f"the epilogue would save {gain:.0%} of the product's time"


def is_promising(found: FoundProduct) -> bool:
    """Whether library calls handle the product less well: an epilogue, unaligned rows, or few rows."""
    return computes(found) or bool(found.before) or not is_aligned(found.product) or is_skinny(found.product)


def computes(found: FoundProduct) -> bool:
    """Whether the epilogue is more than the bias that the library call adds itself."""
    own = {found.call, *found.before}
    return any(node not in own and not is_move(node) for node in (*found.nodes, found.output))


def _label(found: FoundProduct) -> str:
    """The operations of the epilogue, for the kernel's name, e.g. ``gelu``."""
    names = [packet(node).partition(".")[2].strip("_") for node in found.nodes if not is_move(node)]
    return "_".join(dict.fromkeys(name for name in names if name.isidentifier()))[:40]


def renamed(product: Product) -> Product:
    """The product with its buffers named by position, so that equal products of different graphs are equal."""
    names = {b.name: f"p{number}" for number, b in enumerate(product.reads)}

    def load(value: Value) -> Value | None:
        if not isinstance(value, Load) or value.buffer not in names:
            return None
        return Load(names[value.buffer], value.indices, value.dtype)

    def named(buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
        return tuple(replace(b, name=names[b.name]) for b in buffers)

    def prologue(given: Prologue | None) -> Prologue | None:
        return given and replace(given, value=rewrite(given.value), buffers=named(given.buffers))

    rewrite = Rewriter(load)
    more = tuple(ExtraOutput(x.buffer, x.place, rewrite(x.value)) for x in product.more)
    a, b = (replace(x, buffer=named([x.buffer])[0]) for x in (product.a, product.b))
    return replace(
        product, a=a, b=b, value=rewrite(product.value), more=more, buffers=named(product.buffers),
        left=prologue(product.left), right=prologue(product.right),
    )  # fmt: skip


@functools.lru_cache(maxsize=512)
def gemm_kernel(product: Product, tile: GemmTile, label: str, device: int, gpu: Gpu) -> TritonTemplateKernel:
    """The kernel of a product with a tile; equal products give the same kernel.

    Raises:
        UnsupportedDtypeError: the epilogue computes with a dtype that Triton has no type for.
    """
    source = gemm_triton(product, tile, gpu.processors, label)
    plain = gemm_triton(product, replace(tile, descriptors=False, cores=False), gpu.processors, label)
    own = tuple(map(Layout.of, workspaces(product, tile)))
    return template_kernel("gemm", product, source, plain, device, own)


def template_kernel(
    template: str,
    product: Product,
    source: KernelSource,
    plain: KernelSource,
    device: int,
    own: tuple[Layout, ...] = (),
) -> TritonTemplateKernel:
    """The callable kernel of a product, from its source, its source for unaligned operands, and its workspaces."""
    inputs = tuple(map(Layout.of, product.reads))
    outputs = tuple(Layout.of(x.buffer) for x in product.results)
    name = source.launches[0].name
    return TritonTemplateKernel(name, template, source, plain, inputs, outputs, device, product.flops, own)
