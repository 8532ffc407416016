"""The operands of a product that may be read before earlier kernels have ended: weights, which nobody writes.

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

from torch import fx

from ....rewrites.purity import written
from ..common.formula import COPIES
from ..common.order import is_written_by_kernel, root_of
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
            is_written_by_kernel(node) for name, node in nodes.items() if name not in early
        )

    def _lies_still(self, node: fx.Node) -> bool:
        root = root_of(node)
        return root.op in ("placeholder", "get_attr") and root not in self._written

    @functools.cached_property
    def _written(self) -> set[fx.Node]:
        return {root_of(target, COPIES) for node in self._graph.nodes for target in written(node)}
