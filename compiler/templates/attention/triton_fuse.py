"""The pass on GPUs: attentions of an inference graph become calls of generated kernels, if those are faster.

    %bmm = ...; tanh, where; %_softmax = ...; %bmm_1 = ...     ->   attention_3f2a(%q, %k, %v)
    %bias = expand(add(...)); cudnn_attention(..., %bias)      ->   attention_81c0(%q, %k, %v, %table, %keep)

For scores without masks and biases, and for causal scores, libraries are hard to beat, so that these are only measured
with max-autotune. With masks and biases, libraries read a tensor of the size of the scores, which must be written
first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch import fx

from ....rewrites.compat.memory import allows_tf32
from ....rewrites.profit import Decision, Question
from ....rewrites.reason import Reason
from ...codegen.triton import TritonMissing, UnsupportedDtypeError
from ..common.baseline import Baseline
from ..common.compiled_candidates import CompiledCandidates
from ..common.cpp_call import Layout
from ..common.formula import packet
from ..common.order import is_written_by_kernel
from ..common.questions import CANNOT_COMPILE
from ..common.task import Task
from ..common.triton_call import TritonTemplateKernel
from .benchmark_inputs import Among, arranged, kept_on_the_way, nodes_after
from .bias_layout import with_keys_innermost
from .description import Attention
from .footprint import excluded, unmeasured
from .grouped import grouped
from .match import SOFTMAXES, Found
from .replacement import RULE, Replacer, is_on, matched, questions_of, record_decision
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
_Kernels = Mapping[str, TritonTemplateKernel]
_Key = tuple[str, tuple[str, ...]]


class AttentionPass:
    """The pass over one inference graph; with `thorough`, attentions without masks and biases are measured too."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._replacer = Replacer(task.graph)
        self._questions = questions_of(task, _MORE_SECONDS if task.thorough else _SECONDS)
        self._count = _MORE_TILES if task.thorough else _SOME_TILES if task.generated else _TILES
        self._splits = _MORE_SPLIT_TILES if task.thorough else _SPLIT_TILES
        self._made: dict[Any, TritonTemplateKernel] = {}
        self._known: dict[_Key, tuple[Decision, _Kernels]] = {}
        self._begun: dict[_Key, CompiledCandidates] = {}
        self._found = self._look()

    def _look(self) -> dict[fx.Node, Found]:
        """The attentions to decide on, by their softmax or call."""
        every = {}
        for node in list(self.task.graph.nodes):
            one = matched(node) if is_on(node, "cuda") else None
            if isinstance(one, Reason):
                self._questions.refuse(node, one)
            elif one is not None and (self.task.measures_all or is_promising(one) or self._has_few_queries(one)):
                every[node] = one
        return every

    def _has_few_queries(self, found: Found) -> bool:
        """Whether there are few queries compared to keys, so that libraries run few programs."""
        few = found.attention.row.extent * _FEW_AMONG <= found.attention.key.extent
        return few and bool(split_tiles(grouped(found.attention), self.task.gpu))

    def begin(self) -> set[fx.Node]:
        """Start compiling the kernels that will be measured, in other processes; returns the nodes they may replace."""
        for found in () if self.task.is_forced else self._found.values():
            with suppress(UnsupportedDtypeError, UnsupportedAttentionError, TritonMissing):
                kernels, kept = self._kernels(found), kept_on_the_way(found)
                key = _key(found, kernels, kept)
                if key not in self._begun:
                    self._begun[key] = self._compiled(found, kernels, kept)
                    self._begun[key].begin()
        return {node for found in self._found.values() for node in found.nodes}

    def run_all(self) -> int:
        """Decide on every attention that was found; returns the number of attentions replaced."""
        fused = 0
        for node in self._found:
            # An attention that was found earlier may read nodes that were replaced since: match again.
            found = matched(node)
            if isinstance(found, Found):
                fused += self.run(found)
        return fused

    def run(self, found: Found) -> bool:
        """Decide on one attention; returns whether it was replaced."""
        try:
            decision, kernels = self._decide(found)
            decision = self._questions.switched(decision, [*found.nodes, found.output])
            kernel = None if decision.chosen is None else kernels[decision.chosen]
            if kernel is not None:
                kernel.build()
        except (UnsupportedAttentionError, *CANNOT_COMPILE) as error:
            self._questions.refuse_error(found.output, error)
            return False
        record_decision(self.task.record, found, decision)
        if kernel is not None:
            self._replacer.replace(found, kernel, kernel.inputs)
        return kernel is not None

    def _decide(self, found: Found) -> tuple[Decision, _Kernels]:
        """The oracle's decision, which equal attentions share, and the kernels to choose from."""
        kernels = self._kernels(found)
        kept = kept_on_the_way(found)
        key = _key(found, kernels, kept)
        if key not in self._known:
            won = self._won(key)
            if won is not None:
                return won
            if self._questions.are_over:
                return unmeasured(kernels, excluded(found, nodes_after(found, (*found.inputs, *kept)))), kernels
            compiled = self._begun.pop(key, None) or self._compiled(found, kernels, kept)
            decision = self._questions.ask(compiled, _question(found, kernels, kept, key, compiled))
            self._known[key] = decision, kernels
        return self._known[key]

    def _won(self, key: _Key) -> tuple[Decision, _Kernels] | None:
        """The next best decision: the last of equal attentions must compute a mask that others counted as given."""
        for (digest, less), known in self._known.items():
            if digest == key[0] and known[0].chosen is not None and Counter(less) <= Counter(key[1]):
                return known
        return None

    def _compiled(self, found: Found, kernels: _Kernels, kept: tuple[fx.Node, ...]) -> CompiledCandidates:
        inputs = (*found.inputs, *kept)
        nodes = nodes_after(found, inputs)
        baseline = Baseline(nodes, inputs, [found.output])
        return CompiledCandidates(baseline, kernels.values(), self.task.while_compiling, excluded(found, nodes))

    def _kernels(self, found: Found) -> _Kernels:
        """A kernel for each tile, by the tile's name."""
        attention = grouped(with_keys_innermost(found.attention))
        # If an earlier kernel of this graph precedes it, everything before the graph has ended.
        early = self.task.gpu.capability >= 90 and any(map(is_written_by_kernel, found.inputs))
        made = {}
        splits = split_tiles(attention, self.task.gpu)[: self._splits]
        for tile in (*splits, *tiles(attention, self.task.gpu)[: self._count]):
            kernel = attention_kernel(attention, tile, self.task.device, early)
            key = (kernel.name, kernel.inputs, kernel.outputs)
            made[_name(tile)] = self._made.setdefault(key, kernel)
        return made


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


