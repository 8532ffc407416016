"""Simplifies the masks of `scaled_dot_product_attention` calls, so that fused kernels accept them.

    sdpa(q, k, v, mask)   where mask is known to keep everything           ->  sdpa(q, k, v)
    sdpa(q, k, v, mask)   where mask is known to be causal                 ->  sdpa(q, k, v, is_causal=True)
    sdpa(q, k, v, mask)   on CUDA, where entries of a row lie apart        ->  sdpa(q, k, v, mask.contiguous())

Torch chooses the kernel of such a call during tracing. None of its fused kernels accepts a mask whose rows are not
contiguous, such as a permuted position bias or a mask expanded along its rows. It then uses the math path, in single
precision. Copying the mask costs little compared with that path.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import fx

from ...patterns.masks import is_causal
from ...rewrites.editor import Editor
from ...rewrites.facts import Uniform, facts_of_graph
from ...rewrites.graph import arguments, is_tensor, op_name, rank, shape, val
from ...rewrites.purity import mutable
from ...rewrites.symbolic import known, known_equal
from ...rewrites.walk import put_adapted, recompiles

aten = torch.ops.aten

_SETTINGS = ("dropout_p", "is_causal")


@recompiles
def simplify_sdpa_masks(graph_module: fx.GraphModule, *, keep_stream: bool = False) -> dict[str, int]:
    """Change the masks of attention calls in place; returns the number of changes of each kind.

    Args:
        graph_module: as captured, before autograd.
        keep_stream: leave calls that draw random numbers alone, because another kernel draws other numbers.
    """
    graph = graph_module.graph
    calls = [node for node in graph.nodes if op_name(node) == "aten.scaled_dot_product_attention" and _masked(node)]
    if not calls:
        return {}
    written = mutable(graph)
    facts = facts_of_graph(graph, written)
    editor = Editor(graph)
    found: Counter[str] = Counter()
    no_mask: dict[str, Any] = {"attn_mask": None}
    copies: dict[fx.Node, fx.Node] = {}  # one for all layers that share a mask
    for call in calls:
        given = arguments(call)
        mask = given["attn_mask"]
        if keep_stream and given["dropout_p"] != 0.0:
            continue
        if keeps_everything(mask, facts.get(mask)):
            kind, changed = "none", no_mask
        elif mask not in written and _is_square(given) and is_causal(mask):
            kind, changed = "causal", {**no_mask, "is_causal": True}
        elif val(mask).device.type == "cuda" and not known_equal(val(mask).stride(-1), 1):
            if mask not in copies or mask in written:
                with editor.at(call):
                    copies[mask] = editor.call(aten.contiguous.default, mask)
            kind, changed = "rows", {"attn_mask": copies[mask]}
        else:
            continue
        _replace(editor, call, given | changed)
        found[kind] += 1
    return dict(found)


def keeps_everything(mask: Any, fact: Any) -> bool:
    """Whether a boolean or additive mask is known to leave all scores unchanged, and there is at least one score."""
    if not isinstance(fact, Uniform) or not known(shape(mask)[-1] >= 1):
        return False
    return fact.number is True if val(mask).dtype == torch.bool else fact.number == 0


def _masked(node: fx.Node) -> bool:
    given = arguments(node)
    mask = given["attn_mask"]
    return is_tensor(mask) and rank(mask) >= 2 and given["is_causal"] is False


def _is_square(given: dict[str, Any]) -> bool:
    """Whether there are as many queries as keys: `is_causal` aligns the mask with the first query and the first key."""
    return known_equal(shape(given["query"])[-2], shape(given["key"])[-2])


def _replace(editor: Editor, call: fx.Node, given: dict[str, Any]) -> None:
    """The call with other arguments; readers of its result get its new strides."""
    inputs = [given.pop(name) for name in ("query", "key", "value", "attn_mask", *_SETTINGS)]
    with editor.at(call):
        new = editor.call(call.target, *inputs, **{k: v for k, v in given.items() if v is not None})
    put_adapted(editor, call, new)
