"""Copies biases whose keys are not contiguous to a layout that suits vectors, once for all layers that share them.

    bias of sizes (12, 512, 512), strides (1, 6144, 12)   ->   clone of strides (262144, 512, 1)

Heads are the innermost dim of a bias that is an embedding of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ...ir.dependence import Dependence
from ...ir.index.index import Var
from ...ir.program import Buffer, dense_strides
from ...ir.value import Load
from .description import Attention

aten = torch.ops.aten


def with_keys_innermost(attention: Attention) -> Attention:
    """The attention with its biases in other strides, if that is faster: their tensors must be copied first."""
    operands = {attention.q.buffer, attention.k.buffer, attention.v.buffer}
    buffers = tuple(buffer if buffer in operands else _placed(buffer, attention) for buffer in attention.buffers)
    return replace(attention, buffers=buffers)


def _placed(buffer: Buffer, attention: Attention) -> Buffer:
    loads = [load for load in attention.loads() if load.buffer == buffer.name]
    keys, rows = _dims(attention.key, loads), _dims(attention.row, loads)
    if len(keys) != 1 or buffer.strides[min(keys)] <= 1 or not _is_small(buffer, attention):
        return buffer
    others = set(range(len(buffer.sizes))) - keys - rows
    order = [d for dims in (others, rows - keys, keys) for d in sorted(dims, key=lambda d: -buffer.strides[d])]
    return replace(buffer, strides=dense_strides(buffer.sizes, order))


def _dims(var: Var, loads: Sequence[Load]) -> set[int]:
    """The dims of a tensor that a variable indexes."""
    dependence = Dependence()
    return {d for load in loads for d, index in enumerate(load.indices) if var in dependence.of(index)}


def _is_small(buffer: Buffer, attention: Attention) -> bool:
    """Whether a copy is no larger than what the kernel reads of the bias: no dim is expanded, none is left out."""
    scores, elements = attention.row.extent * attention.key.extent, 1
    for var in attention.lead:
        scores *= var.extent
    for size in buffer.sizes:
        elements *= size
    return elements <= scores and all(
        step or size == 1 for size, step in zip(buffer.sizes, buffer.strides, strict=True)
    )
