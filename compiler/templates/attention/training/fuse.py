"""The pass on GPUs, in training: attentions of a joint graph become kernels with their backwards, where it pays.

    %bmm; tanh; %_softmax; %bmm_1                           ->   attention_3f2a(%q, %k, %v): result, statistics
    %bmm_2, ..., %_softmax_backward_data, ..., %bmm_5       ->   attention_queries_81c0(...), attention_keys_77e1(...)

Done before the graph is split: the forward keeps the operands of the kernels, not the scores. Forward and backward are
measured as one. Plain and causal attentions are left to libraries, unless time does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from .....rewrites.profit import Decision, Question
from .....rewrites.reason import Reason
from ....autograd.joint_graph import backward_nodes
from ....lowering.sizes import Unlowered
from ...common.baseline import Baseline
from ...common.compiled_candidates import CompiledCandidates
from ...common.formula import is_move, packet
from ...common.questions import CANNOT_COMPILE
from ...common.task import Task
from ..benchmark_inputs import arranged
from ..bias_layout import with_keys_innermost
from ..footprint import excluded, unmeasured
from ..match import Found
from ..replacement import RULE, questions_of, record_decision
from ..sdpa import SDPA
from ..triton_fuse import is_promising, may_be_promising
from ..triton_text import UnsupportedAttentionError
from ..triton_tiles import BackwardTile, Tile, backward_tiles, tiles
from .build import PairReplacer, TrainingKernels, training_kernels
from .forward import Forward
from .forward_backward import Pair, RefusedError
from .match import pair_spelled_out
from .sdpa import pair_sdpa

_TILES, _MORE_TILES = 1, 5  # measured for each attention: by default, and where time does not matter
_SECONDS, _MORE_SECONDS = 3.0, 30.0  # for all questions of a graph
_Kernels = Mapping[str, TrainingKernels]


def fuse_attention_training(task: Task, *, seeds: bool) -> int:
    """Replace the attentions of a joint graph on a GPU and their backwards by generated kernels, as the oracle decides.

    Args:
        task: the graph, its random calls seeded where that is done, and how.
        seeds: whether random numbers may be drawn from seeds, in place of those that libraries' kernels draw.

    Returns:
        How many were replaced.
    """
    graph = task.graph
    if not backward_nodes(graph) or not (_takes_every(task) or any(map(may_be_promising, graph.nodes))):
        return 0
    forward = Forward(graph, seeds=seeds)
    fusion = _Fusion(task, forward.backward)
    try:
        fused = sum(fusion.run(*one) for one in forward.attentions())
    finally:
        forward.close()
    graph.lint()
    return fused


def _takes_every(task: Task) -> bool:
    """Whether attentions are asked about that libraries compute as well, too."""
    return task.measures_all


class _Fusion:
    def __init__(self, task: Task, backward: set[fx.Node]) -> None:
        self._task, self._backward = task, backward
        self._replacer = PairReplacer(task.graph)
        self._questions = questions_of(task, _MORE_SECONDS if task.thorough else _SECONDS)
        self._count = _MORE_TILES if task.thorough else _TILES
        self._moved: dict[fx.Node, fx.Node] = {}
        self._known: dict[str, tuple[Decision, _Kernels]] = {}

    def run(self, node: fx.Node, found: Found | Reason, shared: frozenset[fx.Node]) -> bool:
        """Decide on one attention, of whose nodes others read `shared`; whether it was replaced."""
        if isinstance(found, Reason):
            return self._missed(node, found)
        found = replace(found, inputs=tuple(self._moved.get(x, x) for x in found.inputs))
        if not (_takes_every(self._task) or is_promising(found)):
            return False
        try:
            pair = pair_sdpa(node, found) if packet(node) in SDPA else pair_spelled_out(found, self._backward)
            decision, kernels = self._decide(pair, shared)
            decision = self._questions.switched(decision, pair.nodes)
            chosen = None if decision.chosen is None else kernels[decision.chosen]
            for kernel in () if chosen is None else chosen.all:
                kernel.build()
        except RefusedError as refused:
            return self._missed(node, refused.reason)
        except Unlowered as refusal:
            return self._missed(node, Reason(f"backward-{refusal.code}", str(refusal), (node,)))
        except (UnsupportedAttentionError, *CANNOT_COMPILE) as error:
            self._questions.refuse_error(node, error)
            return False
        record_decision(self._task.record, pair.found, decision, pair.nodes, stage="joint")
        if chosen is not None:
            self._moved |= self._replacer.replace(pair, chosen)
        return chosen is not None

    def _missed(self, node: fx.Node, reason: Reason) -> bool:
        self._questions.refuse(node, reason)
        return False

    def _decide(self, pair: Pair, shared: frozenset[fx.Node]) -> tuple[Decision, _Kernels]:
        """The oracle's decision, for equal attentions the same, and the kernels to choose from."""
        kernels = self._kernels(pair)
        inputs, kept, nodes = _original(pair, shared)
        key = _key(pair, kernels, nodes)
        if key not in self._known:
            if self._questions.are_over:
                return unmeasured(kernels, excluded(pair.found, nodes)), kernels
            every = [kernel for some in kernels.values() for kernel in some.all]
            outputs = [pair.found.output, *pair.results.values()]
            baseline = Baseline(nodes, inputs, outputs)
            compiled = CompiledCandidates(baseline, every, self._task.while_compiling, excluded(pair.found, nodes))
            question = Question(
                rule=RULE,
                key=f"training {key}",
                inputs=[node.meta["val"] for node in inputs],
                original=compiled.baseline,
                candidates=kernels,
                prepare=compiled.prepare,
                arrange=_arranged(pair, kept),
                excluded=compiled.excluded,
            )
            self._known[key] = self._questions.ask(compiled, question), kernels
        return self._known[key]

    def _kernels(self, pair: Pair) -> _Kernels:
        """Kernels for each pair of tiles, by their names."""
        attention = with_keys_innermost(pair.found.attention)
        forward, backward = tiles(attention, self._task.gpu)[: self._count], backward_tiles(attention, self._task.gpu)
        backward = backward[: self._count]
        both = [(forward[min(k, len(forward) - 1)], tile) for k, tile in enumerate(backward)]
        both += [(tile, backward[0]) for tile in forward[len(backward) :]]
        return {_name(*two): training_kernels(pair, attention, two, self._task.device) for two in both}


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


def _key(pair: Pair, kernels: _Kernels, nodes: Sequence[fx.Node]) -> str:
    every = [kernel for some in kernels.values() for kernel in some.all]
    texts = [kernel.source.text for kernel in every] + [f"{kernel.inputs} {kernel.outputs}" for kernel in every]
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=8).hexdigest()
    return " ".join([digest, *sorted(pair.results), *sorted(str(node.target) for node in nodes)])


def _name(forward: Tile, backward: Tile) -> str:
    every = [forward, backward, *([backward.by_keys] if isinstance(backward, BackwardTile) else [])]
    return "_".join(f"{tile.queries}x{tile.keys}_{tile.warps}w{tile.stages}s" for tile in every)
