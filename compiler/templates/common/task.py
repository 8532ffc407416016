"""The task of every pass over the templates of a graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import fx

from ....rewrites.profit import Always, Decision, Never, Oracle, Question
from ....rewrites.record import GraphRecord
from ...options.fields import Tma
from .gpu import Gpu, device_of


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Task:
    """A graph to put kernels into, and how.

    Args:
        graph: after autograd, or a joint one; changed in place.
        oracle: who decides whether a kernel is worth it, by the nodes that it would replace.
        record: gets what was applied and declined, and near misses with their reasons.
        device: the index of the graph's GPU.
        gpu: what it has room for.
        thorough: ask about whatever kernels can compute, with more tiles: time does not matter.
        training: a forward or backward graph.
        generated: the fastest generated kernel is taken wherever there is one; what it replaces is not measured.
        while_compiling: called while kernels compile in other processes, if that takes long.
    """

    graph: fx.Graph
    oracle: Oracle
    record: GraphRecord
    device: int
    gpu: Gpu
    thorough: bool
    training: bool
    while_compiling: Callable[[], None]
    generated: bool = False

    @property
    def is_forced(self) -> bool:
        """Whether nothing is measured: all that is legal is taken, or none of it."""
        return isinstance(self.oracle, (Always, Never))

    @property
    def measures_all(self) -> bool:
        """Whether an estimate that a kernel has little to offer leaves it out."""
        return self.thorough or self.generated or self.is_forced

    def of(self, kernels: str) -> Task | None:
        """The task for one kind of kernels, as option ``kernels.<kind>`` has it; None where libraries compute these."""
        if kernels == "library":
            return None
        if kernels != "generated" or self.is_forced:
            return self
        return replace(self, oracle=_Generated(self.oracle), generated=True)


class _Generated:
    """An oracle that is asked which kernel is fastest, not whether any is faster than what it replaces."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def decide(self, question: Question) -> Decision:
        """The fastest candidate."""
        why = question.excluded or "generated kernels are asked for: the original is not measured"
        return self._oracle.decide(replace(question, excluded=why))


def task_of(
    graph: fx.Graph,
    oracle: Oracle,
    record: GraphRecord,
    *,
    thorough: bool = False,
    training: bool = False,
    while_compiling: Callable[[], None] = nothing,
    tma: Tma = "measured",
) -> Task | None:
    """The task for a graph (see `Task`); None where it does not lie on one GPU that kernels are made for."""
    found = device_of(graph)
    if found is None:
        return None
    index, gpu = found
    return Task(graph, oracle, record, index, replace(gpu, tma=tma), thorough, training, while_compiling)
