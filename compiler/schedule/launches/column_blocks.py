"""Blocks of folds of columns: memory is contiguous along the loops of programs rather than along the loops of the fold.

for j < 768 parallel: fold (for i < 8192: update with x[768*i + j])      rows j, neighbors in memory; columns i

    alone     a lane folds few columns alone, where there are many rows
    rows      as many as a line of the cache holds; fewer if there would be few programs
    columns   few at a time, since lanes join the results of theirs at the end; all of a short row that is gone through
              several times (a maximum, a sum, results): it is read once
    warps     one for each 4096 elements that a program folds, since warps join their results through memory; more where
              an element takes longer: moments, positions, values of several loads

A GPU that few programs keep from being idle takes large blocks: nothing else hides the latency of memory. Of 50 folds
on an H100, these blocks take 1.1 times as long as the best of 72; blocks of 64 x 32 with 8 warps took 1.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.accesses import accesses
from ...ir.dependence import Dependence
from ...ir.index.index import Var
from ...ir.kernel import Statement
from ..target import NARROWEST
from .blocks import FEWER_WARPS, POINTWISE, VECTOR, Memory, fitting, power_of, programs_of, warps_of
from .lanes import MOST, THREADS, Few

_LINE = 128  # bytes of a line of the cache
_SHORT = 128  # columns of a row that a program holds
_FEW = 64  # most columns that a lane folds alone
_NEAR = 16  # columns beside each other that are looked at
_ROWS = 32  # rows of a program that goes through longer ones several times, or has few others beside it
_COLUMNS, _FEWER_COLUMNS, _MORE_COLUMNS = 16, 8, 32  # columns of a block; of short moments; if elements take long
_A_WARP, _COSTLY = 1 << 12, 1 << 10  # elements that one warp folds; if they take long
_HELD = 1 << 12  # bytes that one warp holds
_SINGLE = 256  # elements of a warp whose lanes load them one by one
_WARPS, _PLAIN_WARPS = 8, 16  # most warps of a program; of one whose elements take one load and one operation
_FEWEST = 4  # fewest rows of a program, if elements take long
_LONELY = 256  # columns of a block if there are few programs
_MANY = 4  # times the programs that keep a GPU busy, from which on none needs more warps
_TWICE = 2  # times as many programs for rows that are held, and as many warps for those that are read again


@dataclass(frozen=True)
class Columns:
    """A launch that folds columns.

    Args:
        total: the number of all rows.
        longest: a power of two that holds the columns of a row.
        bytes: of the widest value that is loaded for each element.
        several: whether columns are gone through several times.
        moments: whether moments are folded.
        costly: whether an element takes longer than one load and one operation.
        narrow: whether lanes load single elements, since those of another column begin anywhere.
        stored: whether elements are stored while they are folded: no load overtakes a store before it.
    """

    total: Any
    longest: int
    bytes: int
    several: bool
    moments: bool
    costly: bool
    narrow: bool = False
    stored: bool = False


Block = tuple[int, int, int]  # rows, columns, warps


def column_blocks(columns: Columns, memory: Memory) -> list[Block]:
    """The blocks that are worth measuring, the best first."""
    return [*_alone(columns, memory), *_together(columns, memory)]


def _alone(columns: Columns, memory: Memory) -> list[Block]:
    """A block whose lanes fold their rows alone; nothing if rows are long, or would be too few programs."""
    if columns.longest <= VECTOR and not columns.stored:
        rows, block, each = unrolled(columns.total, memory)
        return [(rows, block, warps_of(rows * block, each))]
    busy = columns.longest <= _FEW and programs_of(columns.total, POINTWISE) >= memory.programs
    return [(POINTWISE, VECTOR, warps_of(POINTWISE * VECTOR, VECTOR))] if busy else []


def unrolled(total: Any, memory: Memory) -> tuple[int, int, float]:
    """A block whose lanes go through their rows alone, in code that is written out for each column.

    Returns:
        rows, columns, and times the usual number of elements that a lane has.
    """
    each = Few(total, memory.processors).each(VECTOR)
    if programs_of(total, FEWER_WARPS * THREADS) >= memory.enough:
        each = max(each, 2)
    rows = fitting(FEWER_WARPS // 2 * THREADS * each, total, THREADS, memory.enough)
    return rows, 1, each / MOST


def begin_anywhere(inner: Sequence[tuple[Var, ...]], body: Sequence[Statement]) -> bool:
    """Whether columns lie so far apart, or so close, that no lane accesses several rows at once.

    Args:
        inner: for each pass over the folded elements, the loops of the pass.
        body: of a program.
    """
    dependence, last = Dependence(), {leaf[-1] for leaf in inner}
    steps = [dependence.stride(a.offset, a.inner, _NEAR) for a in accesses(body) if a.inner in last and not a.stored]
    return any(isinstance(step, int) and step % VECTOR for step in steps)


def _together(columns: Columns, memory: Memory) -> list[Block]:
    """Blocks whose lanes fold columns of one row side by side."""
    if programs_of(columns.total, NARROWEST) < memory.programs:
        return [_of_few(columns, memory)]
    rows, block, warps = _held(columns, memory) or _in_steps(columns, memory)
    if columns.narrow:
        warps = max(warps, min(_WARPS, _power(rows * block // _SINGLE)))
    return [
        (rows, block, warps),
        (rows, 2 * block, warps),
        (rows, block, max(1, warps // 2)),
        (rows // 2, block, warps),
    ]


def _of_few(columns: Columns, memory: Memory) -> Block:
    """A block for few programs: a GPU has about one for each of its multiprocessors, or fewer."""
    rows = _ROWS if programs_of(columns.total, _ROWS) * 4 >= memory.programs else NARROWEST
    if columns.costly:
        rows = fitting(rows, columns.total, _FEWEST, memory.programs // _TWICE)
    rows, block = min(rows, power_of(columns.total)), min(columns.longest, _LONELY)
    return rows, block, min(_WARPS, _power(rows * block // _COSTLY))


def _held(columns: Columns, memory: Memory) -> Block | None:
    """A block of all columns, which are read once; None if they are gone through once, or are too many."""
    if not columns.several or columns.longest > _SHORT:
        return None
    rows = fitting(_line(columns), columns.total, NARROWEST, _TWICE * memory.programs)
    return rows, columns.longest, min(_WARPS, _power(rows * columns.longest * columns.bytes // _HELD))


def _in_steps(columns: Columns, memory: Memory) -> Block:
    """A block of few columns, which goes through all of them."""
    most = min(_ROWS, _line(columns)) if columns.several else _line(columns)
    rows = fitting(most, columns.total, NARROWEST, memory.programs)
    folded = rows * columns.longest
    if columns.several:
        return rows, _COLUMNS, min(_WARPS, _power(_TWICE * folded // _A_WARP))
    if columns.moments:
        block = _FEWER_COLUMNS if folded <= _WARPS * _COSTLY else _COLUMNS
        return rows, min(block, columns.longest), min(_WARPS, _power(folded // _COSTLY))
    if columns.costly and programs_of(columns.total, rows) < _MANY * memory.programs:
        return rows, min(_MORE_COLUMNS, columns.longest), min(_WARPS, _power(folded // _COSTLY))
    return rows, min(_COLUMNS, columns.longest), min(_PLAIN_WARPS, _power(folded // _A_WARP))


def _line(columns: Columns) -> int:
    return max(NARROWEST, _LINE // columns.bytes)


def _power(number: int) -> int:
    """The largest power of two up to a number, and 1 at least."""
    return 1 << max(0, number.bit_length() - 1)


__all__ = ["Columns", "begin_anywhere", "column_blocks", "unrolled"]
