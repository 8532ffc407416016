"""The pass on CPUs: attentions of a graph become calls of generated kernels, if those are faster.

%bmm = ...; ...; %_softmax = ...; ...; %clone = ...   ->   attention_3f2a(%addmm, %addmm_1, %addmm_2, %mask)
"""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from ....rewrites.profit import Decision, Oracle
from ....rewrites.reason import Reason
from ....rewrites.record import GraphRecord
from ..common.cpp_call import Layout, TemplateKernel, lanes, template_kernel
from ..common.cpu_pass import CANNOT_COMPILE, CpuTemplatePass
from ..common.task import GraphTask
from ..common.template import ComparedProgram, Template
from .bias_layout import with_keys_innermost
from .cpp import PRELUDE, attention_cpp
from .cpp_few_queries import MOST_ROWS, few_queries_cpp, is_served
from .description import Attention
from .footprint import excluded
from .grouped import grouped
from .match import FoundAttention
from .replacement import FAMILY, RULE, is_on, matched, record_decision

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
    return CpuTemplatePass(CpuAttentionTemplate(GraphTask(graph_module.graph, oracle, record))).run_all()


def attention_kernel(attention: Attention) -> TemplateKernel:
    """The kernel of an attention; equal attentions have the same kernel, whatever the names of their buffers.

    Raises:
        UnsupportedDtype: the score function computes with a dtype that C++ has no type for.
    """
    few = grouped(attention, MOST_ROWS)
    body = few_queries_cpp(few, lanes()) if is_served(few, lanes()) else attention_cpp(attention, lanes())
    inputs = tuple(map(Layout.of, attention.reads))
    return template_kernel("attention", PRELUDE + body, inputs, Layout.of(attention.out.buffer), attention.flops)


class CpuAttentionTemplate(Template):
    """Attentions of an inference graph: one kernel each."""

    rule, family, size, dtype_code = RULE, FAMILY, 3, "score-dtype"
    errors = CANNOT_COMPILE

    def match(self, node: fx.Node) -> FoundAttention | Reason | None:
        """The attention of a softmax, or of a library's call; nodes on GPUs have none."""
        return None if is_on(node, "cuda") else matched(node)

    def description(self, found: FoundAttention) -> Attention:
        """The attention, with biases as the kernel reads them."""
        return with_keys_innermost(found.attention)

    def candidates(self, described: Attention) -> tuple[str, ...]:  # noqa: ARG002
        """One kernel."""
        return (CANDIDATE,)

    def source(self, described: Attention, config: str) -> TemplateKernel:  # noqa: ARG002
        """The kernel."""
        return attention_kernel(described)

    def compared(self, found: FoundAttention) -> ComparedProgram:
        """The nodes of the attention."""
        return replace(super().compared(found), excluded=lambda: excluded(found, found.nodes))

    def record(self, found: FoundAttention, decision: Decision) -> None:
        """Record a decision, as one with that of the rule that asked about the same attention."""
        record_decision(self.task.record, found, decision)
