"""Inference graphs that AOTAutograd only calls: the program calls them itself.

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
    calls_plainly,
    count_writes,
    returned_inputs,
    switch_gradients,
    versions_written,
    writes_inputs,
)
from ...rewrites.compat.memory import share_memory
from .returned_inputs import WithInputs

_Boxed = Callable[[list[Any]], Any]


class PlainCall:
    """The last graph that AOTAutograd has had compiled, if the program may call it itself.

    Args:
        program: what AOTAutograd differentiates.
        inputs: those that it is compiled for.
    """

    def __init__(self, program: fx.GraphModule, inputs: Sequence[Any]) -> None:
        self._inputs: Sequence[Any] = inputs
        self._held = any(True for kind in (program.parameters(), program.buffers()) for _ in kind)
        self._call: Callable[..., Any] | None = None

    def noted(self, call: _Boxed, graph: fx.Graph) -> _Boxed:
        """A compiled inference graph, remembered while AOTAutograd compiles it."""
        self._call = self._plainly(call) if self._may_call(graph) else None
        return call

    def instead_of(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The graph, if there is one to be called, in place of AOTAutograd's function that calls it."""
        self._inputs = ()  # a backward that is compiled later keeps this object, and must not keep parameters
        return compiled if self._call is None else self._call

    def _may_call(self, graph: fx.Graph) -> bool:
        """Whether AOTAutograd does no more than call a graph.

        What operators of users give it looks at when they run first: programs with any are its own.
        """
        if self._held or not calls_plainly() or len(graph.find_nodes(op="placeholder")) != len(self._inputs):
            return False
        if not all(compat.ships_with_torch(node.target) for node in graph.nodes):
            return False
        return not (writes_inputs() and share_memory(self._inputs))  # it makes one tensor of these

    def _plainly(self, call: _Boxed) -> Callable[..., Any]:
        plain, places = called_plainly(call, versions_written()), returned_inputs()
        return WithInputs(plain, places) if places else plain


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
