"""Measurements of attentions on GPUs: what kernels compete with, and on which inputs.

%mask = ...                             read by all layers: made already, an input of the original
attention_3f2a(%q, %k, %v)       ?      %bmm, %add(%mask), %_softmax, %bmm_1, compiled
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ....rewrites.splice import subgraph
from ..common.formula import is_move
from ..common.triton_call import TritonTemplateKernel
from .match import FoundAttention


class Among:
    """A kernel among whose arguments are more than it reads: the last ones."""

    def __init__(self, kernel: TritonTemplateKernel, count: int) -> None:
        self._kernel, self._count = kernel, count

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The kernel's result."""
        return self._kernel(*tensors[: self._count])


def arranged(found: FoundAttention, kept: tuple[fx.Node, ...]) -> Callable[[Sequence[Any]], None]:
    """Computes the last arguments from those before: the kernel does so too, and must find the same."""
    count = len(found.inputs)
    program = subgraph(_before(found, kept), found.inputs, kept)

    def arrange(values: Sequence[Any]) -> None:
        made = program(*values[:count])
        for value, new in zip(values[count:], made if isinstance(made, (tuple, list)) else (made,), strict=True):
            value.copy_(new)

    return arrange


def kept_on_the_way(found: FoundAttention) -> tuple[fx.Node, ...]:
    """Intermediate values that others read too, as a mask of all layers is: they count as made already."""
    inside = set(found.nodes)
    shared = {node for node in inside - {found.output} if not inside.issuperset(node.users)}
    shared = {node for node in shared if not is_move(node) and isinstance(node.meta.get("val"), torch.Tensor)}
    read = {source for node in nodes_after(found, (*found.inputs, *shared)) for source in node.all_input_nodes}
    return tuple(node for node in found.nodes if node in shared & read)


def nodes_after(found: FoundAttention, inputs: tuple[fx.Node, ...]) -> tuple[fx.Node, ...]:
    """The nodes that make the result of `inputs`."""
    return _between(found, inputs, (found.output,))


def _before(found: FoundAttention, kept: tuple[fx.Node, ...]) -> tuple[fx.Node, ...]:
    """The nodes that make `kept` of the kernel's inputs."""
    return _between(found, found.inputs, kept)


def _between(found: FoundAttention, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    known, wanted, queue = set(inputs), set[fx.Node](), list(outputs)
    for node in queue:
        if node not in known and node not in wanted:
            wanted.add(node)
            queue.extend(node.all_input_nodes)
    return tuple(node for node in found.nodes if node in wanted)
