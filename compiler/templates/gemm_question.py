"""What passes over products share, whatever the device: what a kernel competes with, records, clearing away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...patterns.packing import packed_linear_weight
from ...rewrites.graph import is_pure
from ...rewrites.profit import Decision
from ...rewrites.reason import Reason, site_of
from ...rewrites.record import Match, NearMiss
from ...rewrites.splice import subgraph
from .gemm_match import REORDER, FoundProduct
from .region import packet

RULE, FAMILY = "linear-template", "linear-kernel"


class Unfused:
    """What a kernel would replace, as it would run otherwise: the library's product, then a generated kernel."""

    def __init__(self, found: FoundProduct) -> None:
        self._found = found
        self._run: Callable[..., Any] | None = None

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The result of the nodes, and the product itself where the kernel gives that too."""
        return (self._run or self.build())(*tensors)

    def build(self) -> Callable[..., Any]:
        """Compile the kernel that follows the library's call."""
        self._run = self._made()
        return self._run

    def _made(self) -> Callable[..., Any]:
        from ..codegen import NotGeneratedError, generate_kernels

        found = self._found
        inputs = list(dict.fromkeys(found.inputs))
        outputs = [found.output] if found.kept is None else [found.output, found.kept]
        program = subgraph(found.nodes, inputs, outputs)
        assert isinstance(program, fx.GraphModule)
        for node, value in zip(program.graph.find_nodes(op="placeholder"), inputs, strict=True):
            node.meta = dict(value.meta)
        with contextlib.suppress(NotGeneratedError):
            program.graph = generate_kernels(program, "inference").graph
        for node in program.graph.nodes:
            if packet(node) == REORDER:
                node.target = packed_linear_weight
        program.recompile()
        places = [found.inputs.index(node) for node in inputs]
        return lambda *tensors: program(*(tensors[place] for place in places))


def erase_dead(graph: fx.Graph, nodes: Sequence[fx.Node]) -> None:
    """Erase what of `nodes` nobody reads any more, and what only that read."""
    pending = [node for node in nodes if not node.users and not node._erased]
    while pending:
        node = pending.pop()
        if node.users or node._erased or node.op != "call_function" or not is_pure(node):
            continue
        pending.extend(node.all_input_nodes)
        graph.erase_node(node)


def recorded(found: FoundProduct, decision: Decision) -> Match:
    """What was decided on a product."""
    return Match(
        rule=RULE,
        family=FAMILY,
        stage="lowered",
        candidate=decision.chosen or "",
        nodes=tuple(node.name for node in found.nodes),
        site=site_of(found.output),
        evidence=decision.evidence,
    )


def near_miss(node: fx.Node, reason: Reason) -> NearMiss:
    """A product that the template does not compute, and why."""
    site: Any = reason.site or site_of(node)
    return NearMiss(
        RULE, FAMILY, reason.code, reason.message, reason.expected, reason.found, depth=1, size=2, site=site
    )
