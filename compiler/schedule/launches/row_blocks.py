"""Blocks of folds of rows: memory is contiguous along the loops of the fold.

for i < 4096 parallel: fold (for j < 768: update with x[768*i + j])      a program has all of a row, or steps through it

    many short rows     several in a program: starting one takes as long as a row of 256
    rows of 49          one warp for several: no lane accesses several neighbors, so that two warps would share each row
    whole long rows     few warps, whose lanes have many elements: warps join their results through memory
    very long rows      few elements for each lane at a time: registers hold combined elements, not waiting ones

Measured on an H100 (`benchmarks/gpu_blocks.py`): sums of 65,536 rows of 256 in 16 bits 11.1 -> 6.0 us, softmax of rows
of 49 32.8 -> 18.3, cross entropy of 256 rows of 30,522 16.5 -> 7.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.accesses import accesses
from ...ir.dependence import Dependence
from ...ir.index.index import Var
from ...ir.iteration_space import extent_of
from ...ir.kernel import Statement
from .blocks import Memory, programs_of

_PERSISTENT = 16384  # most elements of a row in registers
SCANNED, _LOADED = 8192, 8192  # the same of a scan, here or across rows of memory; of several loads for each element
_MOMENT_ROW = 4096  # the same of a row whose moments are folded
_LOOPED = 4096  # elements per block of a longer row
_LOOPED_MOMENTS, _LOOPED_SCAN, _LOOPED_LOADS = 2048, 2048, 2048  # of moments; of a scan; of several loads for each
_REGISTERS, _THREADS = 96, 512  # most values that a lane loads at once into registers; lanes of a program
_PROGRAMS = 2048  # programs from which on each takes more rows
_ELEMENTS = 2048  # elements up to which it does; twice as many of rows that are gone through once
_RAGGED_ROWS, _RAGGED_ELEMENTS, _RAGGED_BYTES = 8, 1024, 2048  # rows, elements and bytes of one warp
_TWICE = 2  # times the programs that keep a GPU busy, as many of one warp as there are at least
_SHORT = 16  # most elements of a row that a lane may go through alone
_NEAR = 16  # rows beside each other that are looked at
_WIDE = 16  # bytes that a lane accesses at once
_LEAST_WHOLE, _MOST_WHOLE = 4096, 8192  # padded lengths of whole rows that few warps hold
_WHOLE_WARPS, _NARROW_WARPS = 8, 4  # warps of such a row; of one that loads a single 16-bit value an element
_STEP, _WARPS = 512, 8  # elements that are folded at a time, and the warps that do; twice as many in few programs


def more_rows(rows: int, block: int, total: Any, once: bool) -> int:
    """Rows of a program, `block` long, of which there are `total`; `once` if they are gone through once."""
    while programs_of(total, rows) >= _PROGRAMS and 2 * rows * block <= _ELEMENTS * (2 if once else 1):
        rows *= 2
    return rows


@dataclass(frozen=True)
class RowFold:
    """A launch that folds rows.

    Args:
        loops: those of programs.
        inner: the loops that go through a row, of each time that it is gone through.
        bytes: of the widest value that is loaded for each element; 0 if none is.
        longest: a power of two that holds a row.
        plain: whether all folds are of one operation, or of moments.
    """

    loops: tuple[Var, ...]
    inner: list[tuple[Var, ...]]
    bytes: int
    longest: int
    plain: bool


def held(rows: RowFold, loads: int, scan: bool, moments: bool) -> int:
    """Elements of a row that registers hold: all, if they are few enough for their number of loads, or those of a step.

    Args:
        rows: the loops of the fold.
        loads: how many values are loaded for each element.
        scan: whether results follow each other within a row.
        moments: whether moments are folded.
    """
    if moments:  # Triton lets every thread sum the counts of all lanes, which takes 90 us for 8192
        return rows.longest if rows.longest <= _MOMENT_ROW else _LOOPED_MOMENTS
    room = _REGISTERS * _THREADS
    if loads * _PERSISTENT <= room and not scan:
        return rows.longest if rows.longest <= _PERSISTENT else _LOOPED
    most, step = (SCANNED, _LOOPED_SCAN) if scan else (_LOADED, _LOOPED_LOADS)
    fits = rows.longest <= most and (len(rows.inner) > 1 or loads * rows.longest <= room)
    return rows.longest if fits else min(rows.longest, step)


def whole_rows(rows: int, block: int, narrow: bool) -> list[tuple[int, int, int]]:
    """Rows, columns and warps of a program that holds one long row; nothing of others.

    Args:
        rows: of a program.
        block: elements of a row, padded.
        narrow: whether one value of 16 bits is loaded for each.
    """
    if rows != 1 or not _LEAST_WHOLE <= block <= _MOST_WHOLE:
        return []
    return [(1, block, _NARROW_WARPS if narrow else _WHOLE_WARPS)]


def special_rows(rows: RowFold, block: int, body: Sequence[Statement], memory: Memory) -> list[tuple[int, int, int]]:
    """Rows, columns and warps for rows that are very long, or that no lane accesses in wide pieces; nothing of others.

    Args:
        rows: the loops of the fold.
        block: columns of other blocks.
        body: of a program.
        memory: of the GPU.
    """
    total = extent_of(rows.loops)
    if rows.longest > block:
        return [(1, *_step_of(total, memory))] if len(rows.inner) == 1 and not rows.plain else []
    if not rows.bytes or rows.longest <= _SHORT or any(len(leaf) != 1 for leaf in rows.inner) or _overlap(rows, body):
        return []
    number = _ragged(rows.inner[0][0].extent, block, rows.bytes)
    while number > 1 and programs_of(total, number) < _TWICE * memory.enough:
        number //= 2
    return [(number, block, 1)] if number > 1 else []


def _ragged(length: Any, block: int, size: int) -> int:
    """How many rows one warp folds, if none begins where a lane accesses several elements; else 0."""
    ragged = isinstance(length, int) and length * size % _WIDE != 0
    return min(_RAGGED_ROWS, _RAGGED_ELEMENTS // block, _RAGGED_BYTES // (block * size)) if ragged else 0


def _step_of(total: Any, memory: Memory) -> tuple[int, int]:
    """Elements of a long row that are folded at a time, and warps."""
    times = 1 if programs_of(total, 1) >= 2 * memory.programs else 2
    return _STEP * times, _WARPS * times


def _overlap(rows: RowFold, body: Sequence[Statement]) -> bool:
    """Whether rows share elements with the rows beside them, as windows do, or may."""
    dependence, length = Dependence(), extent_of(rows.inner[0])
    last = {leaf[-1] for leaf in rows.inner}
    inside = [access for access in accesses(body) if rows.loops and access.inner in last]
    steps = [dependence.stride(access.offset, rows.loops[-1], _NEAR) for access in inside]
    return any(step is None or (isinstance(step, int) and 0 < abs(step) < length) for step in steps)


__all__ = ["SCANNED", "RowFold", "held", "more_rows", "special_rows", "whole_rows"]
