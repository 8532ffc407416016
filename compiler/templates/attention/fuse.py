"""The pass on CPUs: attentions of a graph become calls of generated kernels, if those are faster.

%bmm = ...; ...; %_softmax = ...; ...; %clone = ...   ->   attention_3f2a(%addmm, %addmm_1, %addmm_2, %mask)
"""

from __future__ import annotations

from torch import fx

from ....rewrites.profit import SWITCHED_OFF, Decision, Oracle, Question
from ....rewrites.reason import Reason
from ....rewrites.record import GraphRecord
from ....rewrites.splice import Original
from ....rewrites.switches import allowed
from ...codegen.cpp.dtypes import UnsupportedDtype
from ...codegen.cpp.errors import CompileFailed, CompilerMissing
from ..common.cpp_call import Layout, TemplateKernel, lanes, template_kernel
from ..common.replacing import Copies, replace_by_call
from .bias_layout import with_keys_innermost
from .cpp import PRELUDE, attention_cpp
from .cpp_few_queries import MOST_ROWS, few_queries_cpp, is_served
from .description import Attention
from .footprint import excluded
from .grouped import grouped
from .match import FoundAttention
from .replacement import RULE, is_on, matched, near_miss, record_decision

CANDIDATE = "generated"


def fuse_attention(graph_module: fx.GraphModule, oracle: Oracle, record: GraphRecord) -> int:
    """Replace the attentions of an inference graph by generated kernels, as the oracle decides.

    Args:
        graph_module: a graph after autograd with static sizes; changed in place. Nodes on GPUs are left alone.
        oracle: decides whether a kernel is faster than the nodes that it would replace.
        record: receives applied and declined matches, and near misses with their reasons.

    Returns:
        The number of attentions replaced.
    """
    fusion, fused = _AttentionFusion(graph_module.graph, oracle, record), 0
    for node in list(graph_module.graph.nodes):
        found = None if is_on(node, "cuda") else matched(node)
        if isinstance(found, Reason):
            record.near_misses.append(near_miss(node, found))
        elif found is not None:
            fused += fusion.run(found)
    return fused


def attention_kernel(attention: Attention) -> TemplateKernel:
    """The kernel of an attention; equal attentions have the same kernel, whatever the names of their buffers.

    Raises:
        UnsupportedDtype: the score function computes with a dtype that C++ has no type for.
    """
    few = grouped(attention, MOST_ROWS)
    body = few_queries_cpp(few, lanes()) if is_served(few, lanes()) else attention_cpp(attention, lanes())
    inputs = tuple(map(Layout.of, attention.reads))
    return template_kernel("attention", PRELUDE + body, inputs, Layout.of(attention.out.buffer), attention.flops)


class _AttentionFusion:
    def __init__(self, graph: fx.Graph, oracle: Oracle, record: GraphRecord) -> None:
        self._graph, self._oracle, self._record = graph, oracle, record
        self._copies = Copies()

    def run(self, found: FoundAttention) -> bool:
        """Decide on one attention; returns whether it was replaced."""
        try:
            kernel = attention_kernel(with_keys_innermost(found.attention))
            decision = self._decide(found, kernel)
            if decision.chosen is not None and not allowed("template", RULE, [*found.nodes, found.output]):
                decision = SWITCHED_OFF
            if decision.chosen is not None:
                kernel.build()
        except (UnsupportedDtype, CompilerMissing, CompileFailed) as error:
            code = "score-dtype" if isinstance(error, UnsupportedDtype) else "no-compiler"
            self._record.near_misses.append(near_miss(found.output, Reason(code, str(error))))
            return False
        chosen = decision.chosen is not None
        record_decision(self._record, found, decision)
        if chosen:
            inputs = self._copies.of_all(found.inputs, kernel.inputs)
            replace_by_call(self._graph, found, inputs, kernel, found.output, RULE)
        return chosen

    def _decide(self, found: FoundAttention, kernel: TemplateKernel) -> Decision:
        question = Question(
            rule=RULE,
            key=kernel.name,
            inputs=[node.meta["val"] for node in found.inputs],
            original=Original(found.nodes, found.inputs, [found.output]),
            candidates={CANDIDATE: kernel},
            excluded=excluded(found, found.nodes),
        )
        return self._oracle.decide(question)
