"""Finds results that AOTAutograd cannot make: views of an input that overlaps another in memory that is written to.

    x, y = t[0:4], t[2:6]      y.add_(1); return x.t()      the program runs as it was written

AOTAutograd makes one tensor of such inputs, and then applies the views of `x` to that tensor in place of `x`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import fx

from ...rewrites.compat.memory import storage_key
from ...rewrites.graph import val
from ...rewrites.purity import written
from ...rewrites.reason import Reason
from ...rewrites.symbolic import hint


def view_of_shared_input(graph: fx.Graph) -> Reason | None:
    """The reason for the first such result of a captured graph; None if there is none."""
    inputs = [node for node in graph.find_nodes(op="placeholder") if _memory(node) is not None]
    keys = {_memory(node) for node in inputs}
    if len(keys) == len(inputs):
        return None
    touched = {_memory(target) for node in graph.nodes for target in written(node)}
    shared = {key for key in touched & keys if _overlap([node for node in inputs if _memory(node) == key])}
    results = graph.output_node().args[0]
    for node in results if shared and isinstance(results, (tuple, list)) else ():
        if isinstance(node, fx.Node) and _memory(node) in shared and _itself(node).op != "placeholder":
            message = (
                f"{node.name} is a view of an input whose memory another input shares, and the program writes to it; "
                "the program runs as it was written"
            )
            return Reason("view-of-shared-input", message, (node,))
    return None


def _memory(node: fx.Node) -> int | None:
    value = val(node)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    try:
        return storage_key(value)
    except (AttributeError, NotImplementedError, RuntimeError):  # a tensor without memory of its own
        return None


def _itself(node: fx.Node) -> fx.Node:
    """The tensor that a call writes to and gives."""
    while (targets := written(node)) and _memory(targets[0]) == _memory(node):
        node = targets[0]
    return node


def _overlap(inputs: Sequence[fx.Node]) -> bool:
    """Whether some of the inputs in one memory overlap; of symbolic sizes, as in the example."""
    ranges = sorted(_range(val(node)) for node in inputs)
    return any(begin < end for (_, end), (begin, _) in pairwise(ranges))


def _range(x: torch.Tensor) -> tuple[int, int]:
    numbers = [hint(n) for n in (x.storage_offset(), *x.shape, *x.stride())]
    if None in numbers:
        return 0, 1 << 62
    first, sizes, strides = numbers[0], numbers[1 : x.dim() + 1], numbers[x.dim() + 1 :]
    return first, first + 1 + sum(max(n - 1, 0) * stride for n, stride in zip(sizes, strides, strict=True))
