"""Tiles of the Triton product kernel: the parameters to choose, and the tiles that are legal for a product on a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....rewrites.layout import missing
from ...gpu import Gpu
from .description import FEWEST, FLOAT8, LANES_ROWS, Matrix, Product, Prologue
from .fits_cores import fits_cores

FEW_SHARED = 1 << 10  # bytes that the system keeps of each program's shared memory
_DEEPEST = {False: 256, True: 128}  # step, by whether the GPU's own unit copies it
_LONGEST_SIDE = 256  # rows or columns of a tile
_MOST_SPLITS = 16
_WARPS = {False: (1, 2, 4, 8), True: (4, 8)}  # of a program, by whether it has many rows
LANES_DEEPEST, _LANES_HELD = 2048, 160  # without tensor cores: step, words of a lane
_MOST_SUMS = 64 << 20  # bytes of parts' sums: no more than the second cache has, more or less


@dataclass(frozen=True)
class GemmTile:
    """One configuration.

    Args:
        rows, columns: of a program's part of the result; `depth`: of a step. Fewer than 16 rows: without tensor cores.
        warps: of a program; `stages`: steps whose operands are on their way at a time (by lanes: the first that many).
        descriptors: programs stay, take one tile after the other, and have the GPU's own unit copy operands (TMA).
        splits: into how many parts the depth is cut; they are summed by programs of their own, then added up.
        cores: for few rows: tensor cores multiply the elements that each lane holds (see `gemm.triton_cores`).
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    descriptors: bool = False
    splits: int = 1
    cores: bool = False

    def __str__(self) -> str:
        kind = f"{'_tma' if self.descriptors else ''}{'_mma' if self.cores else ''}"
        kind += f"_k{self.splits}" if self.splits > 1 else ""
        return f"{self.rows}x{self.columns}x{self.depth}_{self.warps}w{self.stages}s{kind}"

    @property
    def by_lanes(self) -> bool:
        """Whether each lane has elements of its own, to multiply and sum them (see `gemm.triton_lanes`)."""
        return self.rows < FEWEST

    def count(self, product: Product) -> int:
        """How many tiles a product has."""
        return self.row_tiles(product) * -(-product.column.extent // self.columns) * product.batch.extent

    def row_tiles(self, product: Product) -> int:
        """How many tiles of rows a product has."""
        return product.row_tiles(self.rows, self.descriptors)

    def span(self, depth: int) -> int:
        """How much of the depth a part has: whole steps; the last part may have fewer."""
        steps = -(-depth // self.depth)
        return -(-steps // self.splits) * self.depth

    def shared(self, left: int, right: int | None = None) -> int:
        """Bytes of shared memory that the operands of a program take, given bytes of their elements."""
        right = left if right is None else right
        return self.stages * (self.rows * left + self.columns * right) * self.depth


def fits(product: Product, tile: GemmTile, gpu: Gpu) -> bool:
    """Whether a kernel with this tile can be made for this GPU."""
    if tile.by_lanes:
        return _fits_lanes(product, tile, gpu)
    if product.exact or tile.cores:
        return False
    in_range = min(tile.rows, tile.columns, tile.depth) >= 16 and max(tile.rows, tile.columns) <= _LONGEST_SIDE
    in_range = in_range and tile.warps in _WARPS[tile.rows > FEWEST]
    if not in_range or tile.depth > _DEEPEST[tile.descriptors] or tile.stages < 2:
        return False
    if not _splits(product, tile) or gpu.capability < _float8(product):
        return False
    if tile.rows * tile.columns > 128 * 32 * tile.warps:  # sums in a thread's registers
        return False
    kept = tile.rows * tile.columns * product.out.dtype.itemsize if tile.descriptors else 0  # on the way to memory
    if shared_bytes(product, tile) + kept + FEW_SHARED > gpu.shared_bytes:
        return False
    return not tile.descriptors or can_describe(product, gpu)


def _fits_lanes(product: Product, tile: GemmTile, gpu: Gpu) -> bool:
    """Whether a tile without tensor cores is legal: one for all rows, and its numbers in registers."""
    rows = product.row.extent
    if not rows <= tile.rows < max(2 * rows, 2) or rows > LANES_ROWS or tile.descriptors or tile.columns < 1:
        return False
    if tile.warps not in (1, 2, 4, 8) or not 16 <= tile.depth <= LANES_DEEPEST or gpu.capability < _float8(product):
        return False
    if tile.cores and not fits_cores(product, tile.depth, tile.warps):
        return False
    each = tile.depth * tile.columns // (32 * tile.warps)
    if product.right is not None and read_bytes(product.b, product.right) == 1:
        both = 1 if product.other is None else 2
        of_bytes = each // 2 if tile.cores and are_halves(product) else each
        on_their_way = of_bytes * min(tile.stages, product.steps(tile.depth)) // 4
        if both * (of_bytes * rows + on_their_way) > _LANES_HELD:
            return False
    return each >= 1 and each * rows <= _LANES_HELD and _splits(product, tile)


def are_halves(product: Product) -> bool:
    """Whether a byte that is read holds two elements of the right operand."""
    return 2 * math.prod(product.b.buffer.sizes) <= product.depth * product.column.extent


def shared_bytes(product: Product, tile: GemmTile) -> int:
    """Bytes of shared memory for the operands: as they are multiplied, or as they are read if that is more."""
    sides = ((product.a, product.left), (product.b, product.right))
    left, right = (max(read_bytes(x, prologue), product.dtype.itemsize) for x, prologue in sides)
    return tile.shared(left, right * (1 if product.other is None else 2))


def read_bytes(x: Matrix, prologue: Prologue | None) -> int:
    """Bytes that are read for an element of an operand; buffers of few elements are not counted."""
    if prologue is None:
        return x.buffer.dtype.itemsize
    size = math.prod(x.buffer.sizes)
    return sum(b.dtype.itemsize for b in prologue.buffers if 2 * math.prod(b.sizes) > size)


def _float8(product: Product) -> int:
    """The first compute capability that converts from the dtypes that a product reads; 0 for any."""
    return 89 if any(buffer.dtype in FLOAT8 for buffer in product.reads) else 0


def _splits(product: Product, tile: GemmTile) -> bool:
    """Whether every part of the depth has steps, and the memory for their sums is small."""
    if tile.splits == 1:
        return True
    if not 1 < tile.splits <= _MOST_SPLITS or (tile.splits - 1) * tile.span(product.depth) >= product.depth:
        return False
    whole = product.batch.extent * product.row.extent * product.column.extent
    return 4 * tile.splits * whole <= _MOST_SUMS


def can_describe(product: Product, gpu: Gpu) -> bool:
    """Whether the unit that copies tiles can read both operands: rows side by side, multiples of 16 bytes apart."""
    if not gpu.copies_tiles or product.batch.extent > 1 or product.is_computed:
        return False
    a, b = product.a, product.b
    sides = ((a, product.row.extent, product.depth), (b, product.depth, product.column.extent))
    return all(described(x, rows, columns) is not None for x, rows, columns in sides)


def described(x: Matrix, rows: int, columns: int) -> tuple[int, bool] | None:
    """The stride between neighbouring lines of an operand, and whether these are its columns; None for no such lines.

    rows of (32, 64) strides (64, 1)  ->  (64, False)        of strides (1, 32)  ->  (32, True)
    """
    for step, line, length, turned in ((x.column, x.row, columns, False), (x.row, x.column, rows, True)):
        if step == 1 and line >= length and line * x.buffer.dtype.itemsize % 16 == 0:
            return line, turned
    return None


def is_aligned(product: Product) -> bool:
    """Whether neighbouring lines of all three matrices lie multiples of 16 bytes apart, as libraries like it."""
    if missing(product.column.extent, product.dtype.itemsize):
        return False
    sides = (product.a, product.b)
    return not any(
        missing(step, x.buffer.dtype.itemsize) for x in sides for step in (x.batch, x.row, x.column) if step != 1
    )
