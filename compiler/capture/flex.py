"""Decomposes `flex_attention` into products and a softmax, so that rules and templates find an attention in it.

    flex_attention(q, k, v, score_mod, (..., mask_mod), scale)   ->

        scores = matmul(to(q, float32), to(k, float32)^T) * scale
        scores = where(mask_mod(b, h, i, j), score_mod(scores, b, h, i, j), -inf)
        matmul(to(_safe_softmax(scores, -1), q.dtype), v)

The functions become operators on whole grids of positions; tensors that they capture are read by index. The result of a
row without kept keys is 0.

    score_mod(score, b, h, i, j) = score + table[h, j - i]   ->   scores + index(table, [arange(H)[:, 1, 1], ...])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.reason import Reason
from ...rewrites.symbolic import hint, known_equal
from ...rewrites.tracing import record
from ..autograd.joint_graph import mark_recomputed
from .screen import refused_call

_MOVES = ("expand", "unsqueeze", "view", "permute", "alias")
_ONES = ("ones", "new_ones", "ones_like")
_LN2 = math.log(2)
_WHOLE = 1 << 30  # rows and keys of a block if there is no mask


def is_flex(target: Any) -> bool:
    """Whether a call in Dynamo's graph is a call of `flex_attention`."""
    return isinstance(target, compat.HigherOrderOperator) and target.__name__ == "flex_attention"


def reads_tables(call: fx.Node, gm: fx.GraphModule) -> bool:
    """Whether a call needs its tables of blocks besides its functions, or is kept."""
    *blocks, mask_mod = call.args[4]  # type: ignore[misc]
    bodies = [compat.attribute(gm, str(node.target)) for node in (call.args[3], mask_mod)]  # type: ignore
    kept = bool(call.kwargs) or not all(map(is_arithmetic, bodies))
    return kept or (_is_everything(bodies[1]) and not _is_one_block(blocks))


def is_arithmetic(body: fx.GraphModule) -> bool:
    """Whether a function only computes, by operators with known derivatives."""
    return not any(
        isinstance(node.target, compat.HigherOrderOperator)
        or node.target in compat.SCOPES
        or node.op == "call_module"
        or refused_call(node) is not None
        for node in body.graph.nodes
    )


def why_kept(args: Sequence[Any], kwargs: Any, call: fx.Node) -> Reason | None:
    """The reason to keep a call, if operators would lose its options or the effects of its functions; or None."""
    if kwargs:
        return Reason("attention-arguments", "flex_attention has arguments by name", (call,), found=", ".join(kwargs))
    if not all(map(is_arithmetic, (args[3], args[4][-1]))):
        return Reason("attention-function", "a function of flex_attention does more than compute", (call,))
    return None


def not_spelled(error: Exception, call: fx.Node) -> Reason:
    """The reason to keep a call whose decomposition has failed."""
    message = next(iter(str(error).strip().splitlines()), "")[:300]
    return Reason("attention-not-spelled-out", f"flex_attention stays: {type(error).__name__}: {message}", (call,))


def recompute_scores(before: fx.Node, args: Sequence[Any]) -> None:
    """Have the backward recompute values with an element for each row and key, as the backward of the operator does.

    Args:
        before: the last node of the graph before the decomposition.
        args: the arguments of the call.
    """
    rows, keys = args[0].shape[-2], args[1].shape[-2]
    made: list[fx.Node] = []
    while (before := before.next).op != "root":
        made.append(before)
    results = {next(node for node in reversed(made) if node.target is torch.ops.aten.matmul.default)}
    for node in made:
        if not results.isdisjoint((node, *node.all_input_nodes)):
            results.add(node)
        elif _is_grid(node.meta.get("val"), rows, keys):
            mark_recomputed(node, True)


def _is_grid(val: Any, rows: Any, keys: Any) -> bool:
    if not isinstance(val, torch.Tensor) or val.dim() < 2:
        return False
    return known_equal(val.shape[-2], rows) and known_equal(val.shape[-1], keys)


