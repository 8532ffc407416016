"""Sizes of a product's tiles: what of it is in registers, in the first and in the second cache at a time."""

from __future__ import annotations

from dataclasses import dataclass

_REGISTERS = {16: (8, 24), 8: (4, 12), 4: (4, 12)}  # rows and accumulators at most, by lanes
_MOST_VECTORS = 8
_DEPTH = 1536  # up to here, a panel of all of b's rows stays in the second cache beside rows of a
_DEPTH_STEP = 1024
_BLOCK_BYTES = 512 << 10  # of a: about half of the second cache


@dataclass(frozen=True)
class GemmTiling:
    """Sizes of the tiles, all static.

    Args:
        lanes: floats a vector.
        strip: rows of a register tile; `block`: rows of a block, a multiple of it.
        panel: vectors of columns a register tile has; `vectors`: of the whole matrix.
        step: how much of the depth is summed at a time.
    """

    lanes: int
    strip: int
    block: int
    panel: int
    vectors: int
    step: int

    @property
    def pitch(self) -> int:
        """Elements from one row of a tile in memory to the next."""
        return self.panel * self.lanes

    @property
    def panels(self) -> int:
        """How many panels cover the columns; the last may be narrower."""
        return -(-self.vectors // self.panel)


def gemm_tiling(rows: int, columns: int, depth: int, lanes: int) -> GemmTiling:
    """Tiles for a product on vectors of `lanes` floats.

    128 x 768 x 768  ->  strips of 8 rows, panels of 3 vectors        1 x 768 x 768  ->  1 row, 8 vectors
    """
    most_rows, accumulators = _REGISTERS[lanes]
    strips = -(-rows // most_rows)
    strip = -(-rows // strips)
    vectors = -(-columns // lanes)
    panel = min(accumulators // strip, _MOST_VECTORS, vectors)
    step = depth if depth <= _DEPTH else _even(depth, _DEPTH_STEP)
    block = strip * _even(strips, max(_BLOCK_BYTES // (strip * min(step, depth) * 4), 1))
    return GemmTiling(lanes, strip, block, panel, vectors, step)


def _even(size: int, most: int) -> int:
    """The size of equal parts, none of them larger than `most`."""
    parts = -(-size // most)
    return -(-size // parts)
