"""The pass: matrix products of a graph, each with what is computed from its result, become calls of generated kernels.

%linear = ...; %gelu = ...                              ->   gemm_3f2a(%x, %weight, %bias)
%w = ..; %_linear_pointwise = ...(%x, reorder(%w))      ->   gemm_5d1c(%x, packed(%w), %bias)
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from ....rewrites.profit import SWITCHED_OFF, Always, Decision, Never, Oracle, Question
from ....rewrites.reason import Reason
from ....rewrites.record import Evidence, GraphRecord
from ....rewrites.switches import allowed
from ...codegen.cpp.dtypes import UnsupportedDtype
from ...codegen.cpp.errors import CompileFailed, CompilerMissing
from ..attention.bias_layout import Copies
from ..common.cpp_call import Layout, TemplateKernel, lanes
from ..common.formula import packet
from .cpp import PRELUDE, gemm_cpp
from .description import Matrix, Product
from .match import LINEAR, ONEDNN, FoundProduct, match_gemm
from .packing import LastPacked, packed_node, packed_sizes
from .replacement import RULE, Unfused, erase_dead_calls, near_miss, recorded

CANDIDATE = "generated"
_FEW_ROWS = 4  # with fewer, packing the weight takes longer than reading it
_SMALL = 1 << 15  # multiplications that take no longer than the call


def fuse_gemm(graph_module: fx.GraphModule, oracle: Oracle, record: GraphRecord, packed: bool) -> int:
    """Replace the matrix products of an inference graph by generated kernels, as the oracle decides.

    Args:
        graph_module: a graph after autograd, static sizes, on a CPU; changed in place.
        oracle: who decides whether a kernel is worth it, by the nodes that it would replace.
        record: gets what was applied and declined, and near misses with their reasons.
        packed: whether calls on weights that are known while compiling will be folded, so that packing is free.

    Returns:
        How many were replaced.
    """
    fusion, fused = _Fusion(graph_module.graph, oracle, record), 0
    for item in fusion.prepared(packed):
        # What was found in the graph as it was may read what has been replaced since: look again.
        found = match_gemm(item, packed)
        if isinstance(found, FoundProduct):
            fused += fusion.run(found)
    return fused


@dataclass(frozen=True)
class _Candidate:
    found: FoundProduct
    kernel: TemplateKernel

    @property
    def transposed(self) -> bool:
        """Whether the weight is (columns, depth)."""
        return any(packet(node) in (LINEAR, ONEDNN) for node in self.found.nodes)


class _Fusion:
    def __init__(self, graph: fx.Graph, oracle: Oracle, record: GraphRecord) -> None:
        self._graph, self._oracle, self._record = graph, oracle, record
        self._copies = Copies()

    def prepared(self, packed: bool) -> list[fx.Node]:
        """The products that a kernel could compute; distinct kernels are compiled side by side."""
        nodes, kernels = [], {}
        for node in list(self._graph.nodes):
            found = match_gemm(node, packed)
            if isinstance(found, Reason):
                self._record.near_misses.append(near_miss(node, found))
            elif found is not None:
                nodes.append(node)
                kernel = self._kernel(found)
                if kernel is not None and self._hopeless(found) is None:
                    kernels[kernel.name] = kernel
        if len(kernels) > 1 and not isinstance(self._oracle, Never):
            with ThreadPoolExecutor(len(kernels)) as pool:
                list(pool.map(_compiles, kernels.values()))
        return nodes

    def run(self, found: FoundProduct) -> bool:
        """Decide on one product; whether it was replaced."""
        kernel = self._kernel(found)
        if kernel is None:
            return False
        candidate = _Candidate(found, kernel)
        decision = self._hopeless(found) or self._oracle.decide(_question(candidate))
        if decision.chosen is not None and not allowed("template", RULE, [*found.nodes, found.output]):
            decision = SWITCHED_OFF
        if decision.chosen is not None and not _compiles(kernel):
            self._refuse(found, "no-compiler", f"{kernel.name} does not compile here")
            return False
        chosen = decision.chosen is not None
        (self._record.applied if chosen else self._record.declined).append(recorded(found, decision))
        if chosen:
            self._replace(candidate)
        return chosen

    def _kernel(self, found: FoundProduct) -> TemplateKernel | None:
        try:
            return gemm_kernel(found.product)
        except UnsupportedDtype as error:
            self._refuse(found, "epilogue-dtype", str(error))
            return None

    def _refuse(self, found: FoundProduct, code: str, message: str) -> None:
        self._record.near_misses.append(near_miss(found.output, Reason(code, message)))

    def _hopeless(self, found: FoundProduct) -> Decision | None:
        """No candidate where an estimate says so already, unless options ask for what is legal."""
        product = found.product
        if isinstance(self._oracle, (Always, Never)):
            return None
        if product.row.extent < _FEW_ROWS and not product.packed:
            return Decision(None, Evidence(note="estimate: so few rows that reading the weight is all there is to it"))
        if product.multiplications < _SMALL:
            return Decision(None, Evidence(note="estimate: less work than a call"))
        return None

    # -- the graph ------------------------------------------------------------------------------------------------

    def _replace(self, candidate: _Candidate) -> None:
        found, kernel = candidate.found, candidate.kernel
        inputs = [self._placed(node, layout) for node, layout in zip(found.inputs, kernel.inputs, strict=True)]
        if found.product.packed:
            inputs[1] = self._packed_weight(candidate)
        with self._graph.inserting_before(found.output):
            call = self._graph.call_function(kernel, tuple(inputs))
        call.meta = {**found.output.meta, "regraft_rule": RULE}
        found.output.replace_all_uses_with(call)
        erase_dead_calls(self._graph, [*found.nodes, found.output])

    def _packed_weight(self, candidate: _Candidate) -> fx.Node:
        """The weight packed, right after it; folding merges equal calls."""
        weight = candidate.found.inputs[1]
        before = weight.next
        while before.op in ("placeholder", "get_attr"):
            before = before.next
        with self._graph.inserting_before(before):
            return packed_node(weight, lanes(), candidate.transposed)

    def _placed(self, node: fx.Node, layout: Layout) -> fx.Node:
        """The input in the strides that the kernel reads; packed weights have sizes of their own."""
        return self._copies.of(node, layout.strides) if tuple(node.meta["val"].shape) == layout.sizes else node


def _compiles(kernel: TemplateKernel) -> bool:
    try:
        kernel.build()
    except (CompilerMissing, CompileFailed):
        return False
    return True


def gemm_kernel(product: Product) -> TemplateKernel:
    """The kernel of a product; equal products have the same, whatever their buffers are called.

    Raises:
        UnsupportedDtype: the epilogue computes with a dtype that C++ has no type for.
    """
    if product.packed:
        product = replace(product, b=_packed_matrix(product))
    inputs = tuple(Layout(b.sizes, b.strides, b.dtype) for b in product.reads)
    out = product.out
    layout = Layout(out.sizes, out.strides, out.dtype)
    return _kernel(gemm_cpp(product, lanes()), inputs, layout, product.flops)


def _packed_matrix(product: Product) -> Matrix:
    vectors, depth, width = packed_sizes(product.column.extent, product.depth, lanes())
    strides = (depth * width, width, 1)
    return Matrix(replace(product.b.buffer, sizes=(vectors, depth, width), strides=strides), 0, width, 1)


@functools.lru_cache(maxsize=256)
def _kernel(body: str, inputs: tuple[Layout, ...], output: Layout, flops: int) -> TemplateKernel:
    digest = hashlib.blake2b((PRELUDE + body).encode(), digest_size=6).hexdigest()
    name = f"gemm_{digest}"
    return TemplateKernel(name, "gemm", PRELUDE + body.replace("KERNEL", name), inputs, output, flops)


# -- the question ---------------------------------------------------------------------------------------------------


def _question(candidate: _Candidate) -> Question:
    found, kernel = candidate.found, candidate.kernel
    program: Callable[..., Any] = kernel
    if found.product.packed:
        program = LastPacked(kernel, lanes(), candidate.transposed)
    return Question(
        rule=RULE,
        key=" ".join([kernel.name, *(str(node.target) for node in found.nodes)]),
        inputs=[node.meta["val"] for node in found.inputs],
        original=Unfused(found),
        candidates={CANDIDATE: program},
    )
