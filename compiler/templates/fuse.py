"""The pass: attentions of a graph become calls of generated kernels, where those are faster.

%bmm = ...; ...; %_softmax = ...; ...; %clone = ...   ->   attention_3f2a(%addmm, %addmm_1, %addmm_2, %mask)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from ...rewrites.profit import Decision, Oracle, Question
from ...rewrites.reason import Reason, site_of
from ...rewrites.record import GraphRecord, Match, NearMiss
from ...rewrites.splice import Original
from ..capture.effects import has_effect
from ..cpp.dtypes import UnsupportedDtype
from ..cpp.errors import CompileFailed, CompilerMissing
from .kernel import Layout, TemplateKernel, attention_kernel
from .layout import copied, with_keys_innermost
from .match import SOFTMAXES, Found, beside_product, match_attention
from .region import packet
from .sdpa import SDPA, match_sdpa

RULE, CANDIDATE = "attention-template", "generated"
# Another kernel for an attention that a rule found already is not one more attention.
FAMILY, KERNEL_FAMILY = "attention", "attention-kernel"


def fuse_attention(graph_module: fx.GraphModule, oracle: Oracle, record: GraphRecord) -> int:
    """Replace the attentions of an inference graph by generated kernels, as the oracle decides.

    Args:
        graph_module: a graph after autograd, static sizes, on a CPU; changed in place.
        oracle: who decides whether a kernel is worth it, by the nodes that it would replace.
        record: gets what was applied and declined, and near misses with their reasons.

    Returns:
        How many were replaced.
    """
    fusion, fused = _Fusion(graph_module.graph, oracle, record), 0
    for node in list(graph_module.graph.nodes):
        found = _match(node)
        if isinstance(found, Reason):
            record.near_misses.append(_near_miss(node, found))
        elif found is not None:
            fused += fusion.run(found)
    return fused


def _match(node: fx.Node) -> Found | Reason | None:
    """The attention of a node; a reason only if it is nearly one: a classifier's softmax is not."""
    if packet(node) in SOFTMAXES:
        found = match_attention(node)
        return found if isinstance(found, Found) or beside_product(node) else None
    return match_sdpa(node) if packet(node) == SDPA else None


class _Fusion:
    def __init__(self, graph: fx.Graph, oracle: Oracle, record: GraphRecord) -> None:
        self._graph, self._oracle, self._record = graph, oracle, record
        self._copies: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}

    def run(self, found: Found) -> bool:
        """Decide on one attention; whether it was replaced."""
        try:
            kernel = attention_kernel(with_keys_innermost(found.attention))
            decision = self._decide(found, kernel)
            if decision.chosen is not None:
                kernel.build()
        except (UnsupportedDtype, CompilerMissing, CompileFailed) as error:
            code = "score-dtype" if isinstance(error, UnsupportedDtype) else "no-compiler"
            self._record.near_misses.append(_near_miss(found.output, Reason(code, str(error))))
            return False
        chosen = decision.chosen is not None
        (self._record.applied if chosen else self._record.declined).append(_record(found, decision))
        if chosen:
            self._replace(found, kernel)
        return chosen

    def _decide(self, found: Found, kernel: TemplateKernel) -> Decision:
        question = Question(
            rule=RULE,
            key=kernel.name,
            inputs=[node.meta["val"] for node in found.inputs],
            original=Original(found.nodes, found.inputs, [found.output]),
            candidates={CANDIDATE: kernel},
        )
        return self._oracle.decide(question)

    def _replace(self, found: Found, kernel: TemplateKernel) -> None:
        inputs = tuple(map(self._placed, found.inputs, kernel.inputs))
        with self._graph.inserting_before(found.output):
            call = self._graph.call_function(kernel, inputs)
        call.meta = {**found.output.meta, "regraft_rule": RULE}
        found.output.replace_all_uses_with(call)
        self._erase([*found.nodes, found.output])

    def _placed(self, node: fx.Node, layout: Layout) -> fx.Node:
        """The input in the strides that the kernel reads: one copy for all attentions that share it."""
        if tuple(node.meta["val"].stride()) == layout.strides:
            return node
        key = (node, layout.strides)
        if key not in self._copies:
            self._copies[key] = copied(node, layout.strides)
        return self._copies[key]

    def _erase(self, nodes: Sequence[fx.Node]) -> None:
        """Erase what nobody reads any more, and what only that read."""
        replaced = set(nodes)
        pending = [node for node in nodes if not node.users and not node._erased]
        while pending:
            node = pending.pop()
            if node.users or node._erased or node.op != "call_function":
                continue
            # What was replaced goes, though its operator may draw random numbers: here it draws none.
            if node not in replaced and has_effect(node):
                continue
            pending.extend(node.all_input_nodes)
            self._graph.erase_node(node)


def _record(found: Found, decision: Decision) -> Match:
    return Match(
        rule=RULE,
        family=KERNEL_FAMILY if any(map(_is_known, found.nodes)) else FAMILY,
        stage="lowered",
        candidate=decision.chosen or "",
        nodes=tuple(node.name for node in found.nodes),
        site=site_of(found.output),
        evidence=decision.evidence,
    )


def _is_known(node: fx.Node) -> bool:
    """Whether a rule found this attention before: it is the rule's kernel, or what the rule wrote instead."""
    return packet(node) == SDPA or bool(node.meta.get("regraft_rule"))


def _near_miss(node: fx.Node, reason: Reason) -> NearMiss:
    site: Any = reason.site or site_of(node)
    return NearMiss(
        RULE, FAMILY, reason.code, reason.message, reason.expected, reason.found, depth=1, size=3, site=site
    )
