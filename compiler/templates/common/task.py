"""The arguments that all passes over the templates of a graph share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import fx

from ....rewrites.profit import Always, Decision, Never, Oracle, Question
from ....rewrites.record import GraphRecord
from ...gpu import Gpu
from ...options.fields import Tma
from .gpu import device_of


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class GraphTask:
    """A graph in which to put kernels.

    Args:
        graph: a graph after autograd, or a joint graph; changed in place.
        oracle: decides whether a kernel is faster than the nodes that it would replace.
        record: receives applied and declined matches, and near misses with their reasons.
    """

    graph: fx.Graph
    oracle: Oracle
    record: GraphRecord


@dataclass(frozen=True)
class Task(GraphTask):
    """A graph of a GPU in which to put kernels, with the settings for doing so.

    Args:
        device: the index of the graph's GPU.
        gpu: the limits of the GPU.
        thorough: try every node that kernels can compute, with more tiles, whatever time it takes.
        training: whether the graph is a forward or backward graph.
        generated: take the fastest generated kernel without measuring the nodes that it replaces.
        while_compiling: is called while kernels compile in other processes, if that takes long.
    """

    device: int
    gpu: Gpu
    thorough: bool
    training: bool
    while_compiling: Callable[[], None]
    generated: bool = False

    @property
    def is_forced(self) -> bool:
        """Whether the oracle takes every legal kernel or none, so that nothing is measured."""
        return isinstance(self.oracle, (Always, Never))

    @property
    def measures_all(self) -> bool:
        """Whether kernels are tried even if an estimate says that they gain little."""
        return self.thorough or self.generated or self.is_forced

    def of(self, kernels: str) -> Task | None:
        """The task for one kind of kernels under option ``kernels.<kind>``; None if libraries compute this kind."""
        if kernels == "library":
            return None
        if kernels != "generated" or self.is_forced:
            return self
        return replace(self, oracle=_Generated(self.oracle), generated=True)


class _Generated:
    """An oracle that chooses the fastest kernel without comparing it to the nodes that it replaces."""

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
    """The task for a graph (see `Task`); None unless the graph is on one supported GPU."""
    found = device_of(graph)
    if found is None:
        return None
    index, gpu = found
    return Task(graph, oracle, record, index, replace(gpu, tma=tma), thorough, training, while_compiling)
