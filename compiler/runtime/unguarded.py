"""Tensors of which Dynamo guards nothing: parameters and state that the step of an optimizer writes to, and gradients.

    step = torch.compile(optimizer.step, backend="regraft")
    step(); model.double(); step()                  the graph is Dynamo's for float32, and so are our kernels

Of what the graph holds, dtypes, sizes and strides are guarded here: others are compiled anew. Gradients are looked at
in each call: with others, or where two of all these tensors overlap, the program runs as it was written.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat.dynamo import alike, guard_alike
from .as_written import Reliance
from .graph_cache.key import written_by
from .overlaps import extent
from .ranges import Ranges


def forms_of_gradients(program: fx.GraphModule, inputs: Sequence[Any]) -> list[Reliance]:
    """Dtypes, sizes, strides and places of inputs, of a program that writes to tensors that it holds.

    There is nothing to look at in others, whose inputs Dynamo guards.

    Args:
        program: Dynamo's graph.
        inputs: those that it is compiled for.
    """
    if not written_by(program):
        return []
    found = (compat.attribute(program, str(node.target)) for node in program.graph.find_nodes(op="get_attr"))
    held = [x for x in found if isinstance(x, torch.Tensor)]
    guard_alike(held)
    seen_by = [weakref.ref(x) for x in {id(x): x for x in held if type(x) in _WITH_ADDRESS}.values()]
    known = [k for k, x in enumerate(inputs) if isinstance(x, torch.Tensor) and not compat.has_symbols(x)]
    forms = [_form(inputs[k]) for k in known]
    checks: list[Callable[..., bool]] = []

    def holds(inputs: Sequence[Any]) -> bool:
        given = [inputs[k] for k in known]
        if not checks and [_form(x) for x in given] == forms:
            checks.extend((alike(given), _apart_from(seen_by, given)))
        return bool(checks) and all(check(*given) for check in checks)

    why = "gradients lie otherwise than those that a step was compiled for, or share memory with weights or others"
    apart = frozenset(k for k in known if type(inputs[k]) in _WITH_ADDRESS)
    return [Reliance(holds, "gradients-otherwise", why, apart)]


def _apart_from(held: Sequence[weakref.ref[torch.Tensor]], given: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A check that tensors of known sizes overlap neither each other nor `held`; it fails once one of `held` is gone.

    The check takes time of the host in every step. Functions in C compare hundreds of addresses with those before.
    """
    pick = [k for k, x in enumerate(given) if type(x) in _WITH_ADDRESS]
    ranges: list[Ranges] = []

    def apart(*given: torch.Tensor) -> bool:
        now: list[Any] = [*map(operator.call, held), *map(given.__getitem__, pick)]
        try:
            places = list(map(torch.Tensor.data_ptr, now))
        except TypeError:  # None in place of a tensor
            return False
        if not ranges:
            ranges.append(Ranges(map(extent, now)))
        return ranges[0].are_apart(places)

    return apart


_WITH_ADDRESS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _form(x: torch.Tensor) -> tuple[Any, ...]:
    return x.dtype, x.device, tuple(x.shape), tuple(x.stride())
