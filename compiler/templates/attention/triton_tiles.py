"""Tile sizes of the Triton attention kernel, by the registers and shared memory for q, k, v and the scores.

`tiles` lists those worth measuring on a GPU, the one to take unmeasured first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from ...gpu import SMALLER, Gpu
from ...ir.iteration_space import power_of_two
from ...ir.value import variables
from .description import Attention

_FEWEST = 16  # fewest rows or columns of a product on tensor cores
_REGISTERS = 220  # registers of a thread, of 255, for the result and the scores
_FEW_QUERIES = 64  # queries of a tile up to which four warps are enough, and smaller tiles gain nothing
_LEAST_WARPS = 8  # fewest warps on GPUs before Hopper, whose registers also hold operands
_GRADIENT_REGISTERS = (
    160  # registers for gradients and scores (see `_gradients`): addresses and row statistics take the others
)


@dataclass(frozen=True)
class Tile:
    """One configuration.

    Args:
        queries, keys: rows and columns of a block of scores.
        warps: the warps of a program; `stages`: the number of blocks of keys that are loaded at a time.
    """

    queries: int
    keys: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.queries}x{self.keys}_{self.warps}w{self.stages}s"


@dataclass(frozen=True)
class BackwardTile(Tile):
    """The same for a backward pass, whose second launch has programs of keys.

    Args:
        by_keys: the tile of the second launch.
    """

    by_keys: Tile

    def __str__(self) -> str:
        return f"{super().__str__()}_{self.by_keys}"


@dataclass(frozen=True)
class SplitTile(Tile):
    """A tile for few queries, all in one block, whose keys are split into parts.

    Args:
        splits: the number of parts, each with programs of its own.
    """

    splits: int

    def __str__(self) -> str:
        return f"{super().__str__()}_{self.splits}"


# By columns of the wider operand; the first that fits is preferred.
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
# For few queries: keys of a block, warps and stages; then programs per multiprocessor.
_SPLIT_BLOCKS = ((64, 4, 3), (128, 4, 2), (32, 4, 4), (128, 8, 3), (64, 8, 2), (32, 4, 2), (16, 4, 2))
_SHARES = (2, 4, 1)
_MOST_ROWS, _LEAST_KEYS, _MOST_SPLITS = 64, 128, 64
# For the backward, by bytes per element, as above.
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
    """Configurations for an attention that fit a GPU, the default first, by its sizes and dtypes."""
    table = _HALVES if attention.v.buffer.dtype.itemsize == 2 else _FLOATS
    cut = dict.fromkeys(_cut(tile, attention) for tile in _listed(table, attention))
    fitting = [tile for tile in cut if fits(tile, attention, gpu)] or [_SMALLEST]
    return sorted(fitting, key=lambda tile: _is_idle(tile, attention, gpu))


def split_tiles(attention: Attention, gpu: Gpu = SMALLER) -> list[SplitTile]:
    """Configurations for few queries and many keys, the default first; none if there are many rows or few keys.

    The number of programs is about what keeps memory busy; each has at least one block of keys.
    """
    rows, keys = max(_FEWEST, power_of_two(attention.row.extent)), attention.key.extent
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
    """The same for the backward, which holds twice as many operands."""
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
    """The tile for programs over keys, no larger than the scores: the given tile, or one derived from it.

    The block that stays has the same size; the block that moves has half of it if two gradients leave too few
    registers.
    """
    one = tile.by_keys if isinstance(tile, BackwardTile) else replace(tile, queries=tile.keys, keys=tile.queries)
    queries = min(one.queries, max(_FEWEST, power_of_two(attention.row.extent)))
    keys = min(one.keys, max(_FEWEST, power_of_two(attention.key.extent)))
    if isinstance(tile, BackwardTile):
        return Tile(queries, keys, one.warps, one.stages if attention.row.extent > queries else 1)
    if _gradients(Tile(queries, keys, tile.warps, 1), attention) >= _GRADIENT_REGISTERS and queries > _FEWEST:
        queries //= 2
    return Tile(queries, keys, tile.warps, tile.stages if attention.row.extent > queries else 1)


def _gradients(by_keys: Tile, attention: Attention) -> int:
    """Registers of a thread for gradients of keys and values, and for two blocks of scores."""
    return by_keys.keys * (_columns(attention) + 2 * by_keys.queries) // (by_keys.warps * 32)


def _is_crowded(tile: Tile, attention: Attention, gpu: Gpu) -> bool:
    """Whether registers spill.

    On Hopper, registers spill if scores need more than the product: random bits or biases. On earlier GPUs, whose
    registers also hold operands, they spill with few warps or with biases that are loaded ahead.
    """
    if gpu.capability >= 90:
        is_more = attention.keep is not None or bool(_biases(attention))
        return is_more and _gradients(turned(tile, attention), attention) > _GRADIENT_REGISTERS
    return min(tile.warps, turned(tile, attention).warps) < _LEAST_WARPS or (
        tile.stages > 1 and bool(_biases(attention))
    )


def _backward_bytes(tile: Tile, attention: Attention) -> int:
    """Approximate shared memory: operands of both sides, those of the loop in stages, and probabilities."""
    size, columns, back = attention.v.buffer.dtype.itemsize, _columns(attention), turned(tile, attention)
    operands = ((tile.queries + tile.keys * tile.stages), (back.keys + back.queries * back.stages))
    scores = (x.queries * x.keys * (2 * size + x.stages * sum(_biases(attention))) for x in (tile, back))
    return max(rows * columns * size + more for rows, more in zip(operands, scores, strict=True))


def _columns(attention: Attention) -> int:
    """The columns of keys and values together, in blocks."""
    return sum(block for extent in (attention.depth, attention.width) for _, block in parts(extent))


def _listed(table: dict[int, tuple[Tile, ...]], attention: Attention) -> tuple[Tile, ...]:
    wide = max(sum(size for _, size in parts(columns)) for columns in (attention.depth, attention.width))
    return next((table[limit] for limit in table if wide <= limit), (_SMALLEST,))


def _cut(tile: Tile, attention: Attention) -> Tile:
    """A tile no larger than the scores."""
    queries, keys = (max(_FEWEST, power_of_two(var.extent)) for var in (attention.row, attention.key))
    stages = tile.stages if attention.key.extent > tile.keys else 1
    smaller = Tile(min(tile.queries, queries), min(tile.keys, keys), tile.warps, stages)
    return smaller if tile.queries == smaller.queries or smaller.queries >= _FEW_QUERIES else replace(smaller, warps=4)


def _is_idle(tile: Tile, attention: Attention, gpu: Gpu) -> bool:
    """Whether its programs leave multiprocessors without work that smaller blocks of queries would use."""
    return tile.queries > _FEW_QUERIES and programs(tile, attention) < gpu.processors


def programs(tile: Tile, attention: Attention) -> int:
    """The number of programs."""
    count = -(-attention.row.extent // tile.queries)
    for var in attention.lead:
        count *= var.extent
    return count


def fits(tile: Tile, attention: Attention, gpu: Gpu) -> bool:
    """Whether a tile fits shared memory and registers, by lower bounds of what it needs."""
    size = attention.v.buffer.dtype.itemsize
    depth, width = (sum(block for _, block in parts(columns)) for columns in (attention.depth, attention.width))
    queries = tile.queries * depth * size
    # On Hopper, products read blocks after the next ones have started loading.
    ahead = tile.stages if gpu.capability >= 90 else max(tile.stages - 1, 1)
    keys = ahead * tile.keys * (depth + width) * size
    extra = ahead * sum(tile.queries * tile.keys * each for each in _biases(attention))
    registers = tile.queries * (width + tile.keys) // (tile.warps * 32)
    return queries + keys + extra <= gpu.shared_bytes and registers <= _REGISTERS


def _biases(attention: Attention) -> Sequence[int]:
    """Bytes per element of the buffers that `f` loads for each score: they are pipelined as keys are."""
    held = {buffer.name: buffer.dtype for buffer in attention.buffers}
    both = {attention.row, attention.key}
    return [held[load.buffer].itemsize for load in attention.loads() if both <= variables([load])]


def parts(columns: int, together: bool = False) -> list[tuple[int, int]]:
    """Columns as one or two blocks of 16, 32, 64, ...: (first, size) each; as one if `together`.

    64 -> (0, 64)      80 -> (0, 64), (64, 16)      24 -> (0, 32)      112 -> (0, 128)
    """
    whole = max(_FEWEST, power_of_two(columns))
    if together:
        return [(0, whole)]
    first = whole // 2
    second = max(_FEWEST, power_of_two(columns - first))
    return [(0, first), (first, second)] if first >= _FEWEST and first + second < whole else [(0, whole)]
