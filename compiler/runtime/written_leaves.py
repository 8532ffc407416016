"""Leaves that a program writes behind autograd's back, where it was compiled for tensors that are computed.

    def program(x): x.data.mul_(2); return x + 1        compiled for `w * 2`, then called with a leaf `w`

AOTAutograd writes such an input after the call: a leaf as a detached tensor, others as a user would, which autograd
refuses for leaves and their views. Dynamo guards neither. (What it has seen as a leaf may be written either way.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites.compat.tensors import requires_grad
from .as_written import Reliance
from .overlaps import inputs_written


def no_leaves(program: fx.GraphModule, inputs: Sequence[Any]) -> list[Reliance]:
    """Inputs with gradients that the program may write to are neither leaves nor views of one.

    Args:
        program: Dynamo's graph.
        inputs: those that it is compiled for.
    """
    computed = {k for k, x in enumerate(inputs) if requires_grad(x) and not x.is_leaf}
    if not computed or not torch.is_grad_enabled():
        return []
    written = sorted(computed & inputs_written(program, inputs))
    if not written:
        return []
    why = "leaves are written to where the program was compiled for computed tensors, or views of leaves are"
    return [Reliance(lambda given: not any(_is_of_leaf(given[k]) for k in written), "leaf-written", why)]


def _is_of_leaf(x: torch.Tensor) -> bool:
    base = x if x._base is None else x._base
    return base.requires_grad and base.is_leaf
