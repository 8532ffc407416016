"""Writes to tensors that lie otherwise than what the operator gives out of place, or that AOTAutograd loses.

    masked_fill_(x, mask, 0), x in channels last    ->    copy_(x, masked_fill(x, mask, 0))
    neg(x.t(), out=y), y contiguous                 ->    copy_(y, neg(x.t()))
    cholesky(x, out=y), y contiguous                ->    copy_(y, cholesky(x))         likewise each of several results
    matrix_rank(x, out=y)                           ->    copy_(y, matrix_rank(x))

AOTAutograd takes what the operator gives out of place for the tensor that is written to, with all that is computed from
it later. Eager's keeps its strides, and a copy into a tensor has the strides of that tensor. The write of `matrix_rank`
AOTAutograd loses altogether.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import infer
from ...rewrites.effects import wants_gradient
from ...rewrites.functional import form_without_out, functional_form, writes_self, written_outs
from ...rewrites.graph import op_name, val
from ...rewrites.layout import same_layout
from ...rewrites.purity import is_random
from ...rewrites.symbolic import hint, same_shape
from ...rewrites.walk import recompiles

_LOST = ("aten.linalg_matrix_rank",)
_COPY = torch.ops.aten.copy_.default


@recompiles
def write_as_it_lies(graph_module: fx.GraphModule) -> int:
    """Have such writes of a program before autograd keep the strides of what they write to; returns how many."""
    nodes = list(graph_module.graph.nodes)
    found = [node for node in nodes if writes_self(node) and _is_spread(node.args[0])]
    given = [node for node in nodes if written_outs(node)]
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
    """Copy to what the caller gives, for an operator may lay out its own results by its own rules."""
    target, kwargs, graph = form_without_out(node.target), dict(node.kwargs), node.graph
    outs = [kwargs.pop(name) for name in written_outs(node)]
    if target is None or is_random(node):
        return False
    with graph.inserting_before(node):
        made = graph.call_function(target, node.args, kwargs)
        several = len(compat.schema(target).returns) > 1
        parts = [graph.call_function(operator.getitem, (made, k)) for k in range(len(outs))] if several else [made]
    for part in dict.fromkeys((made, *parts)):
        part.meta = {key: value for key, value in node.meta.items() if key != "val"}
    if not _can_copy(made, parts, outs) or not (op_name(node) in _LOST or _lie_otherwise(parts, outs)):
        for part in dict.fromkeys((*parts, made)):
            graph.erase_node(part)
        return False
    if not several:
        node.target, node.args, node.kwargs = _COPY, (outs[0], made), {}
        return True
    with graph.inserting_before(node):
        copies = [graph.call_function(_COPY, (out, part)) for out, part in zip(outs, parts, strict=True)]
    for copy, out in zip(copies, outs, strict=True):
        copy.meta = made.meta | {"val": val(out)}
    for user in list(node.users):
        user.replace_all_uses_with(copies[user.args[1]])  # type: ignore[index]
        graph.erase_node(user)
    graph.erase_node(node)
    return True


def _can_copy(made: fx.Node, parts: list[fx.Node], outs: list[fx.Node]) -> bool:
    """Whether what a call gives could be copied to tensors, each result to one; its metadata is set."""
    try:
        results = infer(made)
    except (RuntimeError, TypeError, ValueError):
        return False
    made.meta["val"] = results
    if parts != [made]:
        for part, result in zip(parts, results, strict=True):
            part.meta["val"] = result
    return all(_fits(part.meta["val"], val(out)) for part, out in zip(parts, outs, strict=True))


def _lie_otherwise(parts: list[fx.Node], outs: list[fx.Node]) -> bool:
    return not all(same_layout(val(part), val(out)) for part, out in zip(parts, outs, strict=True))


def _lies_otherwise(made: fx.Node, like: torch.Tensor) -> bool:
    """Whether a call gives what could be copied to a tensor, and lies otherwise; its metadata is set."""
    try:
        result = made.meta["val"] = infer(made)
    except (RuntimeError, TypeError, ValueError):
        return False
    return _fits(result, like) and not same_layout(result, like)


def _fits(result: object, like: torch.Tensor) -> bool:
    """Whether a result could be copied to a tensor with neither a cast nor a change of sizes."""
    if not isinstance(result, torch.Tensor):
        return False
    return result.dtype == like.dtype and same_shape(result.shape, like.shape)
