"""Blocks of kernels without folds whose lanes lie along the innermost loop.

for k < 262144 parallel: y[k] = ...                               blocks of 1024 in 8 warps, 256 programs
for i < 512, j < 3136 parallel: y[3136*i + j] = f(x[...], m[i])   tiles of rows i and columns j; m once a row

    few elements      many warps hide the latency of memory: a lane has one element, up to as many as 15 warps of each
                      multiprocessor have
    short code        blocks of twice the elements, while there are enough: code that a program runs once takes longer
    scattered stores  small blocks: the elements that a program stores lie close together then

Measured on an H100 (`benchmarks/gpu_blocks.py`): of 422 kernels, 3% less time than with blocks that only filled the
GPU; 14% less where code is short and elements are 2**18 or between 2**20 and 2**21.
"""

from __future__ import annotations

from typing import Any

from ...ir.accesses import accesses
from ...ir.dependence import Dependence
from ...ir.index.index import Var, add, mul
from ...ir.iteration_space import extent_of, is_indirect, number_of
from ...ir.kernel import Statement
from ...ir.launch import Blocks, Launch
from ..target import NARROWEST
from .blocks import FEWER_WARPS, POINTWISE, VECTOR, Memory, fitting, power_of, programs_of, warps_of, ways
from .lanes import MOST, THREADS, Few, LanePlacement, elements_of, is_short, long_operations

_LANES = 16  # fewest neighboring elements that an access should read
NARROW = 64  # fewest lanes per row of a tile, unless rows are shorter
_FULL = 4  # of five lanes along a row, the fewest that have an element
_ROW_LOADS = 3  # loads per row that justify narrower loads per element
_RAGGED = 4  # times fewer elements of a lane, where it cannot access several at once
_TWICE, _MANY = 2, 4  # times that many programs from which on blocks are larger, and up to which
_SCATTERED = 256  # elements of a program that stores them anywhere


def along(loops: tuple[Var, ...], body: tuple[Statement, ...], narrow: bool, memory: Memory) -> tuple[Launch, ...]:
    """Lanes along the innermost loop, so that neighboring lanes access neighboring elements.

    If there are loops around one that is long enough, their variables, and values computed from them alone, are
    computed once per row of a tile, rather than by division for every element.
    """
    total, width = extent_of(loops), _width(loops, body)
    sizes = _sizes(loops, body, narrow, memory, bool(width))
    flat = [Blocks((), loops, 1, n, warps_of(n, each)) for n, each in sizes if 1 <= n <= power_of(total)]
    if not width:
        return ways((), flat)
    tiles = [(max(1, n // width), min(n, width), each) for n, each in sizes if n]
    tiles = [tile for tile in tiles if tile[0] <= power_of(extent_of(loops[:-1]))]
    made = [Blocks(loops[:-1], loops[-1:], r, c, warps_of(r * c, each)) for r, c, each in tiles]
    return ways((), [*made, flat[0]])


def _sizes(
    loops: tuple[Var, ...], body: tuple[Statement, ...], narrow: bool, memory: Memory, tiled: bool
) -> list[tuple[int, float]]:
    """Elements of blocks, and how many times the usual number a lane has, the best first."""
    block = fitting(POINTWISE, extent_of(loops), NARROWEST * _LANES, memory.enough)
    sizes = [*_preferred(loops, body, block, narrow, memory, tiled), *_usual(block)]
    sizes = [*_scattered(body, sizes[0]), *sizes]
    return [(n, each / _RAGGED) for n, each in sizes] if memory.ragged else sizes


def _usual(block: int) -> list[tuple[int, float]]:
    """Sizes around the block that fills the GPU, for code of any length."""
    return [(block, 1), (2 * block, 1), (2 * block, 2), (block // 2, 1), (4 * block, 2)]


def _preferred(
    loops: tuple[Var, ...], body: tuple[Statement, ...], block: int, narrow: bool, memory: Memory, tiled: bool
) -> list[tuple[int, float]]:
    """A smaller or larger size that the length of the code and the number of elements ask for; none if neither does."""
    total, short = extent_of(loops), is_short(body)
    fewer = _elements_of_a_lane(loops, body, Few(total, memory.processors, short), memory, tiled)
    if fewer < MOST:
        return [_with_fewer(total, block, fewer, memory, long_operations(body) > 0)]
    if _takes_more(programs_of(total, 2 * block), narrow, short, tiled, memory):
        return [(2 * block, 2)]
    return []


def _elements_of_a_lane(
    loops: tuple[Var, ...], body: tuple[Statement, ...], few: Few, memory: Memory, tiled: bool
) -> int:
    """Elements of a lane, up to `MOST`; at least two where the body combines elements with those in memory."""
    fewer = elements_of(LanePlacement(loops, loops[-1], not tiled), body, memory.bytes_of, few) if loops else MOST
    return max(fewer, 2) if any(a.mode is not None for a in accesses(body)) else fewer


def _scattered(body: tuple[Statement, ...], first: tuple[int, float]) -> list[tuple[int, float]]:
    """The first size with few elements, if the body stores elements at places that it reads from memory."""
    if any(a.stored and a.mode is None and is_indirect(a.offset) for a in accesses(body)):
        return [(min(_SCATTERED, first[0]), first[1])]
    return []


def _with_fewer(total: Any, block: int, fewer: int, memory: Memory, long: bool) -> tuple[int, float]:
    """The block whose lanes have few elements; twice as many of very many that have no long code."""
    block = min(block, FEWER_WARPS * THREADS * fewer)
    many = fewer > 1 and not long and programs_of(total, block) >= _MANY * memory.enough
    return block, (2 if many else 1) * fewer / MOST


def _takes_more(programs: int, narrow: bool, short: bool, tiled: bool, memory: Memory) -> bool:
    """Whether programs with twice the elements, of which there are so many then, take less time."""
    few, many = (times * memory.enough for times in (_TWICE, _MANY))
    if programs >= many:
        return narrow and tiled
    return short and (narrow or tiled) and programs >= few


def _width(loops: tuple[Var, ...], body: tuple[Statement, ...]) -> int:
    """Lanes of a tile along the innermost loop that leave few lanes idle at its end; 0 if tiles should not be used."""
    extent = loops[-1].extent if len(loops) > 1 else 0
    if not isinstance(extent, int) or extent < _LANES or not _pays_by_rows(loops, body):
        return 0
    width = min(POINTWISE, power_of(extent))
    while width > NARROW and -(-extent // width) * width * _FULL > extent * (_FULL + 1):
        width //= 2
    return width if -(-extent // width) * width * _FULL <= extent * (_FULL + 1) else 0


def _pays_by_rows(loops: tuple[Var, ...], body: tuple[Statement, ...]) -> bool:
    """Whether tiles of rows load as wide as lanes over all loops would, or save much otherwise."""
    if loops[-1].extent % VECTOR == 0:
        return True
    flat, dependence, found = number_of(loops), Dependence(), list(accesses(body))
    if not any(isinstance(add(access.offset, mul(flat, -1)), int) for access in found):
        return True
    return len({(a.buffer, a.offset) for a in found if loops[-1] not in dependence.of(a.offset)}) >= _ROW_LOADS


__all__ = ["NARROW", "along"]
