"""The pass on CPUs: matrix products, with the operations on their results, become calls of generated kernels.

%linear = ...; %gelu = ...                              ->   gemm_3f2a(%x, %weight, %bias)
%w = mul(to(%int8), %scale); %linear = ...(%x, %w)      ->   gemm_77b0(%x, %int8, %scale)          few rows
%w = ..; %_linear_pointwise = ...(%x, reorder(%w))      ->   gemm_5d1c(%x, packed(%w), %bias)
%_int_mm = ...; %scaled = mul(to(%_int_mm), %scale)     ->   gemm_90f4(%x, %weight, %scale)
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ....rewrites.profit import SWITCHED_OFF, Always, Decision, Never, Oracle, Question
from ....rewrites.reason import Reason
from ....rewrites.record import Evidence, GraphRecord
from ....rewrites.switches import allowed
from ...codegen.cpp.dtypes import UnsupportedDtype
from ...lowering.core import contiguous
from ..common.cpp_call import Layout, TemplateKernel, compiles, lanes, template_kernel
from ..common.formula import packet
from ..common.records import decided, near_miss
from ..common.replacing import Copies, replace_by_call
from .cpp import PRELUDE, gemm_cpp
from .cpp_bytes import TOGETHER, bytes_cpp, has_byte_dots, multiplies_bytes
from .cpp_few_rows import few_rows_cpp, is_served
from .description import CPU_FEW_ROWS, Matrix, Product
from .match import FoundProduct, has_prologue, match_gemm
from .operands import BYTES, LINEAR, ONEDNN, Operands, is_product, operands_of
from .packing import LastPacked, packed_node, packed_sizes
from .replacement import FAMILY, RULE, ProductBaseline
from .splice import anchor_of

CANDIDATE, FEW_ROWS = "generated", "generated_few_rows"
MOST_ROWS = 4  # most rows for which packing the weight takes longer than reading it
_KERNELS = 8  # most kernels compiled for a graph if only few rows are measured, of weights that are not computed
_LARGE = 1 << 18  # fewest bytes of a weight that takes long to read
_SMALL = 1 << 15  # number of multiplications that takes no longer than the call
_BYTE = 8  # number of multiplications of many rows that takes as long as reading a byte of a weight
_SHARE = 0.01  # part of the time of a graph's products from which on a kernel is compiled if only few rows are measured


def fuse_gemm(
    graph_module: fx.GraphModule, oracle: Oracle, record: GraphRecord, packed: bool, few_rows: bool = False
) -> int:
    """Replace the matrix products of an inference graph by generated kernels, as the oracle decides.

    Args:
        graph_module: a graph after autograd, static sizes, on a CPU; changed in place.
        oracle: decides whether a kernel is faster than the nodes that it would replace.
        record: receives applied and declined matches, and near misses with their reasons.
        packed: whether calls on constant weights will be folded, so that packing costs nothing at run time.
        few_rows: look only at products with few rows and large weights, whose time is that of reading the weights.

    Returns:
        The number of products replaced.
    """
    fusion, fused = _ProductFusion(graph_module.graph, oracle, record, packed, few_rows), 0
    for item in fusion.prepared():
        # A product that was found earlier may read nodes that were replaced since: match again.
        fused += any(fusion.run(found) for found in fusion.found(item) if isinstance(found, FoundProduct))
    return fused


class _ProductFusion:
    def __init__(self, graph: fx.Graph, oracle: Oracle, record: GraphRecord, packed: bool, few_rows: bool) -> None:
        self._graph, self._oracle, self._record = graph, oracle, record
        self._packed, self._few_rows = packed, few_rows
        self._left_out: set[str] = set()  # kernels that do not justify compiling
        self._copies = Copies()

    def prepared(self) -> list[fx.Node]:
        """The products that a kernel could compute; distinct kernels are compiled side by side."""
        nodes: dict[fx.Node, None] = {}
        kernels: dict[str, TemplateKernel] = {}
        work, reading = Counter[str](), Counter[str]()
        for node in list(self._graph.nodes):
            for found in self.found(node):
                if isinstance(found, Reason):
                    if not self._few_rows:
                        self._record.near_misses.append(near_miss(RULE, FAMILY, node, found))
                    continue
                nodes[node] = None
                if self._cannot_win(found) is None:
                    mine = {kernel.name: kernel for kernel in self._kernels(found).values()}
                    kernels |= mine
                    if not found.before:
                        work.update(dict.fromkeys(mine, found.product.multiplications))
                        reading.update(dict.fromkeys(mine, _time(found.call)))
        if self._few_rows:
            asks_all = isinstance(self._oracle, (Always, Never))
            least = 0 if asks_all else _SHARE * sum(map(_time, self._graph.nodes))
            self._left_out = {name for name, _ in work.most_common()[_KERNELS:]}
            self._left_out |= {name for name, time in reading.items() if time < least}
            kernels = {name: kernel for name, kernel in kernels.items() if name not in self._left_out}
        if len(kernels) > 1 and not isinstance(self._oracle, Never):
            with ThreadPoolExecutor(len(kernels)) as pool:
                list(pool.map(compiles, kernels.values()))
        return list(nodes)

    def found(self, node: fx.Node) -> Iterator[FoundProduct | Reason]:
        """The variants of a product that kernels could compute: with a weight computed while read, and without."""
        operands = operands_of(node) if self._few_rows and is_product(node) else None
        if isinstance(operands, Operands) and operands.sizes[1] > CPU_FEW_ROWS and packet(node) != BYTES:
            return
        plain = match_gemm(node, self._packed)
        if plain is None:
            return
        if isinstance(plain, FoundProduct) and has_prologue(node, "b"):
            computed = match_gemm(node, sides="b")
            if isinstance(computed, FoundProduct) and computed.before and self._considers(computed):
                yield computed
                if self._few_rows:
                    return
        if isinstance(plain, Reason) or self._considers(plain):
            yield plain

    def _considers(self, found: FoundProduct) -> bool:
        product = found.product
        if product.is_of_bytes:
            return not found.before
        if found.before or self._few_rows:
            served = has_few_rows(product) and is_served(replace(product, packed=False), lanes())
            return served and (not self._few_rows or _is_large(product))
        return True

    def run(self, found: FoundProduct) -> bool:
        """Decide on one product; returns whether it was replaced."""
        kernels = self._kernels(found)
        if not kernels:
            return False
        declined = self._cannot_win(found)
        if all(kernel.name in self._left_out for kernel in kernels.values()):
            declined = Decision(None, Evidence(note="estimate: others of this graph promise more"))
        if anchor_of(self._graph, found) is None:
            declined = Decision(None, Evidence(note="memory is written to between the product and what it reads"))
        decision = declined or self._oracle.decide(_question(found, kernels))
        if decision.chosen is not None and not allowed("template", RULE, [*found.nodes, found.output]):
            decision = SWITCHED_OFF
        kernel = kernels.get(decision.chosen or "")
        if kernel is not None and not compiles(kernel):
            self._refuse(found, "no-compiler", f"{kernel.name} does not compile here")
            return False
        records = self._record.applied if kernel else self._record.declined
        records.append(decided(RULE, FAMILY, found.nodes, found.output, decision))
        if kernel is not None:
            self._replace(found, kernel, packed=found.product.packed and decision.chosen == CANDIDATE)
        return kernel is not None

    def _kernels(self, found: FoundProduct) -> dict[str, TemplateKernel]:
        """The kernels of a product, by candidate; empty if there is none, which is then recorded with a reason."""
        product, made = found.product, dict[str, TemplateKernel]()
        try:
            if product.dtype == torch.float32 and not found.before and not self._few_rows:
                made[CANDIDATE] = gemm_kernel(product)
            if multiplies_bytes(product) and has_byte_dots(lanes()):
                made[CANDIDATE] = gemm_kernel(product)
            plain = replace(product, packed=False)
            if has_few_rows(product) and is_served(plain, lanes()):
                made[FEW_ROWS] = few_rows_kernel(plain)
        except UnsupportedDtype as error:
            self._refuse(found, "epilogue-dtype", str(error))
            return made
        if not made:
            self._refuse(found, *_unserved(product))
        return made

    def _refuse(self, found: FoundProduct, code: str, message: str) -> None:
        self._record.near_misses.append(near_miss(RULE, FAMILY, found.output, Reason(code, message)))

    def _cannot_win(self, found: FoundProduct) -> Decision | None:
        """A decision for no candidate if an estimate rules all out, unless options ask for every legal kernel."""
        product = found.product
        if isinstance(self._oracle, (Always, Never)):
            return None
        if product.row.extent < MOST_ROWS and not product.packed and not is_served(product, lanes()):
            return Decision(None, Evidence(note="estimate: so few rows that reading the weight is all there is to it"))
        if product.multiplications < _SMALL:
            return Decision(None, Evidence(note="estimate: less work than a call"))
        return None

    # -- the graph ------------------------------------------------------------------------------------------------

    def _replace(self, found: FoundProduct, kernel: TemplateKernel, packed: bool) -> None:
        inputs = [self._placed(node, layout) for node, layout in zip(found.inputs, kernel.inputs, strict=True)]
        if packed:
            inputs[1] = self._packed_weight(found)
        replace_by_call(self._graph, found, inputs, kernel, found.output, RULE)

    def _packed_weight(self, found: FoundProduct) -> fx.Node:
        """The packed weight, computed right after the weight; folding merges equal calls."""
        weight = found.inputs[1]
        before = weight.next
        while before.op in ("placeholder", "get_attr"):
            before = before.next
        with self._graph.inserting_before(before):
            return packed_node(weight, lanes(), is_transposed(found))

    def _placed(self, node: fx.Node, layout: Layout) -> fx.Node:
        """The input with the strides that the kernel reads; packed weights have sizes of their own."""
        return self._copies.of(node, layout.strides) if tuple(node.meta["val"].shape) == layout.sizes else node


def _unserved(product: Product) -> tuple[str, str]:
    """Code and message for a product that no kernel computes."""
    if not product.is_of_bytes:
        return "dtype", f"{product.dtype} is multiplied where there are few rows, else float32"
    if not has_byte_dots(lanes()):
        return "instructions", "this processor has no instruction for products of bytes (AVX512-VNNI)"
    if product.depth % TOGETHER:
        return "depth", f"bytes are multiplied by fours along the depth, which is {product.depth}"
    return "layout", f"columns of the weight begin {product.b.column} bytes apart, which is no multiple of {TOGETHER}"


def is_transposed(found: FoundProduct) -> bool:
    """Whether the weight has sizes (columns, depth)."""
    return packet(found.call) in (LINEAR, ONEDNN)


def has_few_rows(product: Product) -> bool:
    """Whether a kernel may read the weight in place: with few rows any, with some more one of 16 bits or fewer."""
    if product.is_of_bytes:
        return False
    narrow = product.right is not None or {product.a.buffer.dtype, product.b.buffer.dtype} == {torch.bfloat16}
    return product.row.extent <= (CPU_FEW_ROWS if narrow else MOST_ROWS)


def _is_large(product: Product) -> bool:
    """Whether reading the weight takes long enough to measure: as it is, or as it would be made before the product."""
    made = 0 if product.right is None else product.column.extent * product.depth * product.right.dtype.itemsize
    return max(_weight_bytes(product), made) >= _LARGE


def _weight_bytes(product: Product) -> int:
    return math.prod(product.b.buffer.sizes) * product.b.buffer.dtype.itemsize


def _time(node: fx.Node) -> int:
    """About how long a product takes, in multiplications: that of its work, or of reading its weight."""
    operands = operands_of(node) if is_product(node) else None
    if not isinstance(operands, Operands):
        return 0
    batch, rows, columns, depth = operands.sizes
    return batch * columns * depth * max(rows, _BYTE * operands.weight.meta["val"].dtype.itemsize)


def gemm_kernel(product: Product) -> TemplateKernel:
    """The kernel of a product; equal products have the same kernel, whatever the names of their buffers.

    Raises:
        UnsupportedDtype: the epilogue computes with a dtype that C++ has no type for.
    """
    if product.packed:
        product = replace(product, b=_packed_matrix(product))
    source = bytes_cpp(product) if product.is_of_bytes else PRELUDE + gemm_cpp(product, lanes())
    return template_kernel("gemm", source, *_layouts(product), product.flops)


def few_rows_kernel(product: Product) -> TemplateKernel:
    """The kernel of a product with few rows that reads its weight in place.

    Raises:
        UnsupportedDtype: the epilogue or the weight is computed with a dtype that C++ has no type for.
    """
    return _few_rows_kernel(product, lanes())


@functools.lru_cache(maxsize=256)
def _few_rows_kernel(product: Product, lanes: int) -> TemplateKernel:
    return template_kernel("gemm", few_rows_cpp(product, lanes), *_layouts(product), product.flops)


def _layouts(product: Product) -> tuple[tuple[Layout, ...], Layout]:
    return tuple(map(Layout.of, product.reads)), Layout.of(product.out)


def _packed_matrix(product: Product) -> Matrix:
    sizes = packed_sizes(product.column.extent, product.depth, lanes(), product.b.buffer.dtype)
    return Matrix(replace(product.b.buffer, sizes=sizes, strides=contiguous(sizes)), 0, lanes(), 1)


# -- the question ---------------------------------------------------------------------------------------------------


def _question(found: FoundProduct, kernels: Mapping[str, TemplateKernel]) -> Question:
    candidates: dict[str, Callable[..., Any]] = dict(kernels)
    if found.product.packed and CANDIDATE in kernels:
        candidates[CANDIDATE] = LastPacked(kernels[CANDIDATE], lanes(), is_transposed(found))
    names = [kernel.name for kernel in kernels.values()]
    return Question(
        rule=RULE,
        key=" ".join([*names, *(str(node.target) for node in found.nodes)]),
        inputs=[node.meta["val"] for node in found.inputs],
        original=ProductBaseline(found),
        candidates=candidates,
    )
