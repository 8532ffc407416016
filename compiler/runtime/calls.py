"""Callables around a graph: the graph as it is written; results in their structure; inputs as plain tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from ...rewrites.backup import copied
from ...rewrites.compat import autocast_off, autocast_on, is_renamed_tensor, mark_boxed
from ...rewrites.compat.autograd import has_saved_tensor_hooks
from ...rewrites.compat.maps import by_rows, maps_over_gradients
from ...rewrites.graph import apart, gives_view, op_name
from ...rewrites.moves import VIEWS
from ..autograd.plain_steps import laid_as_saved
from ..codegen.wrapper.stride_checks import is_doubtful, laid_out, order_of, wants_contiguous

Boxed = Callable[[list[Any]], Any]
"""What runs a graph: takes one list of inputs, which it empties, and gives the results."""


def of_plain_tensors(compiled: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """`compiled`, its inputs at some places made plain tensors: Dynamo has run what their classes add."""

    def run(*inputs: Any) -> Any:
        plain = list(inputs)
        for k in places:
            plain[k] = inputs[k].as_subclass(torch.Tensor)
        results = compiled(*plain)
        for result in results:  # their gradients come in the class that Dynamo gives them
            if isinstance(result, torch.Tensor) and result.grad_fn is not None:
                result.register_hook(_plain_tensor)
        return results

    return run


def _plain_tensor(value: torch.Tensor) -> torch.Tensor:
    return value.as_subclass(torch.Tensor) if is_renamed_tensor(value) else value


def restored(compiled: Callable[..., Any], restore: Callable[[Sequence[Any]], Any]) -> Callable[..., Any]:
    """`compiled`, its flat results in the structure of the program's own."""

    def run(*inputs: Any) -> Any:
        return restore(compiled(*inputs))

    return run


def as_calls(graph_module: fx.GraphModule) -> Boxed:
    """A graph as torch.fx runs it, in boxed convention: one list of inputs in, which it empties.

    Its inputs are laid out as its metadata has them, whatever the graph that made them has chosen, and so is what
    libraries give: wrappers keep the same promises, and the graph that reads its results counts on them.
    """
    graph_module = _promising(graph_module)
    inputs = [node.meta.get("val") for node in graph_module.graph.find_nodes(op="placeholder")]
    orders = [order_of(x) if isinstance(x, torch.Tensor) and x.layout == torch.strided else None for x in inputs]

    def call(args: list[Any]) -> Any:
        given = [x if order is None else laid_out(x, order) for x, order in zip(args, orders, strict=True)]
        args.clear()
        return graph_module(*given)

    mark_boxed(call)
    return call


def _promising(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy that lays out tensors as metadata has them where a library may not have done so.

    Results that are no views now are none to autograd.
    """
    graph = copied(graph_module)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        for operand in dict.fromkeys(node.all_input_nodes):
            if wants_contiguous(node.target, operand.meta.get("val")):
                with graph.inserting_before(node):
                    node.replace_input_with(operand, graph.call_method("contiguous", (operand,)))
        maker = _maker(node)
        order = order_of(node.meta["val"]) if is_doubtful(maker.target, node.meta.get("val")) else None
        if order is not None:
            _put_after(node, laid_out, order)
    for node in apart(graph.output_node()):
        if gives_view(node) or op_name(node) in VIEWS:
            _put_after(node, getattr, "data")
    return fx.GraphModule(graph_module, graph)


def _maker(node: fx.Node) -> fx.Node:
    """The call that gives a value, alone or among others."""
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _put_after(node: fx.Node, function: Callable[..., Any], argument: Any) -> None:
    with node.graph.inserting_after(node):
        made = node.graph.call_function(function, (node, argument))
    made.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Compute with a default dtype that may no longer be set."""
    now = torch.get_default_dtype()
    if now == dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(now)


_HOOKED: list[bool] = []
"""Not empty once a forward has run within hooks of saved tensors."""


def as_forward(call: Boxed) -> Boxed:
    """A forward that notes whether the user has hooks of saved tensors (`torch.autograd.graph.save_on_cpu`)."""

    def run(args: list[Any]) -> Any:
        if not _HOOKED and has_saved_tensor_hooks():
            _HOOKED.append(True)
        return call(args)

    mark_boxed(run)
    return run


def as_saved(call: Boxed, graph_module: fx.GraphModule) -> Boxed:
    """A backward whose inputs hooks of saved tensors may have laid out otherwise than its forward did."""
    known = [node.meta.get("val") for node in graph_module.graph.find_nodes(op="placeholder")]

    def run(args: list[Any]) -> Any:
        if _HOOKED and len(args) == len(known):
            args[:] = map(_laid_as, args, known)
        return call(args)

    mark_boxed(run)
    return run


def _laid_as(given: Any, known: Any) -> Any:
    tensors = isinstance(given, torch.Tensor) and isinstance(known, torch.Tensor)
    if not tensors or known.layout != torch.strided:
        return given
    if any(type(n) is not int for n in (*known.shape, *known.stride())):
        order = order_of(known) if given.dim() == known.dim() else None
        return given if order is None else laid_out(given, order)
    return laid_as_saved(given, known.shape, known.stride(), known.dtype)


def as_backward(call: Boxed) -> Boxed:
    """A backward as its user may run it: within autocast, whatever the forward ran in, or for several gradients.

    torch.autograd.grad(y, x, gradients, is_grads_batched=True)     one after the other

    In a compiled graph all casts are there. Autocast would add its own to calls of libraries.
    """

    def run(args: list[Any]) -> Any:
        if autocast_on():
            with autocast_off():
                return run(args)
        level = maps_over_gradients()
        if not level:
            return call(args)
        given = list(args)
        args.clear()
        return by_rows(run, given, level)

    mark_boxed(run)
    return run
