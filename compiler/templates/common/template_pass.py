"""The pass over a GPU's graph for any template: finds, measures within a budget, decides, replaces and records.

%addmm = ...; %view = ...; %gelu = ...     ->   gemm_gelu_3f2a_128x256x64_8w3s(%x, %weight, %bias)

begin      find computations, start compiling the kernels that will be measured, and what they compete with
run_all    find them again (others may have changed the graph), measure each as soon as it is compiled, replace
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch import fx

from ....rewrites.profit import Decision, Question
from ....rewrites.reason import Reason
from ....rewrites.record import Evidence
from .baseline import Baseline
from .compiled_candidates import CompiledCandidates
from .formula import is_move
from .questions import Questions
from .template import ComparedProgram, GpuTemplate

_ROUNDS = 3  # rounds of the search around the fastest configuration
_SPENT = "the time for measurements of this graph is spent"
_LESS_WORTH = "others of this graph promise more, or all of its kind too little for the time to compile it"

_Kernels = dict[str, Any]  # by the names of their configurations
_Key = tuple[str, tuple[str, ...]]  # of a question: the kernels, and what they compete with


class TemplatePass:
    """The pass of one template over one graph.

    Args:
        template: made for the graph's task.
    """

    def __init__(self, template: GpuTemplate) -> None:
        self.template, self.task = template, template.task
        self._questions = Questions(
            self.task, template.rule, template.family, template.seconds, size=template.size,
            dtype_code=template.dtype_code,
        )  # fmt: skip
        self._candidates = functools.cache(template.candidates)  # most layers are alike
        self._configs: dict[str, Any] = {}
        self._begun: dict[_Key, CompiledCandidates] = {}
        self._known: dict[_Key, tuple[Decision, _Kernels]] = {}
        self._chosen: set[Any] | None = None  # the descriptions that justify compiling; None if all do
        self._nodes: list[fx.Node] | None = None  # the roots of what was found, while nothing else changes the graph

    def begin(self, taken: Collection[fx.Node] = ()) -> set[fx.Node]:
        """Start compiling the kernels that will be measured, in other processes.

        Args:
            taken: nodes that other kernels may replace before this pass runs.

        Returns:
            The nodes that this pass may replace, if others are to leave them to it.
        """
        found = self._look(taken)
        self._nodes = None if taken else list(found)
        return {node for one in found.values() for node in one.nodes} if self.template.comes_first else set()

    def run_all(self) -> int:
        """Decide on everything that is found; returns the number of computations replaced."""
        fused = 0
        for node in list(self._look(begin=False)) if self._nodes is None else self._nodes:
            # What was found earlier may read nodes that were replaced since: match again.
            fused += any(self.run(found) for found in self._considered(self.template.match(node), node))
        self.template.finish()
        return fused

    def take(self, node: fx.Node, found: Any) -> bool:
        """Decide on what was found at a node, or record why nothing was; returns whether it was replaced."""
        if isinstance(found, Reason):
            self._questions.refuse(node, found)
        if found is None or isinstance(found, Reason):
            return False
        return self.template.considers(found) and self.run(found)

    def run(self, found: Any) -> bool:
        """Decide on one computation; returns whether it was replaced."""
        template, described = self.template, self.template.description(found)
        place = template.place(found)
        why = self._why_not(found, described)
        why = place if isinstance(place, str) else why
        if why is not None:
            return self._decline(found, f"estimate: {why}")
        try:
            kernels = self._kernels(described, self._candidates(described))
            if not kernels:
                return self._decline(found, "no tile fits this GPU")
            decision, kernels = self._decide(found, described, kernels)
            decision = template.reconsidered(found, described, decision, kernels)
            decision = self._questions.switched(decision, [*found.nodes, found.output])
            kernel = None if decision.chosen is None else kernels[decision.chosen]
            if kernel is not None:
                kernel.build()
        except template.errors as error:
            self._questions.refuse_error(found.output, error)
            return False
        template.record(found, decision)
        if kernel is not None:
            template.replace(found, kernel, place)
        return kernel is not None

    # -- what to measure ------------------------------------------------------------------------------------------

    def _look(self, others: Collection[fx.Node] = (), begin: bool = True) -> dict[fx.Node, Any]:
        """What kernels could compute, by its root; chooses what is most worth measuring, if that is too much.

        Args:
            others: nodes to leave out.
            begin: whether to start compiling, for one computation of each description.
        """
        every, first, weights, taken = dict[fx.Node, Any](), dict[Any, Any](), Counter[Any](), set[fx.Node]()
        for node in list(self.task.graph.nodes):
            match = None if node in others else self.template.match(node)
            if isinstance(match, Reason) and not others:
                self._questions.refuse(node, match)
            found = next(self._considered(match, node), None)
            if found is None:
                continue
            every[node] = found
            if self.task.is_forced or self._estimate(found) is not None:
                continue
            described, mine = self.template.description(found), {item for item in found.nodes if not is_move(item)}
            first.setdefault(described, found)
            # If two products meet in an epilogue, the first takes it; the second is tried if the first declines.
            weights[described] += 0 if mine & taken else self.template.work(described)
            taken |= mine
        self._chosen = self._most_worth(weights)
        for described, found in first.items() if begin else ():
            if self._chosen is None or described in self._chosen:
                self._begin(found, described)
        return every

    def _considered(self, match: Any, node: fx.Node) -> Iterator[Any]:
        if match is not None and not isinstance(match, Reason):
            yield from filter(self.template.considers, self.template.variants(match, node))

    def _most_worth(self, weights: Counter[Any]) -> set[Any] | None:
        """The descriptions to measure, by the work of all that have them; None for all."""
        template = self.template
        if template.most_kinds is None or self.task.thorough or self.task.generated:
            return None
        worth = [kind for kind, work in weights.most_common() if work and template.is_worth(kind, work)]
        chosen = template.most_worth(worth)
        self._questions.allow(max((template.seconds_for(kind) for kind in worth), default=0.0))
        return set(chosen) if len(chosen) < sum(map(bool, weights.values())) else None

    def _begin(self, found: Any, described: Any) -> None:
        with contextlib.suppress(*self.template.errors):
            kernels = self._kernels(described, self._candidates(described))
            comparison = self.template.compared(found)
            key = _key(kernels, comparison)
            if key not in self._begun:
                self._begun[key] = self._compiled(kernels, comparison)
                self._begun[key].begin()

    def _estimate(self, found: Any) -> str | None:
        return None if self.task.is_forced or self.task.generated else self.template.estimate(found)

    def _why_not(self, found: Any, described: Any) -> str | None:
        """Why a computation is not measured, by an estimate; None if it is measured."""
        why = self._estimate(found)
        return _LESS_WORTH if why is None and self._chosen is not None and described not in self._chosen else why

    def _decline(self, found: Any, note: str) -> bool:
        self.template.record(found, Decision(None, Evidence(note=note)))
        return False

    # -- questions ------------------------------------------------------------------------------------------------

    def _decide(self, found: Any, described: Any, kernels: _Kernels) -> tuple[Decision, _Kernels]:
        """The decision, which computations share that are alike, and the kernels to choose from."""
        comparison = self.template.compared(found)
        key = _key(kernels, comparison)
        known = self._known.get(key) or self._won(key)
        if known is not None:
            return known
        if self._questions.are_over:
            return unmeasured(kernels, comparison.excluded()), kernels
        decision = self._ask(kernels, comparison)
        for _ in range(_ROUNDS if self.task.thorough and not self.task.is_forced else 0):
            config = self._configs.get(decision.chosen or "")
            near = [] if config is None else self.template.around(described, config)
            if not near:
                break
            more = self._kernels(described, [config, *near])
            better = self._ask(more, comparison)
            if better.chosen in (None, decision.chosen):
                break
            decision, kernels = better, more
        self._known[key] = decision, kernels
        return decision, kernels

    def _won(self, key: _Key) -> tuple[Decision, _Kernels] | None:
        """A decision for the same kernels that won against fewer nodes.

        The last of equal attentions must compute a mask that others counted as given.
        """
        for (digest, less), known in self._known.items():
            if digest == key[0] and known[0].chosen is not None and Counter(less) <= Counter(key[1]):
                return known
        return None

    def _ask(self, kernels: _Kernels, comparison: ComparedProgram) -> Decision:
        key = _key(kernels, comparison)
        compiled = self._begun.pop(key, None) or self._compiled(kernels, comparison)
        question = Question(
            rule=self.template.rule,
            key=" ".join([*comparison.tells, key[0], *(str(node.target) for node in comparison.nodes)]),
            inputs=[node.meta["val"] for node in comparison.inputs],
            original=compiled.baseline,
            candidates={name: comparison.adapted(kernel) for name, kernel in kernels.items()},
            prepare=compiled.prepare,
            arrange=comparison.arrange(),
            cold=comparison.cold,
            precision=comparison.precision,
            excluded=compiled.excluded,
        )
        return self._questions.ask(compiled, question)

    def _kernels(self, described: Any, configs: Sequence[Any]) -> _Kernels:
        """A kernel for each configuration, by its name."""
        self._configs.update((str(config), config) for config in configs)
        return {str(config): self.template.source(described, config) for config in configs}

    def _compiled(self, kernels: _Kernels, comparison: ComparedProgram) -> CompiledCandidates:
        assert isinstance(comparison.baseline, Baseline), comparison.baseline
        return CompiledCandidates(
            comparison.baseline, kernels.values(), self.task.while_compiling, comparison.excluded()
        )


def unmeasured(kernels: _Kernels, why: str) -> Decision:
    """The decision without measurement: the first kernel if the original is excluded, with `why` as the reason."""
    if not why:
        return Decision(None, Evidence(note=_SPENT))
    return Decision(next(iter(kernels)), Evidence(note=f"{why}; estimate: {_SPENT}"))


def _key(kernels: _Kernels, comparison: ComparedProgram) -> _Key:
    """The key of the question: the kernels, and the nodes that they are compared with."""
    texts = "\n".join(kernel.identity for kernel in kernels.values())
    digest = hashlib.blake2b(texts.encode(), digest_size=8).hexdigest()
    return digest, (*comparison.tells, *(str(node.target) for node in comparison.nodes))
