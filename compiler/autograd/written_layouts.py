"""Writes to tensors that lie otherwise than what the operator gives out of place.

    masked_fill_(x, mask, 0), x in channels last    ->    copy_(x, masked_fill(x, mask, 0))
    neg(x.t(), out=y), y contiguous                 ->    copy_(y, neg(x.t()))

AOTAutograd takes what the operator gives out of place for the tensor that is written to, with all that is computed from
it later. Eager's keeps its strides, and a copy into a tensor has the strides of that tensor.
"""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.editor import infer
from ...rewrites.effects import wants_gradient
from ...rewrites.functional import form_without_out, functional_form, writes_out, writes_self
from ...rewrites.graph import val
from ...rewrites.layout import same_layout
from ...rewrites.purity import is_random
from ...rewrites.symbolic import hint, same_shape
from ...rewrites.walk import recompiles

_COPY = torch.ops.aten.copy_.default


@recompiles
def write_as_it_lies(graph_module: fx.GraphModule) -> int:
    """Have such writes of a program before autograd keep the strides of what they write to; returns how many."""
    nodes = list(graph_module.graph.nodes)
    found = [node for node in nodes if writes_self(node) and _is_spread(node.args[0])]
    given = [node for node in nodes if writes_out(node) and any(map(_is_spread, node.all_input_nodes))]
    return sum(map(_by_copy, found)) + sum(map(_by_copy_to_out, given))


def _is_spread(x: object) -> bool:
    """Whether a tensor is known not to be contiguous on the example; nothing is asked that would be a guard."""
    value = x.meta.get("val") if isinstance(x, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    step = 1
    for size, stride in zip(map(hint, reversed(value.shape)), map(hint, reversed(value.stride())), strict=True):
        if size is None or stride is None:
            return False
        if size != 1 and stride != step:
            return True
        step *= size
    return False


def _by_copy(node: fx.Node) -> bool:
    target = functional_form(node.target)
    if target is None or is_random(node) or torch.Tag.inplace_view in node.target.tags:  # type: ignore[union-attr]
        return False
    x, graph = node.args[0], node.graph
    with graph.inserting_before(node):
        made = graph.call_function(target, node.args, dict(node.kwargs))
        made.meta = {key: value for key, value in node.meta.items() if key != "val"}
    if not _lies_otherwise(made, val(x)):  # type: ignore[arg-type]
        graph.erase_node(made)
        return False
    if any(map(wants_gradient, made.all_input_nodes)):
        with graph.inserting_before(made):  # a derivative may read what was there before the write
            before = graph.call_function(torch.ops.aten.clone.default, (x,))
        before.meta = made.meta | {"val": val(x)}  # type: ignore[arg-type]
        made.args = (before, *made.args[1:])
    node.target, node.args, node.kwargs = _COPY, (x, made), {}
    return True


def _by_copy_to_out(node: fx.Node) -> bool:
    target, kwargs = form_without_out(node.target), dict(node.kwargs)
    out = kwargs.pop("out")
    if target is None or is_random(node) or not isinstance(out, fx.Node):
        return False
    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, node.args, kwargs)
        made.meta = {key: value for key, value in node.meta.items() if key != "val"}
    if not _lies_otherwise(made, val(out)):  # type: ignore[arg-type]
        node.graph.erase_node(made)
        return False
    node.target, node.args, node.kwargs = _COPY, (out, made), {}
    return True


def _lies_otherwise(made: fx.Node, like: torch.Tensor) -> bool:
    """Whether a call gives what could be copied to a tensor, and lies otherwise; its metadata is set."""
    try:
        result = made.meta["val"] = infer(made)
    except (RuntimeError, TypeError, ValueError):
        return False
    if not isinstance(result, torch.Tensor) or result.dtype != like.dtype or not same_shape(result.shape, like.shape):
        return False
    return not same_layout(result, like)
