"""Graphs that AOTAutograd only calls: the program calls them itself, those of training by `plain_steps`.

Around a graph it counts writes, switches gradients off, and gives inputs that are results. Its general way to do so,
for views, subclasses and what else a program may have, takes 5 us of the host in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat.autograd import (
    StepFacts,
    calls_plainly,
    count_writes,
    returned_inputs,
    step_facts,
    switch_gradients,
    versions_written,
    writes_inputs,
)
from ...rewrites.compat.memory import share_memory
from ...rewrites.compat.tensors import is_made_of_tensors
from .plain_steps import form_of, runner
from .returned_inputs import WithInputs

_Boxed = Callable[[list[Any]], Any]


class PlainCall:
    """The last graphs that AOTAutograd has had compiled, if the program may call them itself.

    Args:
        program: what AOTAutograd differentiates.
        inputs: those that it is compiled for.
    """

    def __init__(self, program: fx.GraphModule, inputs: Sequence[Any]) -> None:
        self._inputs: Sequence[Any] = inputs
        self._subclasses = any(map(is_made_of_tensors, [*inputs, *_results_of(program)]))
        self._count = len(inputs)
        self._held = any(True for kind in (program.parameters(), program.buffers()) for _ in kind)
        self._call: Callable[..., Any] | None = None
        self._forward: tuple[_Boxed, StepFacts] | None = None

    def noted(self, call: _Boxed, graph: fx.Graph, kind: str) -> _Boxed:
        """A compiled graph, remembered while AOTAutograd compiles it; perhaps later, a backward."""
        if kind == "backward":
            self._call = self._as_step(call, graph)
            return call
        self._call = self._forward = None
        if kind == "inference" and self._may_call(graph, calls_plainly()):
            self._call = self._plainly(call)
        elif kind == "forward":
            results = graph.output_node().args[0]
            facts = step_facts(len(results)) if isinstance(results, (tuple, list)) else None
            self._forward = (call, facts) if facts is not None and self._may_call(graph, True) else None
        return call

    def instead_of(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The graphs, if there are any to be called, in place of AOTAutograd's function that calls them.

        That of training calls AOTAutograd's until the first backward, which compiles the graph of all.
        """
        self._inputs = ()  # a backward that is compiled later keeps this object, and must not keep parameters
        if self._forward is None:
            return compiled if self._call is None else self._call

        def run(*inputs: Any) -> Any:
            step = self._call
            return compiled(*inputs) if step is None else step(*inputs)

        return run

    def _as_step(self, backward: _Boxed, graph: fx.Graph) -> Callable[..., Any] | None:
        """A forward with its backward; None if AOTAutograd does more than call them."""
        if self._forward is None or not _ships_with_torch(graph):
            return None
        forward, facts = self._forward
        form = form_of(facts, graph, self._count)
        return None if form is None else runner(form, forward, backward)

    def _may_call(self, graph: fx.Graph, plainly: bool) -> bool:
        """Whether AOTAutograd does no more than call a graph.

        It also takes tensors of subclasses apart and puts results together, of which its record of the graph says
        nothing: that is of the parts. What operators of users give it looks at when they run first: programs with any
        are its own.
        """
        if self._held or not plainly or len(graph.find_nodes(op="placeholder")) != self._count:
            return False
        if not _ships_with_torch(graph) or self._subclasses:
            return False
        return not (writes_inputs() and share_memory(self._inputs))  # it makes one tensor of these

    def _plainly(self, call: _Boxed) -> Callable[..., Any]:
        plain, places = called_plainly(call, versions_written()), returned_inputs()
        return WithInputs(plain, places) if places else plain


def _results_of(program: fx.GraphModule) -> list[Any]:
    """The metadata of what a program returns."""
    return [
        node.meta.get("val", node.meta.get("example_value")) for node in program.graph.output_node().all_input_nodes
    ]


def _ships_with_torch(graph: fx.Graph) -> bool:
    return all(compat.ships_with_torch(node.target) for node in graph.nodes)


def called_plainly(call: _Boxed, written: Sequence[int] = ()) -> Callable[..., Any]:
    """An inference graph as a function of its inputs, without gradients and autocast.

    Args:
        call: the graph.
        written: positions of inputs that it writes to, as autograd is to know.
    """

    def run(*inputs: Any) -> Any:
        if written:
            count_writes([inputs[place] for place in written])
        if compat.autocast_on():
            with torch.no_grad(), compat.autocast_off():
                return call(list(inputs))
        if not torch.is_grad_enabled():
            return call(list(inputs))
        switch_gradients(False)
        try:
            return call(list(inputs))
        finally:
            switch_gradients(True)

    return run