def spelled_out(args: Sequence[Any], given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The results of a call: the attention, logarithms of row sums to base 2, and largest scores over ln 2.

    Args:
        args: the arguments of the call.
        given: the results of the call on the fakes of this trace, whose dtype and strides are preserved.
    """
    query, key, value, score_mod, block_mask, scale, _, score_buffers, mask_buffers = args
    out, *_ = given
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = (x if x.dtype == torch.float64 else x.to(out.dtype) for x in (query, key, value))
    with compat.autocast_off():
        key, value = (_for_each_head(x, query) for x in (key, value))
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = (query.to(wide) @ key.to(wide).transpose(-2, -1)) * scale
        places = [torch.arange(size, device=scores.device) for size in scores.shape]
        changed = _on_grid(score_mod, [scores, *places], score_buffers)
        keep = _on_grid(block_mask[-1], places, mask_buffers)
        kept = fx.Interpreter(changed).run(scores, *places, *score_buffers)
        if not _is_everything(keep):
            kept = torch.where(fx.Interpreter(keep).run(*places, *mask_buffers), kept, -math.inf)
        elif not _is_one_block(block_mask[:-1]):
            kept = torch.where(_listed(block_mask[:-1], *places[2:]), kept, -math.inf)
        weights = torch.ops.aten._safe_softmax.default(kept, -1).to(query.dtype)
        result = _in_order(weights @ value.to(query.dtype), out)
        return result, *_statistics(kept, given)


def _on_grid(body: fx.GraphModule, inputs: Sequence[torch.Tensor], buffers: Sequence[Any]) -> fx.GraphModule:
    """A function of scalars as ATen calls on tensors of all the scalars.

    Args:
        body: the function, which takes scalars, a position along each dim, and `buffers`, which it reads by position.
        inputs: tensors of four dims for the scalars, and the positions along each dim.
        buffers: the tensors and numbers that the function captures.
    """
    mapped: Callable[..., Any] = body
    scalars, fixed = (0,) * (len(inputs) - 4), (None,) * len(buffers)
    for dim in reversed(range(4)):
        mapped = torch.vmap(mapped, in_dims=(*scalars, *(0 if d == dim else None for d in range(4)), *fixed))
    with compat.not_recorded(), torch.no_grad(), compat.indexing_by_tensors():
        made = record(mapped, [*inputs, *buffers], "decomposed")
    return _of_numbers(made)


def _of_numbers(made: fx.GraphModule) -> fx.GraphModule:
    """Replace `_to_copy(20, float32)` by the number: `vmap` records a number beside a tensor in this form."""
    for node in made.graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default):
        number = node.args[0]
        if isinstance(number, (int, float)):
            node.replace_all_uses_with(float(number) if node.kwargs["dtype"].is_floating_point else number)
            made.graph.erase_node(node)
    made.recompile()
    return made


def _for_each_head(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values, expanded to each batch and head of the queries."""
    batch, heads = query.shape[:2]
    group = heads // x.shape[1]
    if group != 1:
        x = x.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2)
    return x if known_equal(x.shape[0], batch) else x.expand(batch, -1, -1, -1)


def _in_order(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The result with its dims in memory in the order of `like`."""
    order = sorted(range(4), key=lambda d: (hint(like.stride(d)), hint(like.shape[d])), reverse=True)
    if order == [0, 1, 2, 3]:
        return result
    return result.permute(order).contiguous().permute([order.index(d) for d in range(4)])


def _statistics(scores: torch.Tensor, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Logarithms of row sums, and maxima: -inf for rows without kept keys, which then get no gradient."""
    empty = (scores == -math.inf).all(-1, keepdim=True)
    sums = torch.where(empty, 0.0, scores).logsumexp(-1)
    sums = torch.where(empty.squeeze(-1), -math.inf, sums) / _LN2
    return [sums, *((scores.detach().amax(-1) / _LN2,) if len(given) > 2 else ())]


def _is_one_block(blocks: Sequence[Any]) -> bool:
    """Whether a mask is the default one."""
    return tuple(blocks[-2:]) == (_WHOLE, _WHOLE)


def _listed(blocks: Sequence[Any], rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Whether the tables list the block of each row and column: the mask of a call without a mask function."""
    tables, (height, width) = blocks[2:6], blocks[-2:]
    numbers = torch.arange(-(-columns.shape[0] // width), device=columns.device)
    found: Any = None
    for count, order in (tables[:2], tables[2:]):
        if count is not None:
            slots = torch.arange(order.shape[-1], device=order.device)
            there = (slots < count.unsqueeze(-1)).unsqueeze(-1) & (order.unsqueeze(-1) == numbers)
            found = there.any(-2) if found is None else found | there.any(-2)
    return found[:, :, (rows // height).unsqueeze(-1), columns // width]


def _is_everything(keep: fx.GraphModule) -> bool:
    """Whether a mask is True for all positions."""
    node = keep.graph.output_node().args[0]
    node = node[0] if isinstance(node, (tuple, list)) and len(node) == 1 else node
    while isinstance(node, fx.Node) and _name(node) in _MOVES:
        node = node.args[0]
    return isinstance(node, fx.Node) and _name(node) in _ONES


def _name(node: fx.Node) -> str:
    path = compat.operator_path(node.target)
    return path[1] if path is not None else str(node.target)
