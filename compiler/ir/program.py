"""Loop programs: what a graph computes, one loop nest a definition, before any scheduling.

    Program    ::= buffers, items in order, outputs
    item       ::= Definition | Extern
    Definition ::= for loops: [reduce over `reduced`] stores
    Store      ::= buffer[indices] = value            (mode "add", "max", ...: buffer[indices] op= value)

    relu:  for i < 8, j < 4:                          relu[i, j] = maximum(x[i, j], 0)
    sum:   for i < 8: reduce j < 4 of x[i, j]:        sum[i] = result 0
    scan:  for i < 8: scan j < 4 of x[i, j]:          cumsum[i, j] = result 0 so far

A program is mostly functional, not purely: several definitions may write one buffer (parts of a concatenation, a
scatter over a copy, a write to an input), and then their order in `items` is the order of their effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from .index.index import Var
from .value import Value

StoreMode = Literal["add", "mul", "max", "min", "or", "and"]
BufferKind = Literal["input", "constant", "made"]


@dataclass(frozen=True)
class Buffer:
    """A piece of strided memory.

    Args:
        name: unique in the program, a valid identifier; that of the graph node whose value it holds.
        dtype: of its elements.
        sizes, strides: integers or `Index` of sizes, in elements. Loads and stores give one index per dim.
        device: where it lies.
        kind: ``"input"`` and ``"constant"`` (parameters, attributes) are there from the start, at their own strides;
            what is ``"made"`` is allocated by the program.
        scalar: a number rather than a tensor (a SymInt or SymFloat input): one element, passed by value.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    device: torch.device
    kind: BufferKind = "made"
    scalar: bool = False


@dataclass(frozen=True)
class Store:
    """``buffer[indices] = value``; with `mode`, combined with what is there, each addition atomic."""

    buffer: str
    indices: tuple[Any, ...]
    value: Value
    mode: StoreMode | None = None


@dataclass(frozen=True)
class Reduction:
    """Folds `values` over loops.

    Args:
        name: unique in the program; `Result(name, component, dtype)` refers to it.
        reducer: one of `reducers.REDUCERS`, which gives operands, components, identity and combination.
        values: what each iteration contributes: the reducer's operands.
    """

    name: str
    reducer: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Definition:
    """One perfect loop nest: ``for loops: fold reductions over `reduced`: then stores``.

    Args:
        name: unique in the program; that of the graph node, suffixed where one node makes several.
        loops: the iteration space, outermost first, in the order of the stored buffer's dims.
        stores: what is written, once per iteration of `loops` (of a scan: per iteration of `reduced` too).
        reduced: loops folded by `reductions`; empty where there are none.
        reductions: what is folded, all over the same loops.
        scan: stores happen inside the reduced loop (one loop, in order), after each fold.
        nodes: names of the graph nodes it computes, for provenance.
        rule: the rewrite rule it comes from, or "".
    """

    name: str
    loops: tuple[Var, ...]
    stores: tuple[Store, ...]
    reduced: tuple[Var, ...] = ()
    reductions: tuple[Reduction, ...] = ()
    scan: bool = False
    nodes: tuple[str, ...] = ()
    rule: str = ""


@dataclass(frozen=True)
class Extern:
    """A node of the graph that runs as it is: an ATen call, or a call of anything else.

    Args:
        name: the node's.
        node: the node; what it computes is eager's business.
        reads: buffers it reads; `writes` those it writes or makes (a call may write an argument in place).
        reason: why it is not lowered, one of the keys of `fallbacks.REASONS`, or "" where it is none of our business
            (sizes, tuples).
        pure: running it twice, or not at all when nothing reads it, makes no difference.
    """

    name: str
    node: fx.Node
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    reason: str = ""
    pure: bool = True


Item = Definition | Extern


@dataclass
class Program:
    """A lowered graph.

    Args:
        buffers: by name.
        items: in an order that computes the graph.
        outputs: names of the buffers that must hold their final values at the end: those that the graph returns, or
            that an extern view of them does.
        examples: what sizes are on the example for which the graph is compiled, by name.
    """

    buffers: dict[str, Buffer] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    outputs: tuple[str, ...] = ()
    examples: dict[str, int] = field(default_factory=dict)


def dense_strides(sizes: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps, of dims in an order, the outermost first."""
    strides, step = [0] * len(sizes), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= sizes[dim]
    return tuple(strides)
