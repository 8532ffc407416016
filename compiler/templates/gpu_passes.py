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

from .attention.triton_fuse import AttentionPass
from .convolution.triton_fuse import ConvolutionPass
from .gemm.triton_fuse import ProductPass
from .task import Task


def fuse_on_gpu(task: Task, contained: Callable[[str], AbstractContextManager[None]]) -> None:
    """Replace attentions, products and convolutions on a GPU by generated kernels, as the oracle decides.

    Attentions of training have been decided on before the graph was split.

    Args:
        task: the graph, and how.
        contained: what each pass runs in, given what becomes of it where that does not let its errors through.
    """
    passes: dict[str, Any] = {}
    taken: set[fx.Node] = set()
    outcome = "attention stays as it is"
    if not task.training:
        with contained(outcome):
            attentions = AttentionPass(task)
            taken = attentions.begin()
            passes[outcome] = attentions
    kinds = {"products are left to the library": ProductPass, "convolutions are left to the library": ConvolutionPass}
    for outcome, kind in kinds.items():
        with contained(outcome):
            one = kind(task)
            one.begin(taken)
            passes[outcome] = one
    for outcome, one in passes.items():
        with contained(outcome):
            one.run_all()
