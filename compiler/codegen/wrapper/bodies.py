"""Bodies of control flow: graphs that an operator calls when it runs, compiled as the graph that contains them.

cond(%p, true_graph, false_graph, (%x, %y))     true_graph: a graph of ATen calls     ->     a generated function

Bodies of `cond`, `while_loop`, `scan`, `map` and of regions that are compiled once for all their calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.reason import Reason
from .emit import WrapperSource
from .stride_checks import laid_out, order_of
from .wrapper import Wrapper, load

# Operators that call their graphs with plain tensors.
_CALLERS = ("cond", "while_loop", "while_loop_stack_output", "scan", "map_impl", "invoke_subgraph")
_Layout = tuple[tuple[int, ...] | None, tuple[int, ...] | None] | None


class Body:
    """A compiled body, which an operator calls with values.

    Args:
        source: the generated function.
        name: the name of the function.
        layouts: for each input that is a tensor, its strides, if known, and the order of its dims in memory.
    """

    def __init__(self, source: WrapperSource, name: str, layouts: tuple[_Layout, ...]) -> None:
        self._made = source, name, layouts
        self._layouts = layouts
        self._call = load(source, name)

    def __call__(self, *args: Any) -> Any:
        """The results of the body for these values.

        The values that a loop passes to its next iteration may have other strides than its initial values, but kernels
        are compiled for one layout.
        """
        return self._call([_as_told(arg, told) for arg, told in zip(args, self._layouts, strict=True)])

    def __reduce__(self) -> Any:
        return Body, self._made


def _as_told(value: Any, layout: _Layout) -> Any:
    if layout is None:
        return value
    strides, order = layout
    if strides is None:
        return laid_out(value, order)  # type: ignore[arg-type]
    if value.stride() == strides:
        return value
    return value.new_empty_strided(value.shape, strides).copy_(value)


def compiled_body(wrapper: Wrapper, graph: fx.Graph) -> Body:
    """The body for which a wrapper was generated."""
    return Body(wrapper.parts, wrapper.name, tuple(map(_layout, graph.find_nodes(op="placeholder"))))


def _layout(node: fx.Node) -> _Layout:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    return (None, order_of(value)) if compat.has_symbols(value) else (tuple(value.stride()), None)


def bodies(graph_module: fx.GraphModule) -> dict[str, fx.GraphModule]:
    """The graphs that operators of a graph call, by the names of their attributes."""
    calls = [node for node in graph_module.graph.nodes if _is_control_flow(node.target)]
    names = [str(n.target) for call in calls for n in call.all_input_nodes if n.op == "get_attr"]
    found = {name: compat.attribute(graph_module, name) for name in names if "." not in name}
    return {name: body for name, body in found.items() if isinstance(body, fx.GraphModule)}


def _is_control_flow(target: Any) -> bool:
    return isinstance(target, compat.HigherOrderOperator) and target.__name__ in _CALLERS


def put_body(graph_module: fx.GraphModule, name: str, body: Callable[..., Any]) -> None:
    """Let the operators of a graph call another body."""
    delattr(graph_module, name)
    setattr(graph_module, name, body)


def refused_body(graph: fx.Graph) -> Reason | None:
    """Why a body cannot be compiled; None if it is plain ATen after autograd, and does not write to its inputs."""
    inputs = graph.find_nodes(op="placeholder")
    for node in graph.nodes:
        if node.op in ("get_attr", "output"):
            continue
        if "val" not in node.meta and not _gives_nothing(node):
            return Reason(
                "body-unknown",
                f"the shape and dtype of {node.name}, in the body of a higher-order operator, are not known",
                (node,),
            )
        if node.op != "placeholder" and _writes(node):
            return Reason(
                "body-writes", f"{node.name}, in the body of a higher-order operator, may write to its inputs", (node,)
            )
    loose = next((n for n in inputs if (layout := _layout(n)) is not None and layout == (None, None)), None)
    if loose is None:
        return None
    return Reason(
        "body-strides",
        f"{loose.name}, in the body of a higher-order operator, has symbolic sizes and is not dense",
        (loose,),
    )


def _gives_nothing(node: fx.Node) -> bool:
    """Whether a call has no result: an assertion about a number."""
    return isinstance(node.target, compat.OpOverload) and not compat.schema(node.target).returns


def _writes(node: fx.Node) -> bool:
    target = node.target
    return node.op != "call_function" or (isinstance(target, compat.OpOverload) and compat.is_mutable(target))