def is_promising(found: Found) -> bool:
    """Whether the attention has more than a causal mask, which is all that libraries compute well."""
    return all(given_mask(node) is not None for node in found.nodes if packet(node) in SDPA)


def may_be_promising(node: fx.Node) -> bool:
    """Whether a node that was not matched yet may be part of a promising attention."""
    return packet(node) in SOFTMAXES or (packet(node) in SDPA and given_mask(node) is not None)


def _question(
    found: Found, kernels: _Kernels, kept: tuple[fx.Node, ...], key: _Key, compiled: CompiledCandidates
) -> Question:
    candidates = {name: Among(kernel, len(found.inputs)) if kept else kernel for name, kernel in kernels.items()}
    return Question(
        rule=RULE,
        key=" ".join([key[0], *key[1]]),
        inputs=[node.meta["val"] for node in (*found.inputs, *kept)],
        original=compiled.baseline,
        candidates=candidates,
        prepare=compiled.prepare,
        arrange=arranged(found, kept) if kept else None,
        excluded=compiled.excluded,
    )


def _key(found: Found, kernels: _Kernels, kept: tuple[fx.Node, ...]) -> _Key:
    """The key of the question: the kernels, and the nodes that they are compared with."""
    texts = "\n".join(kernel.source.text for kernel in kernels.values())
    layouts = [str(kernel.inputs) for kernel in kernels.values()]
    digest = hashlib.blake2b("\n".join([texts, *layouts]).encode(), digest_size=8).hexdigest()
    return digest, tuple(str(node.target) for node in nodes_after(found, (*found.inputs, *kept)))


def _name(tile: Tile) -> str:
    name = f"{tile.queries}x{tile.keys}_{tile.warps}w{tile.stages}s"
    return f"{name}_{tile.splits}" if isinstance(tile, SplitTile) else name
