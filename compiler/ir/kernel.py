"""Kernels: scheduled loop trees, what code generators see.

    Kernel    ::= name, params, sizes, scratch, body, launches
    Statement ::= Loop(var, body, parallel)
                | Assign(store)                                  buffer[indices] (op)= value
                | Fold(reductions, body)                         accumulators set to identity; body; then Results hold
                | Update(reduction)                              fold this iteration's values in

    layer_norm: for i < 128 parallel:
                    fold sum:    for j < 768: t[j] = x[i, j] + y[i, j]; update sum with t[j]
                    fold sum_1:  for j < 768: update sum_1 with square(t[j] - sum / 768)
                    for j < 768: out[i, j] = (t[j] - sum / 768) * rsqrt(sum_1 / 768 + eps)

Statements run in order. `Result(name, ...)` may be read after its Fold's body, anywhere inside the loops that enclose
the Fold, and in a scan also right after the Update, as "so far".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .index.index import Size, Var
from .lanes import HowInLanes, Threads
from .launch import Launch
from .program import Buffer, Reduction, Store


@dataclass(frozen=True)
class Loop:
    """``for var < var.extent: body``; iterations of a parallel loop are independent. Scans run in order.

    `lanes` says how a CPU runs it in vectors; None if it does not, or is not planned yet.
    """

    var: Var
    body: tuple[Statement, ...]
    parallel: bool = False
    lanes: HowInLanes | None = None


@dataclass(frozen=True)
class Assign:
    """One store per iteration of the enclosing loops."""

    store: Store


@dataclass(frozen=True)
class Fold:
    """Accumulators of `reductions` start at identity, `body` updates them, after it their Results are final."""

    reductions: tuple[Reduction, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Update:
    """Fold the reduction's values of this iteration into its accumulators."""

    reduction: Reduction


Statement = Loop | Assign | Fold | Update


@dataclass(frozen=True)
class Param:
    """A buffer that the kernel is given, and what it does with it.

    `buffer` is as the kernel sees it: the scheduler gives its memory one dim of stride 1: an index is an offset.
    """

    buffer: Buffer
    access: Literal["read", "write", "update"]


@dataclass(frozen=True)
class Kernel:
    """A scheduled loop tree.

    Args:
        name: unique in its graph, e.g. ``"k3_layer_norm"``.
        params: the buffers it reads and writes, in the order of the calling convention.
        sizes: symbolic sizes, passed by value after the params, in this order.
        scratch: buffers of one iteration of the parallel loops (or of the whole kernel where there are none), alive
            from their first store to the end of that iteration; never visible outside.
        body: statements.
        nodes: names of the graph nodes it computes.
        parts: kernels that `body` is, one after the other, where none depends on another: they may run side by side.
        early: whether it may begin before kernels before it have ended: it waits for them by itself (on GPUs).
        examples: what sizes are on the example for which it is compiled, by name: only plans may depend on them.
        launches: how a GPU runs it, a launch for each statement; none if `parts` have them, or for a CPU.
        shared: the numbers of the parts that share each launch, in the order of their programs; other parts have
            launches of their own.
        threads: how threads of a CPU share each statement; none before its C++ is planned, or for a GPU.
    """

    name: str
    params: tuple[Param, ...]
    sizes: tuple[Size, ...]
    scratch: tuple[Buffer, ...]
    body: tuple[Statement, ...]
    nodes: tuple[str, ...] = ()
    parts: tuple[Kernel, ...] = ()
    early: bool = False
    examples: tuple[tuple[str, int], ...] = ()
    launches: tuple[Launch, ...] = ()
    shared: tuple[tuple[int, ...], ...] = ()
    threads: tuple[Threads, ...] = ()
