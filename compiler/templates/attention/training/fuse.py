"""The template on GPUs, in training: attentions of a joint graph become kernels with their backwards, where it pays.

    %bmm; tanh; %_softmax; %bmm_1                           ->   attention_3f2a(%q, %k, %v): result, statistics
    %bmm_2, ..., %_softmax_backward_data, ..., %bmm_5       ->   attention_queries_81c0(...), attention_keys_77e1(...)

Done before the graph is split: the forward keeps the operands of the kernels, not the scores. Forward and backward are
measured as one. Plain and causal attentions are left to libraries, unless time does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from .....rewrites.profit import Decision
from .....rewrites.reason import Reason
from ....autograd.joint_graph import backward_nodes
from ....lowering.sizes import Unlowered
from ...common.baseline import Baseline
from ...common.formula import is_move, packet
from ...common.questions import CANNOT_COMPILE
from ...common.task import Task
from ...common.template import ComparedProgram, GpuTemplate
from ...common.template_pass import TemplatePass
from ..benchmark_inputs import arranged
from ..bias_layout import with_keys_innermost
from ..description import Attention
from ..footprint import excluded
from ..match import FoundAttention
from ..replacement import FAMILY, RULE, record_decision
from ..sdpa import SDPA
from ..triton_fuse import is_promising, may_be_promising
from ..triton_text import UnsupportedAttentionError
from ..triton_tiles import Tile, backward_tiles, tiles
from .build import PairReplacer, TrainingKernels, training_kernels
from .forward import JointForward
from .forward_backward import NoBackwardError, Pair
from .match import pair_spelled_out
from .sdpa import pair_sdpa

_TILES, _MORE_TILES = 1, 5  # measured for each attention: by default, and where time does not matter
_SECONDS, _MORE_SECONDS = 3.0, 30.0  # for all questions of a graph


def fuse_attention_training(task: Task, *, seeds: bool) -> int:
    """Replace the attentions of a joint graph on a GPU and their backwards by generated kernels, as the oracle decides.

    Args:
        task: the graph, its random calls seeded where that is done, and how.
        seeds: whether random numbers may be drawn from seeds, in place of those that libraries' kernels draw.

    Returns:
        How many were replaced.
    """
    graph = task.graph
    if not backward_nodes(graph) or not (task.measures_all or any(map(may_be_promising, graph.nodes))):
        return 0
    forward = JointForward(graph, seeds=seeds)
    template = TrainingTemplate(task, forward.backward)
    fusing = TemplatePass(template)
    try:
        fused = sum(fusing.take(one[0], template.pair(*one)) for one in forward.attentions())
    finally:
        forward.close()
    graph.lint()
    return fused


@dataclass(frozen=True)
class _Tiles:
    """One configuration: of the forward, and of the backward."""

    forward: Tile
    backward: Tile

    def __str__(self) -> str:
        return f"{self.forward}_{self.backward}"


@dataclass(frozen=True, eq=False)
class FoundPair:
    """An attention of a joint graph with its backward; no two are the same.

    Args:
        pair: both.
        attention: as kernels are written for it, biases perhaps in other strides.
        shared: nodes on the way that others read too.
    """

    pair: Pair
    attention: Attention
    shared: frozenset[fx.Node]

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        """The nodes that the forward reads."""
        return self.pair.found.inputs

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """All nodes that go."""
        return self.pair.nodes

    @property
    def output(self) -> fx.Node:
        """The forward's result."""
        return self.pair.found.output


