"""What a template competes with: nodes of a graph as they would run without it, library calls and generated kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from ...rewrites.splice import subgraph


class Unfused:
    """Nodes of a graph as a function of tensors, compiled at the first call, or by `build`.

    Args:
        nodes: what to run, in the order of the graph.
        inputs: what they read, in the order of the arguments.
        outputs: what to give.
    """

    def __init__(self, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> None:
        self._nodes, self._inputs, self._outputs = nodes, inputs, outputs
        self._run: Callable[..., Any] | None = None

    def __call__(self, *tensors: Any) -> Any:
        """The outputs."""
        return (self._run or self.build())(*tensors)

    def build(self) -> Callable[..., Any]:
        """Generate and compile kernels for what no library call does."""
        from ..codegen import NotGeneratedError, generate_kernels

        program = subgraph(self._nodes, self._inputs, self._outputs)
        assert isinstance(program, fx.GraphModule)
        for node, value in zip(program.graph.find_nodes(op="placeholder"), self._inputs, strict=True):
            node.meta = dict(value.meta)
        with contextlib.suppress(NotGeneratedError):
            program.graph = generate_kernels(program, "inference").graph
        self._adapt(program.graph)
        program.recompile()
        self._run = program
        return program

    def _adapt(self, graph: fx.Graph) -> None:
        """Change the graph before it runs: nothing here."""
