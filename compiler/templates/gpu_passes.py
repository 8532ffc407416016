"""The passes that put Triton kernels into a graph: all begin to compile at once, then each measures and decides.

attentions, products, convolutions    found; their kernels, and what these compete with, begun in other processes
        |
attentions, then products, then convolutions    measured as they are ready, and put in place
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from ..options.fields import KernelOptions
from .attention.triton_fuse import AttentionPass
from .common.task import Task
from .convolution.triton_fuse import ConvolutionPass
from .gemm.triton_fuse import ProductPass


def fuse_on_gpu(task: Task, do: Callable[..., Any], kernels: KernelOptions) -> None:
    """Replace attentions, products and convolutions on a GPU by generated kernels, as the oracle decides.

    Attentions of training have been decided on before the graph was split.

    Args:
        task: the graph, and how.
        do: runs one function of a pass, given its arguments and the pass' `name`; None where the pass is left out.
        kernels: what computes attention, products and convolutions.
    """
    passes: dict[str, Any] = {}
    taken: set[fx.Node] = set()
    attentions = None if task.training else task.of(kernels.attention)
    if attentions is not None:
        begun = do(_attention, attentions, name="attention")
        if begun is not None:
            passes["attention"], taken = begun
    for name, kind in (("products", ProductPass), ("convolutions", ConvolutionPass)):
        own = task.of(getattr(kernels, name))
        one = None if own is None else do(_begun, kind, own, taken, name=name)
        if one is not None:
            passes[name] = one
    for name, one in passes.items():
        do(one.run_all, name=name)


def _attention(task: Task) -> tuple[AttentionPass, set[fx.Node]]:
    """The pass, and the nodes that others leave to it."""
    attentions = AttentionPass(task)
    return attentions, attentions.begin()


def _begun(kind: Callable[[Task], Any], task: Task, taken: set[fx.Node]) -> Any:
    one = kind(task)
    one.begin(taken)
    return one
