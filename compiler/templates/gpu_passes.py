"""The passes that put Triton kernels into a graph: all begin to compile at once, then each measures and decides.

attentions, products, convolutions    found; their kernels, and what these compete with, begun in other processes
        |
attentions, then products, then convolutions    measured as they are ready, and put in place
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import fx

from ...rewrites.profit import Oracle
from ...rewrites.record import GraphRecord
from .attention.triton_fuse import Fusion as AttentionFusion
from .contest import nothing
from .convolution.triton_fuse import ConvolutionFusion
from .gemm.triton_fuse import Fusion as ProductFusion
from .gpu import device_of


def fuse_on_gpu(
    graph_module: fx.GraphModule,
    oracle: Oracle,
    record: GraphRecord,
    contained: Callable[[str], AbstractContextManager[None]],
    *,
    thorough: bool,
    training: bool,
    meanwhile: Callable[[], None] = nothing,
) -> None:
    """Replace attentions, products and convolutions on a GPU by generated kernels, as the oracle decides.

    Args:
        graph_module: a graph after autograd; changed in place.
        oracle: who decides whether a kernel is worth it, by the nodes that it would replace.
        record: gets what was applied and declined, and near misses with their reasons.
        contained: what each pass runs in, given what becomes of it where that does not let its errors through.
        thorough: ask about whatever kernels can compute, with more tiles.
        training: a forward or backward graph; its attentions have been decided on before it was split.
        meanwhile: called while kernels compile in other processes, if that takes long.
    """
    gpu = device_of(graph_module.graph)
    if gpu is None:
        return
    given = (graph_module.graph, oracle, record, gpu, thorough)
    passes: dict[str, Any] = {}
    taken: set[fx.Node] = set()
    outcome = "attention stays as it is"
    if not training:
        with contained(outcome):
            attention = AttentionFusion(*given, meanwhile)
            taken = attention.begin()
            passes[outcome] = attention
    kinds = {
        "products are left to the library": ProductFusion,
        "convolutions are left to the library": ConvolutionFusion,
    }
    for outcome, kind in kinds.items():
        with contained(outcome):
            one = kind(*given, training, meanwhile)
            one.begin(taken)
            passes[outcome] = one
    for outcome, one in passes.items():
        with contained(outcome):
            one.run_all()
