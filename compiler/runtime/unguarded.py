"""Tensors of which Dynamo guards nothing: parameters and state that the step of an optimizer writes to, and gradients.

    step = torch.compile(optimizer.step, backend="regraft")
    step(); model.double(); step()                  the graph is Dynamo's for float32, and so are our kernels

Of what the graph holds, dtypes, sizes and strides are guarded here: others are compiled anew. Gradients are looked at
in each call: with others, the program runs as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat.dynamo import alike, guard_alike
from .graph_cache.key import written_by


def of_their_forms(compiled: Callable[..., Any], program: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """`compiled`, but `program` for inputs of other dtypes, sizes or strides, if it writes to tensors that it holds.

    Args:
        compiled: what is returned itself where Dynamo guards its inputs.
        program: Dynamo's graph.
        inputs: those that it was compiled for.
    """
    if not written_by(program):
        return compiled
    held = (compat.attribute(program, str(node.target)) for node in program.graph.find_nodes(op="get_attr"))
    guard_alike([x for x in held if isinstance(x, torch.Tensor)])
    known = [k for k, x in enumerate(inputs) if isinstance(x, torch.Tensor) and not compat.has_symbols(x)]
    forms = [_form(inputs[k]) for k in known]
    same: Callable[..., bool] | None = None

    def run(*inputs: Any) -> Any:
        nonlocal same
        given = [inputs[k] for k in known]
        if same is None and [_form(x) for x in given] == forms:
            same = alike(given)
        return compiled(*inputs) if same is not None and same(*given) else program(*inputs)

    return run


def _form(x: torch.Tensor) -> tuple[Any, ...]:
    return x.dtype, x.device, tuple(x.shape), tuple(x.stride())
