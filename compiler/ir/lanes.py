"""Lanes and threads: how a CPU runs a kernel. C++ is planned last, and the loops of its kernels carry the plan.

threads share i0, pieces of 4096             threads take 4096 iterations at a time
for i0 < 1000000 parallel, 16 lanes: ...     a vector has 16 of them

for i0 < 64 parallel, tiles of 16 x 16, 4 of them below each other:      both loops, transposed on the way in
    for i1 < 64 parallel: ...
"""

from __future__ import annotations

from dataclasses import dataclass

from .index.index import Var
from .program import Store
from .value import Load


@dataclass(frozen=True)
class Lanes:
    """A loop whose iterations are computed `lanes` at a time, in `copies` vectors one after the other.

    Args:
        expanded: scratch buffers that hold one element for each lane in place of each element.
    """

    lanes: int
    copies: int = 1
    expanded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LoopTile:
    """A loop that is tiled together with the only loop in its body; `loads` are contiguous along the outer one.

    Tiles have `lanes` rows and columns. `copies` tiles of one column precede the next column of tiles, so every page
    and cache line of the source is visited once rather than `copies` times. If `unrolled`, the rows of a tile are
    written one by one from registers, which is done if it is little code.
    """

    lanes: int
    loads: tuple[Load, ...]
    copies: int
    unrolled: bool


@dataclass(frozen=True)
class Turned:
    """The accesses of a loop that are made as rows along it, while an outer loop runs in lanes."""

    loads: tuple[Load, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Threads:
    """How threads share the iterations of one statement of a kernel.

    Args:
        loops: the loops whose iterations they share, outermost first; none if one thread runs the statement.
        piece: the iterations of the last of these loops that a thread takes at a time.
    """

    loops: tuple[Var, ...]
    piece: int = 1


HowInLanes = Lanes | LoopTile | Turned

__all__ = ["HowInLanes", "Lanes", "LoopTile", "Threads", "Turned"]
