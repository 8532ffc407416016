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
from .attention.triton_fuse import AttentionTemplate
from .common.task import Task
from .common.template import GpuTemplate
from .common.template_pass import TemplatePass
from .convolution.triton_fuse import ConvolutionTemplate
from .convolution.weight_gradients import WeightGradientTemplate
from .gemm.triton_fuse import ProductTemplate

TEMPLATES: tuple[type[GpuTemplate], ...] = (
    AttentionTemplate,
    ProductTemplate,
    ConvolutionTemplate,
    WeightGradientTemplate,
)
"""The templates for GPUs, in the order in which they decide."""


def fuse_on_gpu(task: Task, do: Callable[..., Any], kernels: KernelOptions) -> None:
    """Replace what `TEMPLATES` compute on a GPU by generated kernels, as the oracle decides.

    Attentions of training have been decided on before the graph was split.

    Args:
        task: the graph, and how.
        do: runs one function of a pass, given its arguments and the pass' `name`; None where the pass is left out.
        kernels: what computes attention, products and convolutions.
    """
    passes: list[TemplatePass] = []
    taken: set[fx.Node] = set()
    for template in TEMPLATES:
        own = task.of(getattr(kernels, template.option))
        if own is None or (task.training and not template.in_training):
            continue
        begun = do(_begun, template, own, frozenset(taken), name=template.name)
        if begun is not None:
            passes.append(begun[0])
            taken |= begun[1]
    for one in passes:
        do(one.run_all, name=one.template.name)


def _begun(template: type[GpuTemplate], task: Task, taken: frozenset[fx.Node]) -> tuple[TemplatePass, set[fx.Node]]:
    """The pass, and the nodes that others leave to it."""
    one = TemplatePass(template(task))
    return one, one.begin(taken)
