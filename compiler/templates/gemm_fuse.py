"""The pass: matrix products of a graph, each with what is computed from its result, become calls of generated kernels.

%linear = ...; %gelu = ...                              ->   gemm_3f2a(%x, %weight, %bias)
%w = ..; %_linear_pointwise = ...(%x, reorder(%w))      ->   gemm_5d1c(%x, packed(%w), %bias)
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ...patterns.packing import packed_linear_weight
from ...rewrites.graph import is_pure
from ...rewrites.profit import Always, Decision, Never, Oracle, Question
from ...rewrites.reason import Reason, site_of
from ...rewrites.record import Evidence, GraphRecord, Match, NearMiss
from ...rewrites.splice import subgraph
from ..cpp.dtypes import UnsupportedDtype
from ..cpp.errors import CompileFailed, CompilerMissing
from .gemm_cpp import PRELUDE, gemm_cpp
from .gemm_match import LINEAR, ONEDNN, REORDER, FoundProduct, match_gemm
from .kernel import Layout, TemplateKernel, lanes
from .layout import copied
from .packing import LastPacked, packed_node, packed_sizes
from .product import Matrix, Product
from .region import packet

RULE, CANDIDATE, FAMILY = "linear-template", "generated", "linear-kernel"
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
        self._copies: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}

    def prepared(self, packed: bool) -> list[fx.Node]:
        """The products that a kernel could compute; distinct kernels are compiled side by side."""
        nodes, kernels = [], {}
        for node in list(self._graph.nodes):
            found = match_gemm(node, packed)
            if isinstance(found, Reason):
                self._record.near_misses.append(_near_miss(node, found))
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
        if decision.chosen is not None and not _compiles(kernel):
            self._refuse(found, "no-compiler", f"{kernel.name} does not compile here")
            return False
        chosen = decision.chosen is not None
        (self._record.applied if chosen else self._record.declined).append(_record(found, decision))
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
        self._record.near_misses.append(_near_miss(found.output, Reason(code, message)))

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
        self._erase([*found.nodes, found.output])

    def _packed_weight(self, candidate: _Candidate) -> fx.Node:
        """The weight packed, right after it; folding merges equal calls."""
        weight = candidate.found.inputs[1]
        before = weight.next
        while before.op in ("placeholder", "get_attr"):
            before = before.next
        with self._graph.inserting_before(before):
            return packed_node(weight, lanes(), candidate.transposed)

    def _placed(self, node: fx.Node, layout: Layout) -> fx.Node:
        """The input in the strides that the kernel reads: one copy for all products that share it."""
        val = node.meta["val"]
        if tuple(val.stride()) == layout.strides or tuple(val.shape) != layout.sizes:
            return node
        key = (node, layout.strides)
        if key not in self._copies:
            self._copies[key] = copied(node, layout.strides)
        return self._copies[key]

    def _erase(self, nodes: Sequence[fx.Node]) -> None:
        """Erase what nobody reads any more, and what only that read."""
        pending = [node for node in nodes if not node.users and not node._erased]
        while pending:
            node = pending.pop()
            if node.users or node._erased or node.op != "call_function" or not is_pure(node):
                continue
            pending.extend(node.all_input_nodes)
            self._graph.erase_node(node)


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
    return _kernel(gemm_cpp(product, lanes()), inputs, Layout(out.sizes, out.strides, out.dtype))


def _packed_matrix(product: Product) -> Matrix:
    vectors, depth, width = packed_sizes(product.column.extent, product.depth, lanes())
    strides = (depth * width, width, 1)
    return Matrix(replace(product.b.buffer, sizes=(vectors, depth, width), strides=strides), 0, width, 1)


@functools.lru_cache(maxsize=256)
def _kernel(body: str, inputs: tuple[Layout, ...], output: Layout) -> TemplateKernel:
    digest = hashlib.blake2b((PRELUDE + body).encode(), digest_size=6).hexdigest()
    name = f"gemm_{digest}"
    return TemplateKernel(name, "gemm", PRELUDE + body.replace("KERNEL", name), inputs, output)


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
        original=_Original(found),
        candidates={CANDIDATE: program},
    )


class _Original:
    """What a kernel would replace, as it would run otherwise: the library's product, then a generated kernel."""

    def __init__(self, found: FoundProduct) -> None:
        self._found = found
        self._run: Callable[..., Any] | None = None

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The result of the nodes."""
        if self._run is None:
            self._run = self._made()
        return self._run(*tensors)

    def _made(self) -> Callable[..., Any]:
        from ..codegen import NotGeneratedError, generate_kernels

        found = self._found
        inputs = list(dict.fromkeys(found.inputs))
        program = subgraph(found.nodes, inputs, [found.output])
        assert isinstance(program, fx.GraphModule)
        for node, value in zip(program.graph.find_nodes(op="placeholder"), inputs, strict=True):
            node.meta = dict(value.meta)
        with contextlib.suppress(NotGeneratedError):
            program.graph = generate_kernels(program, "inference").graph
        for node in program.graph.nodes:
            if packet(node) == REORDER:
                node.target = packed_linear_weight
        program.recompile()
        places = [found.inputs.index(node) for node in inputs]
        return lambda *tensors: program(*(tensors[place] for place in places))


def _record(found: FoundProduct, decision: Decision) -> Match:
    return Match(
        rule=RULE,
        family=FAMILY,
        stage="lowered",
        candidate=decision.chosen or "",
        nodes=tuple(node.name for node in found.nodes),
        site=site_of(found.output),
        evidence=decision.evidence,
    )


def _near_miss(node: fx.Node, reason: Reason) -> NearMiss:
    site: Any = reason.site or site_of(node)
    return NearMiss(
        RULE, FAMILY, reason.code, reason.message, reason.expected, reason.found, depth=1, size=2, site=site
    )