class TrainingTemplate(GpuTemplate):
    """Attentions of a joint graph with their backwards.

    Args:
        task: the graph, and how.
        backward: the nodes of the backward.
    """

    rule, family, option, name = RULE, FAMILY, "attention", "attention"
    size, dtype_code = 3, "score-dtype"
    errors = (UnsupportedAttentionError, *CANNOT_COMPILE)

    def __init__(self, task: Task, backward: set[fx.Node]) -> None:
        super().__init__(task)
        self.seconds = _MORE_SECONDS if task.thorough else _SECONDS
        self._count = _MORE_TILES if task.thorough else _TILES
        self._backward = backward
        self._replacer = PairReplacer(task.graph)
        self._moved: dict[fx.Node, fx.Node] = {}

    def pair(
        self, node: fx.Node, found: FoundAttention | Reason, shared: frozenset[fx.Node]
    ) -> FoundPair | Reason | None:
        """An attention of the forward (see `Forward.attentions`) with its backward.

        None if libraries compute the attention as well.
        """
        if isinstance(found, Reason):
            return found
        found = replace(found, inputs=tuple(self._moved.get(x, x) for x in found.inputs))
        if not (self.task.measures_all or is_promising(found)):
            return None
        try:
            pair = pair_sdpa(node, found) if packet(node) in SDPA else pair_spelled_out(found, self._backward)
        except NoBackwardError as refused:
            return refused.reason
        except Unlowered as refusal:
            return Reason(f"backward-{refusal.code}", str(refusal), (node,))
        return FoundPair(pair, with_keys_innermost(pair.found.attention), shared)

    def description(self, found: FoundPair) -> FoundPair:
        """The pair itself: where gradients are read and written is part of it."""
        return found

    def candidates(self, described: FoundPair) -> list[_Tiles]:
        """Pairs of tiles to measure."""
        forward = tiles(described.attention, self.task.gpu)[: self._count]
        backward = backward_tiles(described.attention, self.task.gpu)[: self._count]
        both = [_Tiles(forward[min(k, len(forward) - 1)], tile) for k, tile in enumerate(backward)]
        return both + [_Tiles(tile, backward[0]) for tile in forward[len(backward) :]]

    def source(self, described: FoundPair, config: _Tiles) -> TrainingKernels:
        """The three kernels of a pair of tiles."""
        both = config.forward, config.backward
        return training_kernels(described.pair, described.attention, both, self.task.device)

    def compared(self, found: FoundPair) -> ComparedProgram:
        """Forward and backward as the graph has them."""
        pair = found.pair
        inputs, kept, nodes = _original(pair, found.shared)
        return ComparedProgram(
            tuple(nodes),
            tuple(inputs),
            Baseline(nodes, inputs, [pair.found.output, *pair.results.values()]),
            tells=("training", *sorted(pair.results)),
            excluded=lambda: excluded(pair.found, nodes),
            arrange=lambda: _arranged(pair, kept),
        )

    def replace(self, found: FoundPair, kernel: TrainingKernels, place: fx.Node) -> None:  # noqa: ARG002
        """Put the calls of the kernels into the graph."""
        self._moved |= self._replacer.replace(found.pair, kernel)

    def record(self, found: FoundPair, decision: Decision) -> None:
        """Record a decision, as one with that of the rule that asked about the same attention."""
        record_decision(self.task.record, found.pair.found, decision, found.nodes, stage="joint")


def _original(pair: Pair, shared: frozenset[fx.Node]) -> tuple[list[fx.Node], tuple[fx.Node, ...], list[fx.Node]]:
    """The nodes that the original reads, first those that the kernels read, the gradient before all; and its own nodes.

    Between them: nodes computed on the way that others read too, as a mask of all layers. Nodes that depend on the
    gradient are computed in any case: a cast of the scores' gradient that a bias reads, too.
    """
    found, goes = pair.found, set(pair.nodes)
    inside, follows = goes.union(found.nodes), _readers(pair.gradient)
    inputs = dict.fromkeys([pair.gradient, *found.inputs])
    stays, wanted = dict[fx.Node, None](), set[fx.Node]()
    queue = [found.output, *pair.results.values()]
    for node in queue:
        if node in inputs or node in wanted:
            continue
        own = node in inside and node not in shared
        if node in follows or (own and (node in goes or is_move(node) or not _is_tensor(node))):
            wanted.add(node)
            queue.extend(node.all_input_nodes)
        else:
            stays[node] = None
    kept = tuple(node for node in found.nodes if node in stays)
    others = [node for node in stays if node not in kept]
    return [*inputs, *kept, *others], kept, [node for node in found.output.graph.nodes if node in wanted]


def _readers(node: fx.Node) -> set[fx.Node]:
    """All nodes that depend on one."""
    found = {node}
    for other in node.graph.nodes:
        if not found.isdisjoint(other.all_input_nodes):
            found.add(other)
    return found


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _arranged(pair: Pair, kept: tuple[fx.Node, ...]) -> Callable[[Sequence[Any]], None] | None:
    """Computes the values that are kept on the way from the operands of the kernels."""
    if not kept:
        return None
    arrange, count = arranged(pair.found, kept), len(pair.found.inputs) + len(kept)
    return lambda values: arrange(values[1 : 1 + count])
