"""The pass over a CPU's graph for a template: finds, decides, replaces and records.

%bmm = ...; ...; %_softmax = ...; ...; %clone = ...   ->   attention_3f2a(%addmm, %addmm_1, %addmm_2, %mask)

Kernels for CPUs are few, and compile in this process: they are made when their computation is decided on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....rewrites.profit import SWITCHED_OFF, Decision, Question
from ....rewrites.reason import Reason
from ....rewrites.record import Evidence
from ....rewrites.switches import allowed
from ...codegen.cpp.dtypes import UnsupportedDtype
from ...codegen.cpp.errors import CompileFailed, CompilerMissing
from .records import near_miss
from .template import CandidateKernel, Template

CANNOT_COMPILE = (UnsupportedDtype, CompilerMissing, CompileFailed)
"""Errors that mean that a kernel cannot be written, or has no machine code."""


class CpuTemplatePass:
    """The pass of one template over one graph.

    Args:
        template: made for the graph's task.
    """

    def __init__(self, template: Template) -> None:
        self.template, self.task = template, template.task

    def run_all(self) -> int:
        """Decide on everything that is found; returns the number of computations replaced."""
        fused = 0
        for node in list(self.task.graph.nodes):
            match = self.template.match(node)
            if isinstance(match, Reason):
                self._refuse(node, match)
            elif match is not None:
                variants = filter(self.template.considers, self.template.variants(match, node))
                fused += any(self.run(found) for found in variants)
        return fused

    def run(self, found: Any) -> bool:
        """Decide on one computation; returns whether it was replaced."""
        template = self.template
        place, why = template.place(found), template.estimate(found)
        why = place if isinstance(place, str) else why
        if why is not None:
            template.record(found, Decision(None, Evidence(note=f"estimate: {why}")))
            return False
        assert not isinstance(place, str), place
        try:
            kernels = self._kernels(found)
            decision = self._ask(found, kernels)
            if decision.chosen is not None and not allowed("template", template.rule, [*found.nodes, found.output]):
                decision = SWITCHED_OFF
            kernel = None if decision.chosen is None else kernels[decision.chosen]
            if kernel is not None:
                kernel.build()
        except template.errors as error:
            code = template.dtype_code if isinstance(error, UnsupportedDtype) else "no-compiler"
            self._refuse(found.output, Reason(code, str(error)))
            return False
        template.record(found, decision)
        if kernel is not None:
            template.replace(found, kernel, place)
        return kernel is not None

    def _kernels(self, found: Any) -> dict[str, CandidateKernel]:
        """A kernel for each configuration, by its name."""
        described = self.template.description(found)
        return {str(one): self.template.source(described, one) for one in self.template.candidates(described)}

    def _ask(self, found: Any, kernels: Mapping[str, CandidateKernel]) -> Decision:
        comparison = self.template.compared(found)
        question = Question(
            rule=self.template.rule,
            key=" ".join([*comparison.tells, *(kernel.name for kernel in kernels.values())]),
            inputs=[node.meta["val"] for node in comparison.inputs],
            original=comparison.baseline,
            candidates={name: comparison.adapted(kernel) for name, kernel in kernels.items()},
            excluded=comparison.excluded(),
        )
        return self.task.oracle.decide(question)

    def _refuse(self, node: Any, reason: Reason) -> None:
        template = self.template
        self.task.record.near_misses.append(near_miss(template.rule, template.family, node, reason, size=template.size))


__all__ = ["CANNOT_COMPILE", "CpuTemplatePass"]
