"""What every pass over the templates of a graph on a GPU is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from ....rewrites.profit import Always, Never, Oracle
from ....rewrites.record import GraphRecord
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
        meanwhile: called while kernels compile in other processes, if that takes long.
    """

    graph: fx.Graph
    oracle: Oracle
    record: GraphRecord
    device: int
    gpu: Gpu
    thorough: bool
    training: bool
    meanwhile: Callable[[], None]

    @property
    def takes_all(self) -> bool:
        """Whether nothing is measured: all that is legal is taken, or none of it."""
        return isinstance(self.oracle, (Always, Never))


def task_of(
    graph: fx.Graph,
    oracle: Oracle,
    record: GraphRecord,
    *,
    thorough: bool = False,
    training: bool = False,
    meanwhile: Callable[[], None] = nothing,
) -> Task | None:
    """The task for a graph (see `Task`); None where it does not lie on one GPU that kernels are made for."""
    gpu = device_of(graph)
    return None if gpu is None else Task(graph, oracle, record, *gpu, thorough, training, meanwhile)
