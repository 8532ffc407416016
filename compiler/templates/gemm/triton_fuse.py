"""The pass on GPUs: matrix products, with the operations on their results, become calls of generated kernels.

%addmm = ...; %view = ...; %gelu = ...     ->   gemm_gelu_3f2a_128x256x64_8w3s(%x, %weight, %bias)

Libraries multiply as fast as the GPU can. A generated kernel is faster if it saves a pass over memory, or if the
library has no good kernel for unaligned rows. Both gains are estimated first. If a gain is possible, a few tiles are
measured against the library call and the kernel that would follow it (see `autotune`). Products with few rows are
limited by reading their weights; they are measured too, as are weights that are computed from fewer bytes, which the
kernel then reads (see `gemm.prologue`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ....rewrites.profit import Decision, Question
from ....rewrites.reason import Reason
from ....rewrites.record import Evidence, Match
from ...codegen.triton import KernelSource, TritonMissing, UnsupportedDtypeError
from ...gpu import Gpu
from ...ir.program import Buffer
from ...ir.value import Load, Rewriter, Value
from ..common.compiled_candidates import CompiledCandidates
from ..common.cpp_call import Layout
from ..common.formula import is_move, packet
from ..common.questions import CANNOT_COMPILE, Questions
from ..common.records import decided
from ..common.task import Task
from ..common.triton_call import TritonTemplateKernel
from .description import Product, Prologue, Result
from .epilogue import is_read_by_loops
from .match import FoundProduct, has_prologue, match_gemm
from .replacement import FAMILY, RULE, ProductBaseline
from .splice import anchor_of, replace_product
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
_ROUNDS = 3  # rounds of the search around the best tile
# Relative error against the library call in float32: it allows another order of summation, but not rounding operands to
# 10 bits. Settings may permit such rounding, but a library may have no such kernel for some sizes.
_AS_PRECISE = 1e-4


_Kind = tuple[Product, str]


def _nothing(_: FoundProduct) -> None:
    """Do not start compiling anything."""


class ProductPass:
    """The pass over one graph; other templates override the methods in which they differ.

    In training, products are often saved as well as read by an epilogue, so that there is little to gain. There, only
    products with unaligned rows are measured. With `thorough`, every product is measured, and a search around the best
    tile follows.
    """

    rule, family = RULE, FAMILY
    kinds = _KERNELS

    def __init__(self, task: Task) -> None:
        self.task = task
        self._count = _MORE_TILES if task.thorough else _SOME_TILES if task.generated else _TILES
        self._questions = Questions(task, self.rule, self.family, _MORE_SECONDS if task.thorough else _SECONDS)
        self._asked: set[str] = set()
        self._tiles: dict[str, GemmTile] = {}
        self._tiles_of = functools.cache(lambda kind: self.tiles(kind[0]))  # most layers are the same
        self._begun: dict[
            tuple[fx.Node, str], CompiledCandidates
        ] = {}  # by the product's output and the key of the question
        self._still = Still(task.graph)
        self._parts: dict[str, Part] = {}  # the products of kernels, by name
        self._chosen: set[_Kind] | None = None  # the kinds that justify compiling; None if all do
        self._nodes: list[fx.Node] | None = None  # the nodes that are products, while nothing else changes the graph

    def begin(self, taken: Collection[fx.Node] = ()) -> None:
        """Start compiling the kernels that will be measured, in other processes.

        Args:
            taken: nodes that other kernels may replace before this pass runs.
        """
        if self.task.is_forced:
            return
        nodes = self._look(taken, self._begin)
        self._nodes = None if taken else nodes

    def run_all(self) -> int:
        """Decide on every product that is found; returns the number of products replaced."""
        fused = 0
        for node in self._look() if self._nodes is None else self._nodes:
            # A product that was found earlier may read nodes that were replaced since: match again.
            fused += any(self.run(found) for found in self.found(self.match(node), node) if self.considers(found))
        self.finish()
        return fused

    def finish(self) -> None:
        """Merge kernels that read the same few rows."""
        Merge(self.task, self._parts).run()

    # -- the template ---------------------------------------------------------------------------------------------

    def match(self, node: fx.Node) -> FoundProduct | Reason | None:
        """The product that a node computes."""
        return match_gemm(node)

    def tiles(self, product: Product) -> list[GemmTile]:
        """The tiles to measure."""
        count = max(self._count, _FEW_ROWS_TILES) if has_few_rows(product) else self._count
        return gemm_tiles(product, self.task.gpu, count)

    def around(self, product: Product, tile: GemmTile) -> list[GemmTile]:
        """Tiles that differ little from a given one."""
        return neighbours(product, tile, self.task.gpu)

    def kernel(self, product: Product, tile: GemmTile, label: str) -> TritonTemplateKernel:
        """The kernel with a tile."""
        return gemm_kernel(product, tile, label, self.task.device, self.task.gpu)

    def cannot_win(self, found: FoundProduct) -> str | None:
        """Why a kernel cannot be faster, by an estimate; None if it may be."""
        return cannot_win(found, self.task.gpu, self.task.thorough)

    def work(self, product: Product) -> int:
        """The amount by which products are ranked if there are too many to measure."""
        return product.multiplications

    def is_worth(self, product: Product, work: int) -> bool:  # noqa: ARG002
        """Whether the work of all products of a kind justifies compiling a kernel."""
        return True

    def laid_out(self, found: FoundProduct, kernel: TritonTemplateKernel) -> FoundProduct:  # noqa: ARG002
        """A product whose operands have the strides for which the kernel is written."""
        return found

    # -- the questions --------------------------------------------------------------------------------------------

    def _look(
        self, others: Collection[fx.Node] = (), begin: Callable[[FoundProduct], None] = _nothing
    ) -> list[fx.Node]:
        """The products that a kernel could compute; if there are many, those that are most worth measuring.

        Args:
            others: nodes to leave out.
            begin: is called with one product of each kind that may be measured.
        """
        nodes = []
        weights, first = Counter[_Kind](), dict[_Kind, FoundProduct]()
        taken = set[fx.Node]()
        for node in list(self.task.graph.nodes):
            plain = None if node in others else self.match(node)
            if isinstance(plain, Reason) and not others:
                self._questions.refuse(node, plain)
            found = next(filter(self.considers, self.found(plain, node)), None)
            if found is None:
                continue
            nodes.append(node)
            if self.task.is_forced or self._why_not(found) is not None:
                continue
            kind, mine = _kind(found), {item for item in found.nodes if not is_move(item)}
            first.setdefault(kind, found)
            # If two products meet in an epilogue, the first takes it; the second is tried if the first declines.
            weights[kind] += 0 if mine & taken else self.work(found.product)
            taken |= mine
        if not (self.task.thorough or self.task.generated):
            worth = self._most_worth([kind for kind, n in weights.most_common() if n and self.is_worth(kind[0], n)])
            self._chosen = set(worth) if len(worth) < sum(map(bool, weights.values())) else None
        for kind, found in first.items():
            if self._chosen is None or kind in self._chosen:
                begin(found)
        return nodes

    def _most_worth(self, kinds: list[_Kind]) -> list[_Kind]:
        """The first kinds of the ranking; products with few rows are counted separately."""
        few = [kind for kind in kinds if has_few_rows(kind[0])]
        if few:
            self._questions.allow(_FEW_ROWS_SECONDS)
        return [*few[:_FEW_ROWS_KERNELS], *[kind for kind in kinds if kind not in few][: self.kinds]]

    def _begin(self, found: FoundProduct) -> None:
        kind = _kind(found)
        with contextlib.suppress(UnsupportedDtypeError, TritonMissing):
            kernels = self._kernels(kind, self._tiles_of(kind))
            compiled = CompiledCandidates(ProductBaseline(found), kernels.values(), self.task.while_compiling)
            compiled.begin()
            self._begun[found.output, _key(found, kernels)] = compiled

    def found(self, plain: FoundProduct | Reason | None, node: fx.Node) -> Iterator[FoundProduct]:
        """The variants of a product that a kernel could compute, the largest first, operands as read last."""
        if not isinstance(plain, FoundProduct):
            return
        sides = self._sides(plain.product)
        computed = match_gemm(node, sides=sides) if has_prologue(node, sides) else None
        if isinstance(computed, FoundProduct) and computed.before and self._pays(computed, plain):
            yield self._early(computed)
        yield self._early(plain)

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

    def considers(self, found: FoundProduct) -> bool:
        """Whether to look at a product at all."""
        if self.task.measures_all:
            return True
        return not is_aligned(found.product) if self.task.training else is_promising(found)

    def run(self, found: FoundProduct) -> bool:
        """Decide on one product; returns whether it was replaced."""
        why = self._why_not(found)
        if why is None and self._chosen is not None and _kind(found) not in self._chosen:
            why = "others of this graph promise more, or all of its kind too little for the time to compile it"
        anchor = anchor_of(self.task.graph, found)
        if anchor is None:
            why = "the product is read before the epilogue has its operands, or memory is written to in between"
        if why is not None:
            return self._decline(found, f"estimate: {why}")
        try:
            kind = _kind(found)
            kernels = self._kernels(kind, self._tiles_of(kind))
            if not kernels:
                return self._decline(found, "no tile fits this GPU")
            if self._questions.are_over and _key(found, kernels) not in self._asked:
                return self._decline(found, "the time for measurements of this graph is spent")
            decision, kernel = self._decide(found, kernels)
            decision, kernel = (decision, kernel) if kernel is not None else self._joins(found, kernels, decision)
            decision = self._questions.switched(decision, [*found.nodes, found.output])
            kernel = kernel if decision.chosen is not None else None
            if kernel is not None:
                kernel.build()
        except CANNOT_COMPILE as error:
            self._questions.refuse_error(found.output, error)
            return False
        (self.task.record.applied if kernel else self.task.record.declined).append(self._recorded(found, decision))
        if kernel is not None and anchor is not None:
            replace_product(self.task.graph, self.laid_out(found, kernel), kernel, anchor, self.rule)
        return kernel is not None

    def _why_not(self, found: FoundProduct) -> str | None:
        """Why a product is not measured, by an estimate; None if it is measured."""
        return None if self.task.is_forced or self.task.generated else self.cannot_win(found)

    def _decline(self, found: FoundProduct, note: str) -> bool:
        self.task.record.declined.append(self._recorded(found, Decision(None, Evidence(note=note))))
        return False

    def _recorded(self, found: FoundProduct, decision: Decision) -> Match:
        return decided(self.rule, self.family, found.nodes, found.output, decision)

    def _kernels(self, kind: _Kind, tiles: Sequence[GemmTile]) -> dict[str, TritonTemplateKernel]:
        """A kernel for each tile, by the tile's name."""
        product, label = kind
        self._tiles.update((str(tile), tile) for tile in tiles)
        made = [self.kernel(product, tile, label) for tile in tiles]
        self._parts |= {kernel.name: Part(product, tile, label) for tile, kernel in zip(tiles, made, strict=True)}
        return {str(tile): kernel for tile, kernel in zip(tiles, made, strict=True)}

    def _decide(
        self, found: FoundProduct, kernels: dict[str, TritonTemplateKernel]
    ) -> tuple[Decision, TritonTemplateKernel | None]:
        """The oracle's decision, and the kernel that it chose, if any."""
        decision = self._ask(found, kernels)
        self._asked.add(_key(found, kernels))
        for _ in range(_ROUNDS if self.task.thorough and not self.task.is_forced else 0):
            if decision.chosen is None:
                break
            tile = self._tiles[decision.chosen]
            more = self._kernels(_kind(found), [tile, *self.around(found.product, tile)])
            better = self._ask(found, more)
            if better.chosen in (None, decision.chosen):
                break
            decision, kernels = better, more
        chosen = kernels[decision.chosen] if decision.chosen is not None else None
        return decision, chosen

    def _joins(
        self, found: FoundProduct, kernels: Mapping[str, TritonTemplateKernel], decision: Decision
    ) -> tuple[Decision, TritonTemplateKernel | None]:
        """A kernel that loses by less than one launch, if another product of its activation can share its launch.

        %q = gemm(%x, %w_q); %k = mm(%x, %w_k)     ->   %q, %k = gemm(%x, %w_q, %w_k)     (see `gemm.triton_merge`)
        """
        times = decision.evidence.times
        measured = [name for name in kernels if name in times and not self._tiles[name].descriptors]
        if "original" not in times or not measured or not can_join(found.product):
            return decision, None
        name = min(measured, key=times.__getitem__)
        beside = [self._parts.get(getattr(user.target, "name", "")) for user in found.inputs[0].users]
        alike = any(part is not None and _may_share(part, found.product, self._tiles[name]) for part in beside)
        if not alike or times[name] > times["original"] + _SHARED:
            return decision, None
        note = "shares the launch of another product of its activation"
        return Decision(name, replace(decision.evidence, note=note)), kernels[name]

    def _ask(self, found: FoundProduct, kernels: Mapping[str, TritonTemplateKernel]) -> Decision:
        key = _key(found, kernels)
        compiled = self._begun.pop((found.output, key), None)
        compiled = compiled or CompiledCandidates(ProductBaseline(found), kernels.values(), self.task.while_compiling)
        question = Question(
            rule=self.rule,
            key=key,
            inputs=[node.meta["val"] for node in found.inputs],
            original=compiled.baseline,
            candidates={name: _Reread(k) if rereads(found) else k for name, k in kernels.items()},
            prepare=compiled.prepare,
            cold=is_skinny(found.product),
            precision=_AS_PRECISE if found.product.dtype == torch.float32 else None,
        )
        return self._questions.ask(compiled, question)


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


def _kind(found: FoundProduct) -> _Kind:
    """The product without the names of its buffers."""
    return renamed(found.product), _label(found)


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
    more = tuple(Result(x.buffer, x.place, rewrite(x.value)) for x in product.more)
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


def _key(found: FoundProduct, kernels: Mapping[str, TritonTemplateKernel]) -> str:
    texts = "\n".join(kernel.source.text for kernel in kernels.values())
    digest = hashlib.blake2b(texts.encode(), digest_size=8).hexdigest()
    return " ".join([digest, *(str(node.target) for node in found.nodes)])
