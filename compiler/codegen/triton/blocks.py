"""The launches of a kernel as data: which loops are programs, the sizes of blocks, and the facts that plans use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...ir.index.bounds import bounds
from ...ir.index.index import Index, Var, remainder
from ...ir.kernel import Loop, Statement
from .iteration_space import extent_of

VECTOR = 8  # 16-bit elements that a lane moves at once
PROGRAMS_EACH = 2  # programs of a multiprocessor that keep it busy
_NEARLY = 15 / 16  # part of that number that does as well
POINTWISE = 1024  # elements per program without reductions
WARPS, FEWER_WARPS = 16, 8  # most warps of a program; of one whose lanes have few elements
_ELEMENTS_A_WARP = 256


@dataclass(frozen=True)
class Blocks:
    """The block sizes of one launch.

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
class Memory:
    """Facts that a plan uses besides the loops.

    Args:
        bytes_of: the bytes per element of each buffer in memory, by name; 4 if it is not known.
        processors: the multiprocessors of the GPU.
        ragged: whether the number of iterations may be anything, so that lanes do not access several elements at once.
    """

    bytes_of: Mapping[str, int]
    processors: int
    ragged: bool = False

    @property
    def programs(self) -> int:
        """The number of programs that keep the GPU busy."""
        return PROGRAMS_EACH * self.processors

    @property
    def enough(self) -> int:
        """Nearly as many, which take no longer: 2**18 elements in blocks of 1024 are 256, for 132 multiprocessors."""
        return int(self.programs * _NEARLY)


@dataclass(frozen=True)
class Launch:
    """One launch: statements inside of the loops whose iterations are programs.

    Args:
        outer: other loops, of which every program has one iteration.
        body: the statements inside of all these loops.
        others: blocks that may be faster than `blocks`.
    """

    outer: tuple[Var, ...]
    blocks: Blocks
    body: tuple[Statement, ...]
    others: tuple[Blocks, ...] = ()


def candidates(launch: Launch) -> tuple[Launch, ...]:
    """The launch in all ways worth measuring, with the one to use without measurement first."""
    return tuple(replace(launch, blocks=blocks, others=()) for blocks in dict.fromkeys([launch.blocks, *launch.others]))


def placed(launch: Launch, statement: Statement) -> Launch:
    """The launch of a statement, planned on an example of it."""
    loops, body = peeled(statement)
    own = {var.name: var for var in loops}

    def of(blocks: Blocks) -> Blocks:
        rows, columns = (tuple(own[var.name] for var in axis) for axis in (blocks.rows, blocks.columns))
        return replace(blocks, rows=rows, columns=columns)

    outer = tuple(own[var.name] for var in launch.outer)
    return Launch(outer, of(launch.blocks), body, tuple(map(of, launch.others)))


def peeled(statement: Statement) -> tuple[list[Var], tuple[Statement, ...]]:
    """The parallel loops around all of a statement, outermost first, and the statements inside of them."""
    loops: list[Var] = []
    body: tuple[Statement, ...] = (statement,)
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].parallel:
        loops.append(body[0].var)
        body = body[0].body
    return loops, body


def is_ragged(statement: Statement) -> bool:
    """Whether its parallel loops may have a number of iterations that is no multiple of a lane's elements."""
    extent = extent_of(peeled(statement)[0])
    return isinstance(extent, Index) and remainder(extent, VECTOR) != 0


def power_of(extent: Any) -> int:
    """The smallest power of two that holds an extent; a large one if the extent is symbolic."""
    high = extent if isinstance(extent, int) else bounds(extent)[1]
    return 1 << 30 if high is None else 1 << max(int(high) - 1, 0).bit_length()


def fitting(block: int, extent: Any, least: int, programs: int) -> int:
    """A block of a loop: no larger than the loop, and halved down to `least` while there are fewer programs."""
    block = min(block, power_of(extent))
    while block > least and programs_of(extent, block) < programs:
        block //= 2
    return block


def programs_of(extent: Any, block: int) -> int:
    """The largest possible number of blocks."""
    high = bounds(extent)[1]
    return 1 << 30 if high is None else -(-int(high) // block)


def warps_of(elements: int, each: float = 1) -> int:
    """The warps of a program; each lane has `each` times the usual number of elements."""
    return max(1, min(WARPS, int(elements // (_ELEMENTS_A_WARP * each))))
