"""Sizes of the Triton attention kernel's tiles: what of q, k, v and the scores is in registers and shared memory.

`tiles` lists those worth measuring on a GPU, the one to take unmeasured first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from ...ir.value import variables
from ..common.gpu import SMALLER, Gpu
from .description import Attention

_FEWEST = 16  # rows or columns of a product on tensor cores
_REGISTERS = 220  # of a thread's 255, for the result and the scores
_FEW_QUERIES = 64  # of a tile: four warps are enough for fewer, and no smaller tile is worth more programs
_LEAST_WARPS = 8  # of GPUs before Hopper, whose registers hold operands, too
_GRADIENT_REGISTERS = 160  # of gradients and scores, see `_gradients`: addresses and numbers of rows take the others


@dataclass(frozen=True)
class Tile:
    """One configuration.

    Args:
        queries, keys: rows and columns of a block of scores.
        warps: of a program; `stages`: blocks of keys on their way at a time.
    """

    queries: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class BackwardTile(Tile):
    """The same for a backward pass, whose second launch has programs of keys.

    Args:
        by_keys: of that launch.
    """

    by_keys: Tile


@dataclass(frozen=True)
class SplitTile(Tile):
    """Of few queries, all in one block, with the keys in parts.

    Args:
        splits: how many parts; programs of their own go through them.
    """

    splits: int


# By columns of the wider operand, the first to be preferred.
_HALVES = {
    64: (
        Tile(128, 64, 8, 3), Tile(128, 64, 4, 3), Tile(128, 128, 8, 3), Tile(128, 128, 4, 3), Tile(64, 128, 4, 2),
        Tile(64, 64, 4, 3), Tile(64, 32, 4, 3), Tile(32, 64, 4, 3), Tile(16, 128, 4, 3), Tile(16, 64, 4, 4),
    ),
    128: (
        Tile(128, 64, 8, 3), Tile(128, 128, 8, 2), Tile(128, 128, 8, 3), Tile(128, 64, 8, 2), Tile(64, 64, 4, 3),
        Tile(64, 64, 4, 2), Tile(64, 32, 4, 3), Tile(32, 64, 4, 2), Tile(16, 64, 4, 3), Tile(16, 32, 4, 3),
    ),
    256: (
        Tile(128, 64, 8, 2), Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 2), Tile(16, 32, 4, 2),
        Tile(16, 16, 4, 2),
    ),
}  # fmt: skip
_FLOATS = {
    64: (Tile(128, 32, 8, 2), Tile(64, 64, 8, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 2), Tile(16, 32, 4, 2)),
    128: (Tile(64, 32, 8, 2), Tile(32, 32, 4, 2), Tile(16, 32, 4, 2)),
    256: (Tile(32, 32, 8, 2), Tile(16, 16, 4, 2)),
}
_SMALLEST = Tile(16, 16, 4, 1)
# Of few queries: keys of a block, warps and stages; and programs for each processor.
_SPLIT_BLOCKS = ((64, 4, 3), (128, 4, 2), (32, 4, 4), (128, 8, 3), (64, 8, 2), (32, 4, 2), (16, 4, 2))
_SHARES = (2, 4, 1)
_MOST_ROWS, _LEAST_KEYS, _MOST_SPLITS = 64, 128, 64
# Of the backward pass, by bytes an element, as above.
_BACKWARD = {
    2: {
        64: (
            BackwardTile(128, 64, 8, 3, Tile(32, 64, 4, 3)), BackwardTile(64, 32, 4, 3, Tile(32, 64, 4, 3)),
            BackwardTile(64, 64, 4, 3, Tile(32, 128, 8, 3)), BackwardTile(64, 64, 4, 3, Tile(64, 64, 4, 3)),
            Tile(64, 64, 8, 2), Tile(64, 64, 8, 1), Tile(32, 64, 4, 2), Tile(32, 32, 4, 2),
        ),
        128: (
            BackwardTile(128, 32, 8, 3, Tile(64, 64, 4, 2)), BackwardTile(128, 64, 8, 3, Tile(32, 64, 4, 3)),
            BackwardTile(64, 64, 4, 2, Tile(32, 64, 4, 3)), Tile(64, 64, 8, 2), Tile(64, 64, 8, 1), Tile(32, 64, 4, 2),
            Tile(32, 32, 4, 1),
        ),
        256: (Tile(64, 64, 8, 2), Tile(64, 32, 8, 2), Tile(32, 32, 8, 1), Tile(32, 32, 4, 1), Tile(16, 16, 4, 1)),
    },
    4: {
        64: (Tile(32, 32, 4, 2), Tile(32, 32, 8, 2), Tile(16, 32, 4, 2)),
        128: (Tile(32, 32, 8, 2), Tile(16, 32, 8, 2), Tile(16, 16, 4, 2)),
        256: (Tile(16, 16, 8, 2), Tile(16, 16, 8, 1)),
    },
}  # fmt: skip


def tiles(attention: Attention, gpu: Gpu = SMALLER) -> list[Tile]:
    """Configurations for an attention that fit a GPU, the default first; sizes and dtypes are looked at."""
    table = _HALVES if attention.v.buffer.dtype.itemsize == 2 else _FLOATS
    cut = dict.fromkeys(_cut(tile, attention) for tile in _listed(table, attention))
    fitting = [tile for tile in cut if fits(tile, attention, gpu)] or [_SMALLEST]
    return sorted(fitting, key=lambda tile: _is_idle(tile, attention, gpu))


def split_tiles(attention: Attention, gpu: Gpu = SMALLER) -> list[SplitTile]:
    """Configurations for few queries and many keys, the default first; none where rows are many or keys few.

    There are about as many programs as have memory busy, none of which has less than a block of keys.
    """
    rows, keys = max(_FEWEST, power(attention.row.extent)), attention.key.extent
    if rows > _MOST_ROWS or keys < _LEAST_KEYS:
        return []
    leads = math.prod(var.extent for var in attention.lead)
    found = []
    for share, (block, warps, stages) in product(_SHARES, _SPLIT_BLOCKS):
        splits = min(max(round(share * gpu.processors / leads), 1), -(-keys // block), _MOST_SPLITS)
        tile = SplitTile(rows, block, warps, stages, splits)
        if fits(tile, attention, gpu) and tile not in found:
            found.append(tile)
    return found


def backward_tiles(attention: Attention, gpu: Gpu = SMALLER) -> list[Tile]:
    """The same for the backward pass, which holds twice as many operands."""
    listed = _listed(_BACKWARD[attention.v.buffer.dtype.itemsize], attention)
    cut = dict.fromkeys(_backward_cut(tile, attention) for tile in listed)
    fitting = [tile for tile in cut if _backward_bytes(tile, attention) <= gpu.shared_bytes] or [_SMALLEST]
    return sorted(fitting, key=lambda tile: _is_crowded(tile, attention, gpu))


def _backward_cut(tile: Tile, attention: Attention) -> Tile:
    cut = _cut(tile, attention)
    if not isinstance(tile, BackwardTile):
        return cut
    return BackwardTile(cut.queries, cut.keys, cut.warps, cut.stages, turned(tile, attention))


def turned(tile: Tile, attention: Attention) -> Tile:
    """The tile for programs that have keys, no larger than the scores are: the tile's own, or made from it.

    Then what stays is as large; what comes by is half of it where two gradients leave no registers for more.
    """
    one = tile.by_keys if isinstance(tile, BackwardTile) else replace(tile, queries=tile.keys, keys=tile.queries)
    queries = min(one.queries, max(_FEWEST, power(attention.row.extent)))
    keys = min(one.keys, max(_FEWEST, power(attention.key.extent)))
    if isinstance(tile, BackwardTile):
        return Tile(queries, keys, one.warps, one.stages if attention.row.extent > queries else 1)
    if _gradients(Tile(queries, keys, tile.warps, 1), attention) >= _GRADIENT_REGISTERS and queries > _FEWEST:
        queries //= 2
    return Tile(queries, keys, tile.warps, tile.stages if attention.row.extent > queries else 1)


def _gradients(by_keys: Tile, attention: Attention) -> int:
    """Registers of a thread for gradients of keys and values, and two blocks of scores."""
    return by_keys.keys * (_columns(attention) + 2 * by_keys.queries) // (by_keys.warps * 32)


def _is_crowded(tile: Tile, attention: Attention, gpu: Gpu) -> bool:
    """Whether registers overflow.

    On Hopper where there is more to a score than the product: random bits, biases. On GPUs before, whose registers hold
    operands too, with few warps, or biases ahead.
    """
    if gpu.capability >= 90:
        is_more = attention.keep is not None or bool(_biases(attention))
        return is_more and _gradients(turned(tile, attention), attention) > _GRADIENT_REGISTERS
    return min(tile.warps, turned(tile, attention).warps) < _LEAST_WARPS or (
        tile.stages > 1 and bool(_biases(attention))
    )


def _backward_bytes(tile: Tile, attention: Attention) -> int:
    """Shared memory, about: operands of both sides, those of the loop in stages, and weights on their way."""
    size, columns, back = attention.v.buffer.dtype.itemsize, _columns(attention), turned(tile, attention)
    operands = ((tile.queries + tile.keys * tile.stages), (back.keys + back.queries * back.stages))
    scores = (x.queries * x.keys * (2 * size + x.stages * sum(_biases(attention))) for x in (tile, back))
    return max(rows * columns * size + more for rows, more in zip(operands, scores, strict=True))


def _columns(attention: Attention) -> int:
    """Of keys and values together, as blocks."""
    return sum(block for extent in (attention.depth, attention.width) for _, block in parts(extent))


def _listed(table: dict[int, tuple[Tile, ...]], attention: Attention) -> tuple[Tile, ...]:
    wide = max(sum(size for _, size in parts(columns)) for columns in (attention.depth, attention.width))
    return next((table[limit] for limit in table if wide <= limit), (_SMALLEST,))


def _cut(tile: Tile, attention: Attention) -> Tile:
    """A tile no larger than the scores are."""
    queries, keys = (max(_FEWEST, power(var.extent)) for var in (attention.row, attention.key))
    stages = tile.stages if attention.key.extent > tile.keys else 1
    smaller = Tile(min(tile.queries, queries), min(tile.keys, keys), tile.warps, stages)
    return smaller if tile.queries == smaller.queries or smaller.queries >= _FEW_QUERIES else replace(smaller, warps=4)


def _is_idle(tile: Tile, attention: Attention, gpu: Gpu) -> bool:
    """Whether its programs leave processors without work that smaller blocks of queries would give them."""
    return tile.queries > _FEW_QUERIES and programs(tile, attention) < gpu.processors


def programs(tile: Tile, attention: Attention) -> int:
    """How many programs there are."""
    count = -(-attention.row.extent // tile.queries)
    for var in attention.lead:
        count *= var.extent
    return count


def fits(tile: Tile, attention: Attention, gpu: Gpu) -> bool:
    """Whether shared memory and registers hold a tile, by what they are known to have to hold at least."""
    size = attention.v.buffer.dtype.itemsize
    depth, width = (sum(block for _, block in parts(columns)) for columns in (attention.depth, attention.width))
    queries = tile.queries * depth * size
    # Products of Hopper read blocks after the next ones are on their way.
    ahead = tile.stages if gpu.capability >= 90 else max(tile.stages - 1, 1)
    keys = ahead * tile.keys * (depth + width) * size
    extra = ahead * sum(tile.queries * tile.keys * each for each in _biases(attention))
    registers = tile.queries * (width + tile.keys) // (tile.warps * 32)
    return queries + keys + extra <= gpu.shared_bytes and registers <= _REGISTERS


def _biases(attention: Attention) -> Sequence[int]:
    """Bytes an element of what `f` loads for every score: pipelined as keys are."""
    held = {buffer.name: buffer.dtype for buffer in attention.buffers}
    both = {attention.row, attention.key}
    return [held[load.buffer].itemsize for load in attention.loads() if both <= variables([load])]


def parts(columns: int) -> list[tuple[int, int]]:
    """Columns as one or two blocks of 16, 32, 64, ...: (first, size) each.

    64 -> (0, 64)      80 -> (0, 64), (64, 16)      24 -> (0, 32)      112 -> (0, 128)
    """
    whole = max(_FEWEST, power(columns))
    first = whole // 2
    second = max(_FEWEST, power(columns - first))
    return [(0, first), (first, second)] if first >= _FEWEST and first + second < whole else [(0, whole)]


def power(size: int) -> int:
    """The power of two that holds a size."""
    return 1 << max(size - 1, 0).bit_length()
