"""On-demand decomposition: an operator without lowering is lowered from what torch says it is made of.

    %y = aten.addcdiv(%x, %a, %b)     traced alone:    %d = aten.div(%a, %b);  %y = aten.add(%x, %d)      lowered

Only where that is what eager computes, rounding apart.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from ...rewrites.compat import OpOverload, decomposition, fake_mode_of, tree_leaves, tree_map
from ...rewrites.graph import dtype
from ...rewrites.tracing import record
from .call_arguments import checked, lowered_argument, overload_text
from .core import Lowering, Tensor
from .sizes import Unlowered

# Their decompositions divide numbers that eager's kernels of integers round first.
_ROUNDED_FIRST = ("aten.linspace.Tensor_Tensor", "aten.linspace.Tensor_Scalar", "aten.linspace.Scalar_Tensor")
_INPUTS = (torch.Tensor, torch.SymInt, torch.SymFloat)


LowerCall = Callable[[Lowering, fx.Node, Mapping[fx.Node, Any]], Any]


def lower_decomposed(
    low: Lowering, node: fx.Node, args: list[Any], kwargs: dict[str, Any], lower_call: LowerCall
) -> Any:
    """The value of a node, from the lowerings of the operators that it is made of.

    Args:
        low: the lowering in progress.
        node: a call of an operator.
        args: its arguments, lowered.
        kwargs: its keyword arguments, lowered.
        lower_call: lowers a call of an operator that the node is made of.

    Raises:
        Unlowered: torch has no decomposition, or it holds something that is not lowered.
    """
    module = traced(node)
    tensors = iter([leaf for leaf in tree_leaves([args, kwargs]) if isinstance(leaf, Tensor)])
    given = tree_leaves(_plain((node.args, node.kwargs)))
    inputs = [
        next(tensors) if isinstance(leaf, torch.Tensor) else lowered_argument(low, leaf, {})
        for leaf in given
        if isinstance(leaf, _INPUTS)
    ]
    values: dict[fx.Node, Any] = {}
    for inner in module.graph.nodes:
        values[inner] = _value(low, inner, values, inputs, lower_call)
        if inner.op == "output":
            low.current = node
            return checked(values[inner], node.meta.get("val"), node)
    raise AssertionError("a graph without output")


def traced(node: fx.Node) -> fx.GraphModule:
    """The decomposition of one node, its inputs the tensors and symbolic numbers among its arguments, in order.

    Raises:
        Unlowered: there is none, or it does not trace.
    """
    target = node.target
    if not isinstance(target, OpOverload):
        raise Unlowered("no-lowering", f"{target} has no lowering")
    if overload_text(target) in _ROUNDED_FIRST and not dtype(node).is_floating_point:
        raise Unlowered("arguments", f"{target} of integers")
    function = decomposition(target)
    if function is None:
        raise Unlowered("no-lowering", f"{target} has neither lowering nor decomposition")
    fakes = _plain((node.args, node.kwargs))
    inputs = [leaf for leaf in tree_leaves(fakes) if isinstance(leaf, _INPUTS)]
    mode = fake_mode_of([leaf for leaf in inputs if isinstance(leaf, torch.Tensor)])
    if mode is None:
        raise Unlowered("no-lowering", f"{target} takes no tensors")

    def run(*given: Any) -> Any:
        rest = list(given)
        args, kwargs = tree_map(lambda a: rest.pop(0) if isinstance(a, _INPUTS) else a, fakes)
        return function(*args, **kwargs)

    try:
        with mode:
            return record(run, inputs, "decomposed")
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise Unlowered("decomposition", f"the decomposition of {target} does not trace: {error}") from error


def _plain(arg: Any) -> Any:
    """An argument with values for nodes, its lists and dicts free to be changed."""
    if isinstance(arg, fx.Node):
        return arg.meta["val"]
    if isinstance(arg, dict):
        return {key: _plain(a) for key, a in arg.items()}
    return type(arg)(map(_plain, arg)) if type(arg) is tuple else [*map(_plain, arg)] if isinstance(arg, list) else arg


def _value(low: Lowering, node: fx.Node, values: dict[fx.Node, Any], inputs: list[Any], lower_call: LowerCall) -> Any:
    if node.op == "placeholder":
        return inputs.pop(0)
    if node.op == "output":
        result = lowered_argument(low, node.args[0], values)
        return tuple(result) if isinstance(result, list) else result
    if isinstance(node.target, type) and issubclass(node.target, tuple):  # a named tuple of results
        return tuple(lowered_argument(low, list(node.args), values))
    if node.op == "get_attr":
        raise Unlowered("decomposition", "a constant inside a decomposition")
    val = node.meta.get("val")
    if isinstance(val, (int, float, torch.SymInt, torch.SymFloat)):
        return lowered_argument(low, val, values)
    if node.target is operator.getitem:
        return values[node.args[0]][node.args[1]]
    try:
        return lower_call(low, node, values)
    except Unlowered as refusal:
        message = f"{low.origin.target} is made of {node.target}: {refusal}"
        raise Unlowered("decomposition", message) from refusal
