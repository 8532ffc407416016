"""The baseline of a template: the nodes that it would replace, as library calls and generated kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from ....rewrites.splice import subgraph
from ....rewrites.switches import pausing


class Baseline:
    """Nodes of a graph as a function of tensors, compiled at the first call or by `build`.

    Args:
        nodes: the nodes to run, in graph order.
        inputs: the nodes whose values are arguments, in order.
        outputs: the nodes whose values are returned.
    """

    def __init__(self, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> None:
        self._nodes, self._inputs, self._outputs = nodes, inputs, outputs
        self._program: fx.GraphModule | None = None
        self._planned: Any = None
        self._run: Callable[..., Any] | None = None

    def __call__(self, *tensors: Any) -> Any:
        """The outputs."""
        return (self._run or self.build())(*tensors)

    def begin(self) -> None:
        """Start compiling kernels in other processes; the graph may change from now on."""
        from ...codegen.generate import begin_kernels

        self._program = self._taken()
        with contextlib.suppress(Exception):  # `build` raises the same error again
            self._planned = begin_kernels(self._program)

    def build(self) -> Callable[..., Any]:
        """Generate and compile kernels for all nodes that are not library calls."""
        from ...codegen.generate import NotGeneratedError, generate_kernels

        program = self._program or self._taken()
        with contextlib.suppress(NotGeneratedError), pausing():
            program.graph = generate_kernels(program, "inference", begun=self._planned).graph
        self._adapt(program.graph)
        program.recompile()
        self._run, self._program, self._planned = program, None, None
        return program

    def _taken(self) -> fx.GraphModule:
        """The nodes as a program of their own."""
        program = subgraph(self._nodes, self._inputs, self._outputs)
        assert isinstance(program, fx.GraphModule)
        for node, value in zip(program.graph.find_nodes(op="placeholder"), self._inputs, strict=True):
            node.meta = dict(value.meta)
        return program

    def _adapt(self, graph: fx.Graph) -> None:
        """Change the graph before it runs: subclasses may, this class does not."""
