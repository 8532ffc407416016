"""Freezing in one compilation: what happens before the rules of each stage, after them, and at every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...patterns.packing import FROZEN, PACKED
from ...rewrites.graph import op_name
from ...rewrites.purity import written
from ..runtime.calls import Boxed
from .fold import Folded, fold
from .guard import WeightGuard, guarded
from .weights import module_state, weight_nodes

_PACKING = {
    "mkldnn._reorder_linear_weight": "packed_linear",
    "mkldnn._reorder_convolution_weight": "packed_convolution",
}


class Freezer:
    """Freezes the weights of one program.

    Args:
        graph_module: Dynamo's graph.
        example_inputs: its inputs.

    Attributes:
        counts: what was found and done: weights, weights packed, constants and their bytes.
        folded: the constants of the inference graph, and what computes them; None where there are none.
    """

    def __init__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self._owner = graph_module
        self._state = module_state(graph_module, example_inputs)
        self._weights: dict[fx.Node, torch.Tensor] = {}
        self.counts: dict[str, int] = {}
        self.folded: Folded | None = None
        self._guard: WeightGuard | None = None

    def mark(self, graph_module: fx.GraphModule) -> None:
        """Mark the weights of the captured graph for the rules that run before autograd, in place."""
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        mutated = {target for node in graph_module.graph.nodes for target in written(node)}
        for position in self._state:
            if placeholders[position] not in mutated:
                placeholders[position].meta[FROZEN] = True
        _mark_constants(graph_module)

    def begin(self, graph_module: fx.GraphModule) -> None:
        """Mark the weights of AOTAutograd's inference graph for the rules, in place."""
        self._weights = weight_nodes(graph_module, self._state, self._owner)
        for node in self._weights:
            node.meta[FROZEN] = True
        _mark_constants(graph_module)
        self.counts, self.folded, self._guard = {"weights": len(self._weights)}, None, None

    def finish(self, graph_module: fx.GraphModule) -> int:
        """Fold what follows from weights, after the rules, in place; returns the number of constants."""
        packed = [_packing(node) for node in graph_module.graph.nodes]
        self.counts |= {name: packed.count(name) for name in _PACKING.values()}
        folded = self.folded = fold(graph_module, self._weights)
        self._guard = WeightGuard(folded) if folded is not None else None
        found = (len(folded.constants), folded.nbytes) if folded is not None else (0, 0)
        self.counts |= dict(zip(("constants", "bytes"), found, strict=True))
        return found[0]

    def protected(self, call: Boxed) -> Boxed:
        """The call of the compiled graph, which notices weights that have changed."""
        return call if self._guard is None else guarded(call, self._guard)


def _mark_constants(graph_module: fx.GraphModule) -> None:
    """The program's own constants are folded with its weights, and without these not at all."""
    for node in graph_module.graph.find_nodes(op="get_attr"):
        node.meta[FROZEN] = True


def _packing(node: fx.Node) -> str | None:
    """The kind of packing that a call does, if any."""
    return "packed_linear" if PACKED in node.meta else _PACKING.get(op_name(node))
