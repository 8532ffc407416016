"""Calls `scaled_dot_product_attention` with four dims on a GPU, the only number that fused kernels take.

    sdpa(q, k, v), q: [b, h, w, s, d]   ->   permute(reshape(sdpa(q', k', v'))), q': [b*w, h, s, d]
    sdpa(q, k, v), q: [b, s, d]         ->   squeeze(sdpa(q', k', v')), q': [1, b, s, d]

Torch computes other calls as they are written, in single precision, and keeps all scores. Attention within windows or
along one axis of an image has five dims or more, a model that folds heads into the batch three. One of the leading
dims stays, as that of heads, and the others are merged: which one is chosen so that nothing needs to be copied.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_tensor, rank, shape, val
from ...rewrites.symbolic import known, known_equal, product
from ...rewrites.walk import put_adapted, visits_calls

aten = torch.ops.aten

_GPUS = ("cuda",)
_HEADS = ("query", "key", "value")
_DIMS = 4  # of operands of fused kernels: batch, heads, rows, columns
_HALF = (torch.float16, torch.bfloat16)  # of others, the scores' products are as fast as those of a fused kernel


@visits_calls(aten.scaled_dot_product_attention.default)
def sdpa_in_four_dims(
    editor: Editor, call: fx.Node, devices: Collection[str] = _GPUS, keep_stream: bool = False
) -> bool:
    """Give an attention call four dims, as captured, before autograd.

    Args:
        editor: of the graph.
        call: the attention.
        devices: whose calls are changed.
        keep_stream: leave calls that draw random numbers alone, because another kernel draws other numbers.
    """
    if not _is_served(call, devices, keep_stream):
        return False
    put_adapted(editor, call, _replaced(editor, call), keep_stream=keep_stream)
    return True


def _is_served(call: fx.Node, devices: Collection[str], keep_stream: bool) -> bool:
    given = arguments(call)
    query, mask = given["query"], given["attn_mask"]
    if val(query).device.type not in devices or val(query).dtype not in _HALF or given["enable_gqa"]:
        return False
    if rank(query) in (2, _DIMS) or any(rank(given[name]) != rank(query) for name in _HEADS):
        return False
    if keep_stream and given["dropout_p"] != 0.0:
        return False
    lead = [shape(given[name])[:-2] for name in _HEADS]
    if not all(known_equal(a, b) for other in lead[1:] for a, b in zip(lead[0], other, strict=True)):
        return False
    return not is_tensor(mask) or rank(mask) <= rank(query)


def _replaced(editor: Editor, call: fx.Node) -> fx.Node:
    """The call on four dims, its result with the dims of the old one."""
    given = arguments(call)
    lead = list(shape(given["query"])[:-2])
    kept = _dim_of_heads([val(given[name]) for name in _HEADS])
    order = [*(d for d in range(len(lead)) if d != kept), kept, len(lead), len(lead) + 1]
    with editor.at(call):
        heads = [_four_dims(editor, given[name], order) for name in _HEADS]
        mask = _mask(editor, given["attn_mask"], lead, order)
        numbers = {name: given[name] for name in ("scale",) if given.get(name) is not None}
        out = editor.call(call.target, *heads, mask, given["dropout_p"], given["is_causal"], **numbers)
        rows, columns = shape(call)[-2:]
        spread = editor.call(aten.reshape.default, out, [*(lead[d] for d in order[:-2]), rows, columns])
        if order == sorted(order):
            return spread
        return editor.call(aten.permute.default, spread, [order.index(d) for d in range(len(order))])


def _dim_of_heads(heads: list[torch.Tensor]) -> int:
    """The leading dim that stays: the last one for which the others merge without a copy, in most operands."""
    count = heads[0].dim() - 2
    return max(reversed(range(count)), key=lambda kept: sum(_merges(x, kept) for x in heads))


def _merges(x: torch.Tensor, kept: int) -> bool:
    """Whether all leading dims but one are one dim in memory."""
    dims = [d for d in range(x.dim() - 2) if d != kept and not known(x.shape[d] == 1)]
    return all(known_equal(x.stride(a), x.stride(b) * x.shape[b]) for a, b in itertools.pairwise(dims))


def _four_dims(editor: Editor, x: fx.Node, order: list[int]) -> fx.Node:
    """``[*leading, rows, columns]`` as ``[merged, heads, rows, columns]``."""
    moved = x if order == sorted(order) else editor.call(aten.permute.default, x, order)
    sizes = shape(moved)
    return editor.call(aten.reshape.default, moved, [product(sizes[:-3]), *sizes[-3:]])


def _mask(editor: Editor, mask: Any, lead: list[Any], order: list[int]) -> Any:
    """A mask with four dims; one of rows and columns only is broadcast by the kernel."""
    if not is_tensor(mask):
        return mask
    while rank(mask) < 2 or 2 < rank(mask) < len(order):
        mask = editor.call(aten.unsqueeze.default, mask, 0)
    if rank(mask) == 2:
        return mask
    if not all(known_equal(size, 1) for size in shape(mask)[:-2]):
        mask = editor.call(aten.expand.default, mask, [*lead, *shape(mask)[-2:]])
    return _four_dims(editor, mask, order)
