"""Parts of all passes over products, whatever the device: their names, and the baseline of a kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ....patterns.packing import packed_linear_weight
from ..common.baseline import Baseline
from ..common.formula import packet
from .match import FoundProduct
from .operands import REORDER

RULE, FAMILY = "linear-template", "linear-kernel"


class ProductBaseline(Baseline):
    """The nodes that a kernel would replace, as they run without it: the library's product, then a generated kernel.

    It gives the product itself beside the result where the kernel gives that too.
    """

    def __init__(self, found: FoundProduct) -> None:
        inputs = list(dict.fromkeys(found.inputs))
        super().__init__(found.nodes, inputs, [found.output] if found.kept is None else [found.output, found.kept])
        self._places = [found.inputs.index(node) for node in inputs]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The results, from the inputs of the kernel."""
        return super().__call__(*(tensors[place] for place in self._places))

    def _adapt(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if packet(node) == REORDER:
                node.target = packed_linear_weight
