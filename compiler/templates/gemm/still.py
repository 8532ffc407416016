"""Which operands of a product may be read before kernels before it have ended: weights, which lie still meanwhile.

    kernel before    %norm = ...                   its last programs still run
    product          reads %weight, waits, then reads %norm and computes

On Hopper a kernel may be launched in such a way that it begins when all programs of the kernel before have begun, and
waits by itself. What it reads before it waits may not be written by any kernel that has not ended when it begins:

- Inputs of the graph that nothing in the graph writes to. Whatever wrote to them was launched before the graph ran.
- Another kernel of the graph was launched in between, which itself began after all that: the one that computes what the
  product reads besides. It either was launched in the usual way, or waits for one that was.
"""

from __future__ import annotations

import functools
from collections.abc import Container

import torch
from torch import fx

from ....rewrites.effects import written
from ..common.formula import COPIES, NUMBERS, is_move, packet
from .match import FoundProduct


class Still:
    """Memory that nothing writes to while kernels of a graph run; nodes that write nothing may come and go."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph

    def allows(self, found: FoundProduct) -> bool:
        """Whether a product's right operand may be read early."""
        product = found.product
        early = {product.b.buffer.name, *(b.name for b in (product.right.buffers if product.right is not None else ()))}
        names = [buffer.name for buffer in product.reads]
        nodes = dict(zip(names, found.inputs, strict=True))
        return all(self._lies_still(nodes[name]) for name in early) and any(
            _is_computed(node) for name, node in nodes.items() if name not in early
        )

    def _lies_still(self, node: fx.Node) -> bool:
        root = _root(node)
        return root.op in ("placeholder", "get_attr") and root not in self._written

    @functools.cached_property
    def _written(self) -> set[fx.Node]:
        return {_root(target, COPIES) for node in self._graph.nodes for target in written(node)}


def _root(node: fx.Node, through: Container[str] = ()) -> fx.Node:
    """What a node is a view of; `through` copies as well."""
    while is_move(node) and (packet(node) not in COPIES or packet(node) in through):
        node = node.all_input_nodes[0]
    return node


def _is_computed(node: fx.Node) -> bool:
    """Whether a kernel of the graph has to write a node before it can be read."""
    root = _root(node)
    val = root.meta.get("val")
    is_tensor = isinstance(val, torch.Tensor) and val.device.type == "cuda" and val.numel() > 0
    is_made = packet(root) in NUMBERS or packet(root).startswith("aten.empty")  # maybe by no kernel at all
    return root.op == "call_function" and is_tensor and not is_made
