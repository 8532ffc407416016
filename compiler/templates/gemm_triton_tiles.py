"""Tiles of the Triton product kernel: which exist, which are legal for a product, and which are worth measuring.

An estimate in cycles of one multiprocessor orders them; a few of the best are then measured (see `gemm_triton_fuse`).

    waves of programs  *  (multiplications of those that share a multiprocessor  +  what nothing overlaps)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...rewrites.layout import missing
from ..ir.value import Op, walk
from .attention_tiles import Gpu
from .product import Matrix, Product

_BYTES_PER_CYCLE = 16  # of memory, for each multiprocessor
_START = 1500  # cycles until the first operands are there, and for leaving
_LIBRARY = 0.7  # of the rate that libraries reach
_REGISTERS = 64 << 10  # of a multiprocessor
_FEW_SHARED = 1 << 10  # bytes that the system keeps of each program's shared memory
_LIGHT, _SPILLED = 6, 0.85  # values of an epilogue beside whose registers large tiles slow down, and how much
_HELD = {"normal_cdf": 6}  # values that an operation holds, where it is a polynomial rather than an instruction or two
_MIN_SHARE = 2  # of the tiles measured, at least one in so many has its operands read in the other way


@dataclass(frozen=True)
class GemmTile:
    """One configuration.

    Args:
        rows, columns: of a program's part of the result; `depth`: of a step.
        warps: of a program; `stages`: steps whose operands are on their way at a time.
        descriptors: programs stay, take one tile after the other, and have the GPU's own unit copy operands (TMA).
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    descriptors: bool = False

    def __str__(self) -> str:
        kind = "_tma" if self.descriptors else ""
        return f"{self.rows}x{self.columns}x{self.depth}_{self.warps}w{self.stages}s{kind}"

    def count(self, product: Product) -> int:
        """How many tiles a product has."""
        rows, columns = -(-product.row.extent // self.rows), -(-product.column.extent // self.columns)
        return rows * columns * product.batch.extent

    def shared(self, itemsize: int) -> int:
        """Bytes of shared memory that the operands of a program take."""
        return self.stages * (self.rows + self.columns) * self.depth * itemsize


_HOPPER = (
    GemmTile(128, 256, 64, 8, 3), GemmTile(256, 128, 64, 8, 3), GemmTile(128, 128, 64, 8, 4),
    GemmTile(128, 128, 64, 8, 3), GemmTile(128, 128, 64, 4, 3), GemmTile(64, 256, 64, 8, 3),
    GemmTile(64, 256, 64, 4, 3), GemmTile(128, 64, 64, 4, 4), GemmTile(64, 128, 64, 4, 4), GemmTile(64, 64, 64, 4, 5),
    GemmTile(64, 64, 128, 4, 3), GemmTile(32, 64, 128, 4, 4), GemmTile(16, 64, 128, 4, 4), GemmTile(64, 32, 128, 4, 4),
)  # fmt: skip
_AMPERE = (
    GemmTile(128, 256, 32, 8, 3), GemmTile(256, 128, 32, 8, 3), GemmTile(128, 128, 64, 8, 3),
    GemmTile(128, 128, 32, 4, 4), GemmTile(128, 64, 32, 4, 4), GemmTile(64, 128, 32, 4, 4), GemmTile(64, 64, 64, 4, 3),
    GemmTile(32, 64, 64, 4, 4), GemmTile(16, 64, 128, 4, 3), GemmTile(64, 32, 64, 4, 4),
)  # fmt: skip


def gemm_tiles(product: Product, gpu: Gpu, count: int) -> list[GemmTile]:
    """The tiles worth measuring, the one to take unmeasured first."""
    ordered = _varied(sorted(_legal(product, gpu), key=lambda tile: estimate(product, tile, gpu)))
    sure = [
        tile
        for kind in (False, True)
        for tile in [tile for tile in ordered if tile.descriptors == kind][: max(count // _MIN_SHARE, 1)]
    ]
    sure = sorted(sure, key=ordered.index)[:count]
    more = [tile for tile in ordered if tile not in sure]
    return sorted([*sure, *more[: count - len(sure)]], key=ordered.index)


def _varied(tiles: list[GemmTile]) -> list[GemmTile]:
    """The same tiles, those last that differ from a better one in little: an estimate tells these apart badly."""
    seen: set[tuple[bool, frozenset[int]]] = set()
    first: list[GemmTile] = []
    last: list[GemmTile] = []
    for tile in tiles:
        key = (tile.descriptors, frozenset((tile.rows, tile.columns)))
        (last if key in seen else first).append(tile)
        seen.add(key)
    return [*first, *last]


def neighbours(product: Product, tile: GemmTile, gpu: Gpu) -> list[GemmTile]:
    """Legal tiles that differ from one in one thing."""
    changed = [
        replace(tile, **{name: size})
        for name in ("rows", "columns", "depth")
        for size in (getattr(tile, name) // 2, getattr(tile, name) * 2)
    ]
    changed += [replace(tile, warps=n) for n in (tile.warps // 2, tile.warps * 2)]
    changed += [replace(tile, stages=n) for n in (tile.stages - 1, tile.stages + 1)]
    changed.append(replace(tile, descriptors=not tile.descriptors))
    return [made for made in changed if fits(product, made, gpu)]


def _legal(product: Product, gpu: Gpu) -> Iterator[GemmTile]:
    wide = product.a.buffer.dtype.itemsize // 2  # as many bytes a step whatever the dtype
    for known in _HOPPER if gpu.capability >= 90 else _AMPERE:
        tile = replace(known, depth=known.depth // wide)
        for made in (tile, replace(tile, descriptors=True)):
            if fits(product, made, gpu):
                yield made


def fits(product: Product, tile: GemmTile, gpu: Gpu) -> bool:
    """Whether a kernel with this tile can be made for this GPU."""
    in_range = min(tile.rows, tile.columns, tile.depth) >= 16 and max(tile.rows, tile.columns) <= 256
    if not in_range or tile.depth > 128 or tile.warps not in (4, 8) or tile.stages < 2:
        return False
    if tile.rows * tile.columns > 128 * 32 * tile.warps:  # sums in a thread's registers
        return False
    itemsize = product.a.buffer.dtype.itemsize
    kept = tile.rows * tile.columns * product.out.dtype.itemsize if tile.descriptors else 0  # on the way to memory
    if tile.shared(itemsize) + kept + _FEW_SHARED > gpu.shared_bytes:
        return False
    return not tile.descriptors or can_describe(product, gpu)


def can_describe(product: Product, gpu: Gpu) -> bool:
    """Whether the unit that copies tiles can read both operands: rows side by side, multiples of 16 bytes apart."""
    if gpu.capability < 90 or product.batch.extent > 1:
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


def estimate(product: Product, tile: GemmTile, gpu: Gpu) -> float:
    """Cycles that a product takes with a tile, roughly."""
    itemsize = product.a.buffer.dtype.itemsize
    steps = -(-product.depth // tile.depth) * tile.depth
    held = sum(_HELD.get(value.name, 1) if isinstance(value, Op) else 1 for value in walk([product.value]))
    crowded = held > _LIGHT and tile.rows * tile.columns >= 128 * 256
    efficiency = _efficiency(tile, gpu) * (_SPILLED if crowded else 1.0)
    multiply = 2.0 * tile.rows * tile.columns * steps / (_rate(gpu, itemsize) * efficiency)
    finish = tile.rows * tile.columns * epilogue_bytes(product) / _BYTES_PER_CYCLE
    tiles = tile.count(product)
    if tile.descriptors:
        return -(-tiles // gpu.processors) * (multiply + finish) + 2 * _START
    registers = (tile.rows * tile.columns // (32 * tile.warps) + 64) * 32 * tile.warps
    shared = tile.shared(itemsize) + _FEW_SHARED
    together = max(min(gpu.shared_bytes // shared, _REGISTERS // registers, 4), 1)
    # A last wave that is not full has fewer programs on each multiprocessor.
    waves, rest = divmod(tiles, gpu.processors * together)
    last = -(-rest // gpu.processors)
    overhead = _START + finish
    return waves * (together * multiply + overhead) + (last * multiply + overhead if rest else 0)


def fused_gain(product: Product, gpu: Gpu, lost: int = 0) -> float:
    """What an epilogue saves at least, of the time that the product itself takes, roughly.

    A kernel of its own would read the product again, which is written only where somebody else reads it, too.

    Args:
        product: what is computed.
        gpu: where.
        lost: passes over the result that become necessary: of loops that would compute it in passing.
    """
    whole = product.batch.extent * product.row.extent * product.column.extent
    passes = (1 if product.more else 2) - lost
    saved = passes * whole * product.a.buffer.dtype.itemsize / (_BYTES_PER_CYCLE * gpu.processors) + 2 * _START
    rate = _rate(gpu, product.a.buffer.dtype.itemsize)
    return saved * rate * _LIBRARY * gpu.processors / (2.0 * product.multiplications)


def is_aligned(product: Product) -> bool:
    """Whether neighbouring lines of all three matrices lie multiples of 16 bytes apart, as libraries like it."""
    steps = []
    for x in (product.a, product.b):
        steps += [step for step in (x.batch, x.row, x.column) if step != 1]
    return not any(missing(step, product.a.buffer.dtype.itemsize) for step in (*steps, product.column.extent))


def epilogue_bytes(product: Product) -> float:
    """Bytes that the epilogue moves for each element of the result, roughly: operands of few elements are not seen."""
    whole = product.batch.extent * product.row.extent * product.column.extent
    read = sum(b.dtype.itemsize for b in product.buffers if _elements(b.sizes) >= whole)
    return read + sum(result.buffer.dtype.itemsize for result in product.results)


def _elements(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _rate(gpu: Gpu, itemsize: int) -> int:
    """Floating-point operations in a cycle of a multiprocessor."""
    of_halves = 4096 if gpu.capability >= 90 else 2048 if gpu.capability == 80 else 1024
    return of_halves * 2 // itemsize


def _efficiency(tile: GemmTile, gpu: Gpu) -> float:
    """What part of the rate a tile reaches: wide ones read less of shared memory for each multiplication."""
    area = tile.rows * tile.columns
    base = 0.8 if area >= 128 * 256 else 0.72 if area >= 128 * 128 else 0.58 if area >= 64 * 128 else 0.42
    if tile.rows < 64 and gpu.capability >= 90:  # the older instructions
        base /= 2
    if not tile.descriptors and gpu.capability >= 90:  # addresses are computed by the warps that multiply
        base *= 0.85
    if area >= 128 * 32 * tile.warps and not tile.descriptors:  # no registers left for addresses
        base *= 0.9
    return base * min(1.0, tile.rows / 32)
