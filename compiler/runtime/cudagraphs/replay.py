"""Decides which compiled graphs of a program are replayed as CUDA graphs.

the call of a graph  ->  the same call, captured after its first run and replayed from then on
                         or the call as it is, with a recorded reason
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from ....rewrites.compat.autograd import places
from ....rewrites.reason import Reason
from ....rewrites.record import Code
from ....rewrites.switches import allowed
from ....rewrites.words import counted
from ...options.fields import RngPolicy
from ..calls import Boxed
from .graphs import CudaGraphs
from .rules import skip_reason


class Replay:
    """Wraps the calls of one program's graphs.

    Args:
        graphs: captures the graphs; None if nothing is captured.
        rng: the policy for random numbers.
        least: launches below which an inference graph is not captured.
        tell: is told why a graph is not captured.
    """

    def __init__(self, graphs: CudaGraphs | None, rng: RngPolicy, least: int, tell: Callable[[Reason], None]) -> None:
        self.graphs = graphs
        self.static: dict[
            str, frozenset[int]
        ] = {}  # positions of inputs whose addresses do not change, by kind of captured graph
        self._rng, self._least, self._tell = rng, least, tell

    def wrapped(
        self,
        program: str,
        graph_module: fx.GraphModule,
        kind: str,
        returned: int | None,
        placed: Callable[[frozenset[int]], frozenset[int]] = lambda static: static,
    ) -> Callable[[Boxed], Boxed]:
        """A wrapper for a compiled graph that replays it as a CUDA graph, if this is possible.

        Args:
            program: the name of the program.
            graph_module: the graph before kernels are generated.
            kind: the kind of graph.
            returned: the number of a forward's results that the program receives, if known.
            placed: maps positions of AOTAutograd's inputs with constant addresses to positions of this graph.
        """
        graphs = self.graphs
        self.static.pop(kind, None)
        if graphs is None or not allowed("cudagraph", f"{program} {kind}"):
            return lambda call: call
        static = placed(places()[0])
        if kind == "backward":  # its inputs stay at their addresses while it runs
            static = frozenset(range(len(graph_module.graph.nodes)))
        reason = skip_reason(graph_module.graph, static, self._rng)
        if reason is None and kind == "forward" and returned is None:
            reason = Reason("unknown-outputs", "the outputs that are saved for the backward are not known")
        if reason is not None:
            self._tell(reason)
            return lambda call: call
        self.static[kind] = static
        if kind == "inference":
            return lambda call: graphs.inference(call, static)
        if kind == "forward":
            return lambda call: graphs.forward(call, static, returned or 0)
        return graphs.backward

    def leaves_short(self, kind: str, code: Code) -> Reason | None:
        """Leave an inference graph of few launches as it is, and say why; None where the graph is captured.

        A replay copies inputs and small results. Forwards and backwards are captured together, whatever they launch.
        """
        launches = code.kernels + sum(code.templates.values()) + sum(call.count for call in code.kept)
        if kind != "inference" or kind not in self.static or launches >= self._least:
            return None
        del self.static[kind]
        few = counted(launches, "launch", "launches")
        return Reason("few-launches", f"a replay would take longer than {few} (option triton.cudagraphs_launches)")
