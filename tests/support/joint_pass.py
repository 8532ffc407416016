"""Passes over joint graphs, alone: a backend that applies one before the split, and runs the graphs by calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from regraft.compiler.autograd.differentiate import differentiate
from regraft.compiler.codegen.wrapper.wrapper import generate


class JointPass:
    """A backend for `torch.compile`; graphs are split with recomputation.

    Args:
        change: changes a joint graph in place, and says how many places it changed: `count` is their sum.
    """

    def __init__(self, change: Callable[[fx.GraphModule], int]) -> None:
        torch.compiler.reset()
        self.graphs: dict[str, fx.GraphModule] = {}
        self.count = 0
        self._change = change

    def __call__(self, graph_module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return differentiate(graph_module, inputs, self._compile, prepare=self._prepare, recompute=True)

    def kept(self) -> list[tuple[str, int]]:
        """The tensors that the forward makes and keeps, by dtype, each with its number of elements."""
        results = self.graphs["forward"].graph.output_node().args[0][1:]
        values = [node.meta["val"] for node in results if node.op != "placeholder"]
        return sorted((str(v.dtype), v.numel()) for v in values if isinstance(v, torch.Tensor))

    def _prepare(self, graph_module: fx.GraphModule, kind: str) -> None:
        self.count += self._change(graph_module)

    def _compile(self, graph_module: fx.GraphModule, inputs: Any, kind: str) -> Callable[..., Any]:
        self.graphs[kind] = graph_module
        return generate(graph_module, name=kind).call
