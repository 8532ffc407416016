"""The questions of passes over a GPU graph to the oracle: within one budget of time, with every refusal recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import fx

from ....rewrites.profit import SWITCHED_OFF, Decision, Question
from ....rewrites.reason import Reason
from ....rewrites.switches import allowed
from ...codegen.triton import TritonFailed, TritonMissing, UnsupportedDtypeError
from .compiled_candidates import CompiledCandidates
from .records import near_miss
from .task import Task

CANNOT_COMPILE = (UnsupportedDtypeError, TritonMissing, TritonFailed)
"""Errors that mean that a kernel cannot be written, or has no machine code."""


class Questions:
    """The questions of one pass over one graph.

    Args:
        task: the graph, with the oracle and the record.
        rule: the name of the pass in records; `family`: its family.
        seconds: the time that all measurements together may take, that of compiling apart.
        size: the number of operations of the smallest match.
        dtype_code: the code of the reason if a formula computes with a dtype that kernels have no type for.
    """

    def __init__(
        self, task: Task, rule: str, family: str, seconds: float, *, size: int = 2, dtype_code: str = "epilogue-dtype"
    ) -> None:
        self._task, self._rule, self._family = task, rule, family
        self._size, self._dtype_code = size, dtype_code
        self._left = seconds

    def allow(self, seconds: float) -> None:
        """Allow at least this much time."""
        self._left = max(self._left, seconds)

    @property
    def are_over(self) -> bool:
        """Whether no time is left, unless generated kernels are asked for."""
        return self._left <= 0 and not self._task.generated

    def ask(self, compiled: CompiledCandidates, question: Question) -> Decision:
        """The oracle's decision; waiting for compilers does not count."""
        start, before = time.perf_counter(), compiled.seconds
        decision = self._task.oracle.decide(question)
        self._left -= time.perf_counter() - start - (compiled.seconds - before)
        return decision

    def switched(self, decision: Decision, nodes: Sequence[fx.Node]) -> Decision:
        """The decision, unless option ``without``, or a search for a fault, leaves out the kernel that was chosen."""
        left_out = decision.chosen is not None and not allowed("template", self._rule, list(nodes))
        return SWITCHED_OFF if left_out else decision

    def refuse(self, node: fx.Node, reason: Reason) -> None:
        """Record why a node is not computed by a kernel."""
        self._task.record.near_misses.append(near_miss(self._rule, self._family, node, reason, size=self._size))

    def refuse_error(self, node: fx.Node, error: Exception) -> None:
        """Record an error of `CANNOT_COMPILE`, or of a formula that the kernel has no place for."""
        code = "no-machine-code" if isinstance(error, (TritonMissing, TritonFailed)) else self._dtype_code
        self.refuse(node, Reason(code, str(error), (node,)))
