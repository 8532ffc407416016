"""Random draws as eager makes them on CPUs: it refuses parameters, and fills memory in its order.

    bernoulli(p)                         ->    an assertion before the call: 0 <= p <= 1
    normal(mean, std)                    ->    the same: 0 <= std
    bernoulli_(x, 0.5), x transposed     ->    copy_(x, t(bernoulli(t(x), 0.5)))

Draws from seeds look at no parameters. Out of place, `bernoulli` fills contiguous memory, whatever it is given.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.graph import arguments, val
from ...rewrites.symbolic import hint
from ...rewrites.walk import recompiles
from ..normal.analysis import uniform

aten = torch.ops.aten
_IN_PLACE = aten.bernoulli_.float
_NO_CHANCE = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
_NO_DEVIATION = "normal expects all elements of std >= 0.0"
# The argument that eager looks at, and the greatest that it takes.
_LOOKED_AT: dict[Any, tuple[str, float | None, str]] = {
    aten.bernoulli.default: ("self", 1.0, _NO_CHANCE),
    aten.bernoulli_.Tensor: ("p", 1.0, _NO_CHANCE),
    aten.bernoulli.Tensor: ("p", 1.0, _NO_CHANCE),
    aten.normal.float_Tensor: ("std", None, _NO_DEVIATION),
    aten.normal.Tensor_Tensor: ("std", None, _NO_DEVIATION),
}


@recompiles
def draw_as_eager(graph_module: fx.GraphModule) -> int:
    """Have the draws of a program before autograd do what eager's do on CPUs, in place; returns how many."""
    calls = [node for node in graph_module.graph.nodes if node.target in _LOOKED_AT or node.target is _IN_PLACE]
    calls = [node for node in calls if _on_cpu(node.args[0]) or _on_cpu(node)]
    return sum(_in_order(node) if node.target is _IN_PLACE else _looked_at(node) for node in calls)


def _on_cpu(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu"


def _looked_at(node: fx.Node) -> bool:
    """Whether an assertion is there now, before a call whose parameter is not known."""
    name, most, message = _LOOKED_AT[node.target]
    given = arguments(node)
    parameter = given.get(name, given.get("input"))
    known = uniform(parameter)
    if not _on_cpu(parameter) or (known is not None and known >= 0 and (most is None or known <= most)):
        return False

    def refuse(parameter: torch.Tensor) -> None:
        value = parameter.detach()
        aten._assert_async.msg((value >= 0 if most is None else (value >= 0) & (value <= most)).all(), message)

    refuse.__name__ = refuse.__qualname__ = "refuse_parameters"
    with node.graph.inserting_before(node):
        made = node.graph.call_function(refuse, (parameter,))
    made.meta = _origin(node) | {"val": None}
    return True


def _in_order(node: fx.Node) -> bool:
    """Whether a draw in place fills contiguous memory now, its dims in the order of the memory that it is for."""
    x, *parameters = node.args
    order = _memory_order(val(x))  # type: ignore[arg-type]
    if order is None or order == sorted(order) or not _fills_in_order_of_memory():
        return False
    back = [order.index(dim) for dim in range(len(order))]

    def draw(x: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        return x.copy_(aten.bernoulli.p(x.detach().permute(order), *given, **named).permute(back))

    draw.__name__ = draw.__qualname__ = "bernoulli_in_order"
    node.target, node.args = draw, (x, *(parameters or [0.5]))
    return True


def _memory_order(value: torch.Tensor) -> list[int] | None:
    """The dims of a tensor from the outermost to the innermost; None where that is not known, or places are shared."""
    strides, sizes = [hint(n) for n in value.stride()], [hint(n) for n in value.shape]
    if None in strides or None in sizes or 0 in strides:
        return None
    return sorted(range(value.dim()), key=lambda dim: (-strides[dim], -sizes[dim]))


def _origin(node: fx.Node) -> dict[str, Any]:
    return {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}


@functools.cache
def _fills_in_order_of_memory() -> bool:
    """Whether `bernoulli_` of this machine does: MKL's draws are copied from contiguous memory."""
    with compat.no_dispatch_modes():
        drawn = [
            x.bernoulli_(0.5, generator=torch.Generator().manual_seed(0))
            for x in (torch.empty(8, 40), torch.empty(40, 8).t())
        ]
        return bool(torch.equal(drawn[0].flatten(), drawn[1].t().flatten()))
