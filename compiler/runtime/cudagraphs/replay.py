"""Which of a program's compiled graphs are replayed as CUDA graphs.

the call of a graph  ->  the same call, captured when it has run, replayed from then on
                         or as it is, with the reason told
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from ....rewrites.compat.autograd import places
from ....rewrites.reason import Reason
from ....rewrites.switches import allowed
from ...options.fields import RngPolicy
from ..calls import Boxed
from .graphs import CudaGraphs
from .rules import skip_reason


class Replay:
    """Wraps the calls of one program's graphs.

    Args:
        graphs: what captures them; None where nothing is captured.
        rng: the policy of random numbers.
        tell: told why a graph is not captured.
    """

    def __init__(self, graphs: CudaGraphs | None, rng: RngPolicy, tell: Callable[[Reason], None]) -> None:
        self.graphs = graphs
        self.static: dict[str, frozenset[int]] = {}  # positions of inputs that stay, by kind of the graphs captured
        self._rng, self._tell = rng, tell

    def wrapped(
        self,
        program: str,
        graph_module: fx.GraphModule,
        kind: str,
        returned: int | None,
        placed: Callable[[frozenset[int]], frozenset[int]] = lambda static: static,
    ) -> Callable[[Boxed], Boxed]:
        """What to wrap a compiled graph in, so that it is replayed as a CUDA graph where that may be.

        Args:
            program: its name.
            graph_module: before kernels are in it.
            kind: of the graph.
            returned: how many results of a forward go to the program, where that is known.
            placed: from the positions of AOTAutograd's inputs whose addresses stay to those of this graph.
        """
        graphs = self.graphs
        self.static.pop(kind, None)
        if graphs is None or not allowed("cudagraph", f"{program} {kind}"):
            return lambda call: call
        static = placed(places()[0])
        if kind == "backward":  # what it reads stays where it is while it runs
            static = frozenset(range(len(graph_module.graph.nodes)))
        reason = skip_reason(graph_module.graph, static, self._rng)
        if reason is None and kind == "forward" and returned is None:
            reason = Reason("unknown-outputs", "which outputs the backward keeps is not known")
        if reason is not None:
            self._tell(reason)
            return lambda call: call
        self.static[kind] = static
        if kind == "inference":
            return lambda call: graphs.inference(call, static)
        if kind == "forward":
            return lambda call: graphs.forward(call, static, returned or 0)
        return graphs.backward
