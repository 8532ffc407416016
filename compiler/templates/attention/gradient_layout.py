"""The places of the gradients of an attention: each a buffer of its own, or as the graph around it has them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ...ir.program import Buffer
from .description import Attention, Operand
from .triton_text import contiguous

GRADIENT, SCORES, SINKS = "grad_out", "grad_score", "grad_sink"


@dataclass(frozen=True)
class Places:
    """The places of gradients, by the lead variables, rows and columns; None stands for the place given here.

    Args:
        out: of the result: as the result.
        q, k, v: (lead loops, rows, columns), contiguous, in the dtype of what they are the gradients of.
        scores: (lead loops, queries, keys), contiguous, in the dtype of q.
    """

    out: Operand | None = None
    q: Operand | None = None
    k: Operand | None = None
    v: Operand | None = None
    scores: Operand | None = None


class AttentionGradients:
    """The gradients, each with its place.

    Args:
        scores, sinks: whether there are those of `f`'s values, and of the sink's.
    """

    def __init__(self, a: Attention, places: Places, *, scores: bool, sinks: bool) -> None:
        dtype = a.q.buffer.dtype
        self.out = _named(GRADIENT, places.out or a.out)
        self.q = _named("grad_q", places.q or _dense(a, dtype, a.row.extent, a.depth))
        self.k = _named("grad_k", places.k or _dense(a, a.k.buffer.dtype, a.key.extent, a.depth))
        self.v = _named("grad_v", places.v or _dense(a, a.v.buffer.dtype, a.key.extent, a.width))
        dense = _dense(a, dtype, a.row.extent, a.key.extent)
        self.scores = _named(SCORES, places.scores or dense) if scores else None
        self.sinks = _own(a, SINKS, torch.float32, a.row.extent) if sinks else None

    @property
    def by_queries(self) -> list[Buffer]:
        """The results of the first launch, without `delta`."""
        made = [self.q.buffer, None if self.scores is None else self.scores.buffer, self.sinks]
        return [buffer for buffer in made if buffer is not None]

    @property
    def by_keys(self) -> list[Buffer]:
        """The results of the second launch."""
        return [self.k.buffer, self.v.buffer]


def _named(name: str, x: Operand) -> Operand:
    return replace(x, buffer=replace(x.buffer, name=name))


def _dense(a: Attention, dtype: torch.dtype, rows: int, columns: int) -> Operand:
    """A matrix for each lead iteration, one after the other."""
    buffer = _own(a, "", dtype, rows, columns)
    base: Any = 0
    for var, stride in zip(a.lead, buffer.strides, strict=False):
        base = base + var.index() * stride if var.extent > 1 else base
    return Operand(buffer, base, columns, 1)


def _own(attention: Attention, name: str, dtype: torch.dtype, *sizes: int) -> Buffer:
    """A buffer of something for each lead iteration."""
    lead = (var.extent for var in attention.lead)
    return contiguous(name, dtype, (*lead, *sizes), attention.out.buffer.device)
