"""The template on GPUs: attentions of an inference graph become calls of generated kernels, if those are faster.

    %bmm = ...; tanh, where; %_softmax = ...; %bmm_1 = ...     ->   attention_3f2a(%q, %k, %v)
    %bias = expand(add(...)); cudnn_attention(..., %bias)      ->   attention_81c0(%q, %k, %v, %table, %keep)

For scores without masks and biases, and for causal scores, libraries are hard to beat, so that these are only measured
with max-autotune. With masks and biases, libraries read a tensor of the size of the scores, which must be written
first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from ....rewrites.compat.memory import allows_tf32
from ....rewrites.profit import Decision
from ....rewrites.reason import Reason
from ..common.baseline import Baseline
from ..common.cpp_call import Layout
from ..common.formula import packet
from ..common.order import is_written_by_kernel
from ..common.questions import CANNOT_COMPILE
from ..common.task import Task
from ..common.template import ComparedProgram, GpuTemplate
from ..common.triton_call import TritonTemplateKernel
from .benchmark_inputs import Among, arranged, kept_on_the_way, nodes_after
from .bias_layout import with_keys_innermost
from .description import Attention
from .footprint import excluded
from .grouped import grouped
from .match import SOFTMAXES, FoundAttention
from .replacement import FAMILY, RULE, is_on, matched, record_decision
from .sdpa import SDPA, given_mask
from .triton_forward import attention_triton
from .triton_split_keys import split_attention, workspaces
from .triton_text import UnsupportedAttentionError
from .triton_tiles import SplitTile, Tile, split_tiles, tiles

_TILES, _MORE_TILES = 1, 10  # tiles measured for each attention: by default, and with max-autotune
_SPLIT_TILES, _MORE_SPLIT_TILES = 2, 12  # the same for few queries, whose keys are split into parts
_FEW_AMONG = 16  # fewest keys per query for which library kernels are measured
_SOME_TILES = 3  # tiles measured if one of them will be taken in any case
_SECONDS, _MORE_SECONDS = 2.0, 20.0  # budget for all questions of a graph


@dataclass(frozen=True)
class _Described:
    """An attention as a kernel is written for it; `early` as in `split_attention`."""

    attention: Attention
    early: bool


class AttentionTemplate(GpuTemplate):
    """Attentions of an inference graph; with `thorough`, those without masks and biases are measured too."""

    rule, family, option, name = RULE, FAMILY, "attention", "attention"
    in_training = False  # they have been decided on before the graph was split
    comes_first = True
    size, dtype_code = 3, "score-dtype"
    errors = (UnsupportedAttentionError, *CANNOT_COMPILE)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.seconds = _MORE_SECONDS if task.thorough else _SECONDS
        self._count = _MORE_TILES if task.thorough else _SOME_TILES if task.generated else _TILES
        self._splits = _MORE_SPLIT_TILES if task.thorough else _SPLIT_TILES
        self._made: dict[Any, TritonTemplateKernel] = {}

    def match(self, node: fx.Node) -> FoundAttention | Reason | None:
        """The attention of a softmax, or of a library's call."""
        return matched(node) if is_on(node, "cuda") else None

    def considers(self, found: FoundAttention) -> bool:
        """Whether libraries compute the attention less well, or run few programs for it."""
        return self.task.measures_all or is_promising(found) or self._has_few_queries(found)

    def _has_few_queries(self, found: FoundAttention) -> bool:
        few = found.attention.row.extent * _FEW_AMONG <= found.attention.key.extent
        return few and bool(split_tiles(grouped(found.attention), self.task.gpu))

    def description(self, found: FoundAttention) -> _Described:
        """The attention, with biases as the kernel reads them and heads that share keys as rows."""
        # If an earlier kernel of this graph precedes it, everything before the graph has ended.
        early = self.task.gpu.capability >= 90 and any(map(is_written_by_kernel, found.inputs))
        return _Described(grouped(with_keys_innermost(found.attention)), early)

    def candidates(self, described: _Described) -> list[Tile]:
        """The tiles to measure: of few queries, those first that split the keys."""
        splits = split_tiles(described.attention, self.task.gpu)[: self._splits]
        return [*splits, *tiles(described.attention, self.task.gpu)[: self._count]]

    def source(self, described: _Described, config: Tile) -> TritonTemplateKernel:
        """The kernel with a tile; equal ones are the same."""
        kernel = attention_kernel(described.attention, config, self.task.device, described.early)
        return self._made.setdefault((kernel.name, kernel.inputs, kernel.outputs), kernel)

    def compared(self, found: FoundAttention) -> ComparedProgram:
        """The nodes of the attention, but for those that others read too: they count as made already."""
        kept = kept_on_the_way(found)
        inputs = (*found.inputs, *kept)
        nodes = nodes_after(found, inputs)
        return ComparedProgram(
            nodes,
            inputs,
            Baseline(nodes, inputs, [found.output]),
            adapted=lambda kernel: Among(kernel, len(found.inputs)) if kept else kernel,
            excluded=lambda: excluded(found, nodes),
            arrange=lambda: arranged(found, kept) if kept else None,
        )

    def record(self, found: FoundAttention, decision: Decision) -> None:
        """Record a decision, as one with that of the rule that asked about the same attention."""
        record_decision(self.task.record, found, decision)


def attention_kernel(attention: Attention, tile: Tile, device: int, early: bool = False) -> TritonTemplateKernel:
    """The kernel of an attention with a tile, on a GPU; `early` as in `split_attention`, others never are.

    Raises:
        UnsupportedDtypeError, UnsupportedAttentionError: see `attention_triton`.
    """
    precision = "tf32" if allows_tf32() else "ieee"
    if isinstance(tile, SplitTile):
        source = split_attention(attention, tile, precision=precision, early=early)
    else:
        source = attention_triton(attention, tile, precision=precision)
    inputs = tuple(map(Layout.of, attention.reads))
    outputs = (Layout.of(attention.out.buffer),)
    return TritonTemplateKernel(
        source.launches[0].name, "attention", source, source, inputs, outputs, device, attention.flops,
        tuple(map(Layout.of, workspaces(attention, tile))),
    )  # fmt: skip


def is_promising(found: FoundAttention) -> bool:
    """Whether the attention has more than a causal mask, which is all that libraries compute well."""
    return all(given_mask(node) is not None for node in found.nodes if packet(node) in SDPA)


def may_be_promising(node: fx.Node) -> bool:
    """Whether a node that was not matched yet may be part of a promising attention."""
    return packet(node) in SOFTMAXES or (packet(node) in SDPA and given_mask(node) is not None)
