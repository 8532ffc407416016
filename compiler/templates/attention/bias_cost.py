"""Finds biases and masks that a kernel should compute instead of read, because their operands need less memory.

%bias [1, 8, 512, 512]      ->   add(%bias, %mask)   8 times the bytes of %bias   ->   the kernel reads %bias, %mask
%mask [8, 1, 1, 512]
%keep [8, 1, 1, 512]        ->   where(%causal & %keep, 0, lowest)                ->   the kernel reads %keep
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import fx

from ....rewrites.graph import CASTS
from ....rewrites.purity import is_pure
from ..common.formula import COPIES, NUMBERS, is_move, packet
from ..common.formula_nodes import mask_formula

_GAIN = 1.5  # smallest ratio of bytes read without and with computing
_MOST_STEPS = {"cuda": 16, "cpu": 4}  # most operations per score
_DEPTH = 40
_CHOICES = ("aten.where", "aten.masked_fill")


def worth_computing(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes behind `nodes` that are worth computing wherever an element is needed.

    Args:
        nodes: tensors that are read element by element.
    """
    chosen: set[fx.Node] = set()
    for node in nodes:
        inner: dict[fx.Node, None] = {}
        leaves = _leaves(node, inner)
        steps = sum(_is_for_each(one, node) for one in inner)
        if (
            any(not is_move(one) for one in inner)
            and steps <= _MOST_STEPS.get(node.meta["val"].device.type, 0)
            and _bytes(node) >= _GAIN * sum(map(_bytes, leaves))
        ):
            chosen.update(inner)
    return chosen


def _leaves(node: fx.Node, inner: dict[fx.Node, None]) -> set[fx.Node]:
    """The operands from which a node can be computed with the fewest bytes; nodes in between are added to `inner`."""
    leaves: set[fx.Node] = set()
    least = _LeastBytes()
    queue = [(node, 0)]
    for one, depth in queue:
        if packet(one) in NUMBERS or mask_formula(one) is not None:
            inner[one] = None
        elif one not in inner and one not in leaves:
            sources = one.all_input_nodes
            # A step that shrinks the data (a comparison, a smaller dtype) is the right place to read from memory.
            shrinks = sum(map(least.of, sources)) > _bytes(one)
            if depth < _DEPTH and _is_computed(one) and (one is node or is_move(one) or not shrinks):
                inner[one] = None
                queue.extend((source, depth + 1) for source in sources)
            else:
                leaves.add(one)
    return leaves


def _is_for_each(node: fx.Node, whole: fx.Node) -> bool:
    """Whether a step runs for each query and key, rather than once for each row or column."""
    val = node.meta.get("val")
    if is_move(node) or packet(node) in NUMBERS or not isinstance(val, torch.Tensor):
        return False
    last = whole.meta["val"].shape[-2:]
    if not all(isinstance(size, int) for size in (*last, *val.shape)):
        return True
    return _bytes(node) >= math.prod(last) * val.dtype.itemsize


class _LeastBytes:
    """The fewest bytes from which values can be computed: 0 for values of positions and numbers alone."""

    def __init__(self) -> None:
        self._known: dict[fx.Node, int] = {}

    def of(self, node: fx.Node, depth: int = _DEPTH) -> int:
        if node not in self._known:
            self._known[node] = self._found(node, depth)
        return self._known[node]

    def _found(self, node: fx.Node, depth: int) -> int:
        if packet(node) in NUMBERS or mask_formula(node) is not None:
            return 0
        if depth == 0 or not _is_computed(node):
            return _bytes(node)
        return min(_bytes(node), sum(self.of(source, depth - 1) for source in node.all_input_nodes))


def _is_computed(node: fx.Node) -> bool:
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if is_move(node) or packet(node) in (*COPIES, "aten.constant_pad_nd", "aten.repeat"):
        return True
    # Sums of lowest numbers are infinite in float16, but would be finite in the kernel.
    if node.meta["val"].dtype == torch.float16 and packet(node) not in _CHOICES:
        return False
    if packet(node) in CASTS:
        return True
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) and is_pure(node)


def _bytes(node: fx.Node) -> int:
    """The bytes read by reading a tensor once; expanded dims count once."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor) or not all(isinstance(size, int) for size in val.shape):
        return 0
    total = val.dtype.itemsize
    for size, step in zip(val.shape, val.stride(), strict=True):
        total *= 1 if step == 0 else size
    return total
