"""Launches: how a kernel runs on a GPU. Schedules decide them, and kernels carry them.

    for i < 512 parallel:                     launch of 4 (i) x 256 (j), 4 warps
        for j < 3136 parallel: y[...] = ...     a program has a tile of 4 iterations of i and 256 of j

    for i < 128 parallel:                     launch of 1 (i) x 1024 (inside), 4 warps
        fold sum: for j < 768: ...              a program has one iteration of i, and folds 1024 of j at a time

Each statement of a kernel is one launch, over the parallel loops around all of it. A kernel without parallel loops is
one launch of one program. Parts of a kernel may share a launch: each has programs of its own there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .index.index import Var, mul
from .iteration_space import blocks_of, extent_of


@dataclass(frozen=True)
class Blocks:
    """The tile of a program.

    Args:
        rows: the loops along the tile's first axis, outermost first; each program has `row_block` lanes of them.
        columns: the loops along its second axis; empty if that axis belongs to inner loops.
        column_block: the lanes of the second axis, and so the most iterations of an inner loop at a time.
        warps: the warps of a program.
    """

    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    row_block: int
    column_block: int
    warps: int


@dataclass(frozen=True)
class Launch:
    """One launch: which loops are programs, and in which blocks.

    Args:
        outer: other loops than those of the blocks, of which every program has one iteration.
        blocks: the tile of a program.
    """

    outer: tuple[Var, ...]
    blocks: Blocks

    @property
    def loops(self) -> tuple[Var, ...]:
        """All loops whose iterations programs share."""
        return (*self.outer, *self.blocks.rows, *self.blocks.columns)

    @property
    def programs(self) -> Any:
        """The number of programs, an index of sizes."""
        blocks = self.blocks
        columns = blocks_of(extent_of(blocks.columns), blocks.column_block) if blocks.columns else 1
        rows = blocks_of(extent_of(blocks.rows), blocks.row_block) if blocks.rows else 1
        return mul(mul(columns, rows), extent_of(self.outer))

    def over(self, loops: Sequence[Var]) -> Launch:
        """The launch of the same statement with other loops of the same names."""
        own = {var.name: var for var in loops}
        outer, rows, columns = (
            tuple(own[var.name] for var in axis) for axis in (self.outer, self.blocks.rows, self.blocks.columns)
        )
        return Launch(outer, replace(self.blocks, rows=rows, columns=columns))


__all__ = ["Blocks", "Launch"]
