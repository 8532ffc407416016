"""Recording what a function of fake tensors computes, as a graph of ATen calls.

    f(x) = relu(x) * 3        ->        %relu = aten.relu(%x);  %mul = aten.mul(%relu, 3)

`make_fx` records the same, but replaces methods of `nn.Module` and sets flags for the whole process meanwhile. A
backward is compiled when it first runs, in whatever thread runs it, while others call models. So nothing here is seen
outside of the thread that traces, but for one thing: what is recorded above autograd is recorded by a mode that torch
keeps for all threads (programs are captured by it too, one at a time, for Dynamo holds its lock). In turn neither calls
of modules are recorded, nor operators that trace functions of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Literal

import torch
from torch import fx
from torch._C import _AutoDispatchBelowAutograd
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import (
    PreDispatchTorchFunctionMode,
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    TorchFunctionMetadataMode,
    disable_autocast_cache,
    disable_proxy_modes_tracing,
    get_proxy_slot,
    track_tensor_tree,
)
from torch.fx.node import map_aggregate

from . import compat

aten = torch.ops.aten

NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
SIZES = (aten.sym_size.int, aten.sym_stride.int, aten.sym_storage_offset.default, aten.sym_numel.default)


Level = Literal["above autograd", "below autograd", "decomposed"]
"""The level at which calls are recorded: composite operators as they are called, also if gradients flow and under
autocast; the same if neither is of interest any more; the operators that they are made of."""


def record(function: Callable[..., Any], inputs: Sequence[Any], level: Level) -> fx.GraphModule:
    """The graph of `function` on fake tensors and symbolic numbers.

    Args:
        function: what to trace; its inputs are the graph's placeholders, what else it holds is constant.
        inputs: metadata of its inputs, each an object of its own.
        level: where calls are recorded.
    """
    tracer = _tracer()
    placeholders = [tracer.create_proxy("placeholder", f"arg{i}_1", (), {}) for i in range(len(inputs))]
    with ExitStack() as stack:
        for context in _contexts(tracer, level):
            stack.enter_context(context)
        with disable_proxy_modes_tracing():
            track_tensor_tree(list(inputs), placeholders, constant=None, tracer=tracer)
        results = map_aggregate(function(*inputs), lambda value: _recorded(value, tracer))
    tracer.create_node("output", "output", (tracer.create_arg(results),), {})
    read_sizes_early(tracer.graph)
    tracer.graph.eliminate_dead_code(_stays)
    return compat.lazy_module(tracer.root, tracer.graph, "GraphModule")


def read_sizes_early(graph: fx.Graph) -> None:
    """Read sizes of a tensor where it is made: recorded at their first use, they may follow a write to the sizes.

    y = mm(a, b); y.squeeze_(1); size(y, 2)        ->        y = mm(a, b); size(y, 2); y.squeeze_(1)
    """
    inputs = graph.find_nodes(op="placeholder")
    for target in SIZES:
        for node in graph.find_nodes(op="call_function", target=target):
            tensor = node.args[0]
            (inputs[-1] if tensor.op == "placeholder" else tensor).append(node)


def _contexts(tracer: Any, level: Level) -> list[AbstractContextManager[Any]]:
    """The contexts to trace in."""
    mode = ProxyTorchDispatchMode(tracer, "real", pre_dispatch=level == "above autograd")
    mode.pre_dispatch = level != "decomposed"  # or it would decompose what autograd has not
    common = [TorchFunctionMetadataMode(tracer), mode, disable_autocast_cache()]
    if level == "above autograd":
        return [enable_python_dispatcher(), PreDispatchTorchFunctionMode(tracer), *common]
    return [enable_python_dispatcher(), _AutoDispatchBelowAutograd(), *common] if level == "below autograd" else common


def _tracer() -> Any:
    """A tracer as its `trace` prepares it, that patches nothing."""
    tracer: Any = PythonKeyTracer()
    tracer.root, tracer.graph, tracer.tensor_attrs = torch.nn.Module(), fx.Graph(tracer_cls=PythonKeyTracer), {}
    return tracer


def _recorded(value: Any, tracer: Any) -> Any:
    """The proxy that stands for a result; the result itself, where it does not depend on the inputs."""
    if isinstance(value, torch.Tensor):
        return get_proxy_slot(value, tracer, value, lambda found: found.proxy)
    return get_proxy_slot(value, tracer).force() if isinstance(value, NUMBERS) else value


def _stays(node: fx.Node) -> bool:
    """Whether a call stays though nobody reads its result: all do but the arithmetic of sizes."""
    if node.is_impure() or not isinstance(node.meta.get("val"), NUMBERS):
        return True
    return node.target not in SIZES and any(not isinstance(n.meta.get("val"), NUMBERS) for n in node.all_input_nodes)
