"""Live comparison: both sides of a rewrite run on the user's own inputs, and their difference is kept.

    out = sdpa(q, k, v)   ->   out = regraft::compare(sdpa(q, k, v), matmul(softmax(...), v), key)

The value that flows on is the replacement's, and so are its gradients. What was seen is in the graph's record.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import fx

from .editor import Editor
from .reason import Reason, site_of
from .record import GraphRecord

if TYPE_CHECKING:
    from .legality import CompleteMatch

logger = logging.getLogger("regraft")

_records: WeakValueDictionary[str, GraphRecord] = WeakValueDictionary()
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def watch(record: GraphRecord) -> str:
    """Let comparisons write to `record.errors`; returns the key that they name it by."""
    key = f"{id(record):x}"
    _records[key] = record
    return key


def _note(key: str, error: float, dtype: torch.dtype) -> None:
    watched, rule, place = key.split("|", 2)
    record = _records.get(watched)
    if record is not None:
        record.errors.setdefault(rule, []).append(error)
    if error > _TOLERANCE.get(dtype, 1e-4):
        logger.warning("regraft: rule %s changed a result by %.3g (relative) at %s", rule, error, place)


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative error in the Frobenius norm; NaN and inf at the same places are equal, at others infinitely wrong."""
    a, b = result.detach().double(), reference.detach().double()
    odd = ~torch.isfinite(b)
    if not torch.equal(torch.isnan(a), torch.isnan(b)) or not torch.equal(a[torch.isinf(b)], b[torch.isinf(b)]):
        return float("inf")
    a, b = a.masked_fill(odd, 0), b.masked_fill(odd, 0)
    scale = b.norm().item()
    return (a - b).norm().item() / scale if scale else (a - b).norm().item()


@cache
def compare_op() -> Any:
    """The operator that compares; made on first use, because making operators costs time at import."""

    @torch.library.custom_op("regraft::compare", mutates_args=())
    def compare(replacement: torch.Tensor, original: torch.Tensor, key: str) -> torch.Tensor:
        _note(key, relative_error(replacement, original), replacement.dtype)
        return replacement.clone()

    @compare.register_fake
    def _(replacement: torch.Tensor, original: torch.Tensor, key: str) -> torch.Tensor:  # noqa: ARG001
        return torch.empty_like(replacement)

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ARG001
        return grad, None, None

    compare.register_autograd(backward)
    return torch.ops.regraft.compare.default


def observe(editor: Editor, found: CompleteMatch, old: fx.Node, new: fx.Node, watched: str) -> fx.Node:
    """Insert a comparison of `new` with a copy of the matched code; returns the value that flows on."""
    copies: dict[fx.Node, fx.Node] = {}
    for node in found.nodes:
        copies[node] = editor.copy(node, lambda n: copies.get(n, n))
        copies[node].meta["opaque"] = Reason(
            "kept-for-comparison", "this copy of replaced code runs for comparison only"
        )
    place = site_of(old)
    return editor.call(compare_op(), new, copies[old], f"{watched}|{found.rule.name}|{place or old.name}")
