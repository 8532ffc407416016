"""Graphs as they were compiled, with wrappers that can be told to time each of their calls.

    addmm = aten.addmm.default(b, x, w)    ->    _clock.start('addmm')
    del b, x                                     addmm = aten.addmm.default(b, x, w)
                                                 _clock.stop()
                                                 del b, x

What is timed is the wrapper itself: its order, memory plan, writes to inputs and random numbers are those of every
other call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.compat import tree_leaves
from ....rewrites.graph import val
from ...autograd.differentiate import GraphKind
from ...codegen.wrapper.emit import WrapperSource
from ...codegen.wrapper.wrapper import Wrapper, load
from .clock import Clock, EventClock, HostClock
from .cost import is_free

_CLOCK = "_clock"


@dataclass
class RecordedGraph:
    """A compiled graph and the times of its calls.

    Args:
        program: the name of the program it belongs to.
        kind: ``"inference"``, ``"forward"`` or ``"backward"``.
        nodes: what is timed, by name.
        cuda: whether it runs on a GPU.
        samples: seconds of each call of a node, by name; one dict for each timed run of the graph.
    """

    program: str
    kind: GraphKind
    nodes: dict[str, fx.Node]
    cuda: bool
    samples: list[dict[str, float]] = field(default_factory=list)


class Recorder:
    """Observes compilations; while `timing` is set, every run of an observed graph is timed call by call."""

    def __init__(self) -> None:
        self.graphs: list[RecordedGraph] = []
        self.timing = False

    def __call__(
        self, program: str, kind: GraphKind, graph_module: fx.GraphModule, wrapper: Wrapper
    ) -> Callable[[list[Any]], Any]:
        """The function to call in place of the wrapper."""
        called = set(wrapper.parts.calls.values())
        nodes = {node.name: node for node in graph_module.graph.nodes if node.name in called and not is_free(node)}
        graph = RecordedGraph(program, kind, nodes, _on_cuda(graph_module.graph))
        self.graphs.append(graph)
        clock: Clock = EventClock() if graph.cuda else HostClock()
        timed = load(with_clock(wrapper.parts, nodes, clock), wrapper.name)

        def call(args: list[Any]) -> Any:
            if not self.timing:
                return wrapper.call(args)
            result = timed(args)
            graph.samples.append(clock.collect())
            return result

        compat.mark_boxed(call)
        return call


def with_clock(source: WrapperSource, names: Collection[str], clock: Clock) -> WrapperSource:
    """A wrapper's text that times the calls of the nodes named."""
    lines: list[str] = []
    for number, line in enumerate(source.text.splitlines(), 1):
        if line.startswith("def call("):
            lines += [f'{_CLOCK} = objects["{_CLOCK}"]', "", ""]
        name = source.calls.get(number)
        lines += [f"    {_CLOCK}.start({name!r})", line, f"    {_CLOCK}.stop()"] if name in names else [line]
    return WrapperSource("\n".join(lines) + "\n", {**source.objects, _CLOCK: clock}, {})


def _on_cuda(graph: fx.Graph) -> bool:
    leaves = (leaf for node in graph.nodes for leaf in tree_leaves(val(node)))
    return any(isinstance(leaf, torch.Tensor) and leaf.device.type == "cuda" for leaf in leaves)
