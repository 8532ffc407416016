"""Tiles of the convolution kernel: which are legal, which are worth measuring; the time that an epilogue saves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...gpu import Gpu
from ..gemm.triton_candidates import best_tiles, changes, preferred
from ..gemm.triton_cost import REGISTERS, START, efficiency, epilogue_bytes, tensor_rate
from ..gemm.triton_tiles import FEW_SHARED, GemmTile, fits
from .description import Convolution
from .triton_implicit_gemm import takes_boxes

# Rows are pixels. Depths are those of 16 bits, and become smaller where channels are fewer.
_POINTERS = (
    GemmTile(128, 256, 64, 8, 3), GemmTile(256, 128, 64, 8, 3), GemmTile(128, 128, 64, 8, 3),
    GemmTile(128, 128, 32, 4, 4), GemmTile(256, 64, 64, 8, 3), GemmTile(128, 64, 64, 4, 4), GemmTile(64, 128, 64, 4, 4),
    GemmTile(64, 64, 64, 4, 4), GemmTile(128, 32, 64, 4, 4), GemmTile(64, 32, 64, 4, 4), GemmTile(128, 16, 64, 4, 4),
)  # fmt: skip
_BOXES = (
    GemmTile(128, 256, 64, 8, 3, True), GemmTile(256, 128, 64, 8, 3, True), GemmTile(128, 128, 64, 8, 4, True),
    GemmTile(128, 128, 64, 4, 3, True), GemmTile(256, 64, 64, 4, 3, True), GemmTile(256, 64, 64, 8, 3, True),
    GemmTile(128, 64, 64, 4, 4, True), GemmTile(64, 128, 64, 4, 4, True),
)  # fmt: skip
_WIDE = 128  # rows and columns of tiles that read little for each multiplication
_NARROW = 1.3  # how much longer tiles take that read as much for fewer multiplications
_FEWEST_BYTES = 4  # that the GPU copies to shared memory beside multiplications
_LANES_AT_ONCE = 128 * 64
_FEWEST_COLUMNS = 64  # of boxes: the rows of a matrix that the tensor cores of Hopper multiply


def convolution_tiles(convolution: Convolution, gpu: Gpu, count: int) -> list[GemmTile]:
    """The tiles worth measuring, the one to take unmeasured first."""
    tiles = sorted(_legal(convolution, gpu), key=lambda tile: estimate(convolution, tile, gpu))
    return best_tiles(preferred(tiles, gpu), count)


def estimate(convolution: Convolution, tile: GemmTile, gpu: Gpu) -> float:
    """Cycles that a convolution takes with a tile, roughly (as measured on an H200): waves of programs."""
    itemsize = convolution.dtype.itemsize
    operations = 2.0 * tile.rows * tile.columns * tile.depth * convolution.steps(tile.depth)
    multiply = operations / (tensor_rate(gpu, itemsize) * _efficiency(convolution, tile, gpu))
    finish = tile.rows * tile.columns * epilogue_bytes(convolution) / gpu.bytes_per_cycle
    tiles = tile.count(convolution)
    if tile.descriptors:
        return -(-tiles // gpu.processors) * (multiply + finish) + 2 * START
    registers = (tile.rows * tile.columns // (32 * tile.warps) + 64) * 32 * tile.warps
    together = max(min(gpu.shared_bytes // (tile.shared(itemsize) + FEW_SHARED), REGISTERS // registers, 4), 1)
    # A last wave that is not full has fewer programs on each multiprocessor.
    waves, rest = divmod(tiles, gpu.processors * together)
    last, overhead = -(-rest // gpu.processors), START + finish
    return waves * (together * multiply + overhead) + (last * multiply + overhead if rest else 0)


def _efficiency(convolution: Convolution, tile: GemmTile, gpu: Gpu) -> float:
    """The share of the rate of tensor cores that a tile reaches."""
    area = tile.rows * tile.columns
    if convolution.merged and convolution.channels * convolution.dtype.itemsize % _FEWEST_BYTES:
        # Single elements are loaded, which more programs hide better.
        return efficiency(tile, gpu) / (1 + area / _LANES_AT_ONCE)
    return efficiency(tile, gpu) / (_NARROW if min(tile.rows, tile.columns) < _WIDE else 1.0)


def convolution_neighbours(convolution: Convolution, tile: GemmTile, gpu: Gpu) -> list[GemmTile]:
    """Legal tiles that differ from one in one thing."""
    return preferred([made for made in changes(tile) if convolution_fits(convolution, made, gpu)], gpu)


def _legal(convolution: Convolution, gpu: Gpu) -> Iterator[GemmTile]:
    depth = step_depth(convolution)
    for known in (*_POINTERS, *_BOXES):
        tile = replace(known, depth=min(known.depth * 2 // convolution.a.buffer.dtype.itemsize, depth))
        if convolution_fits(convolution, tile, gpu):
            yield tile


def convolution_fits(convolution: Convolution, tile: GemmTile, gpu: Gpu) -> bool:
    """Whether a kernel with this tile can be made for this GPU."""
    if tile.splits > 1:
        return False
    if not tile.descriptors:
        return fits(convolution, tile, gpu)
    on_the_way = tile.rows * tile.columns * convolution.out.dtype.itemsize
    smaller = replace(gpu, shared_bytes=gpu.shared_bytes - on_the_way)
    within = tile.columns >= _FEWEST_COLUMNS and fits(convolution, replace(tile, descriptors=False), smaller)
    return within and takes_boxes(convolution, tile.depth, gpu)


def step_depth(convolution: Convolution) -> int:
    """The depth of steps that the channels at a place of the window fill best: 64, 32 or 16."""
    return min((64, 32, 16), key=lambda depth: (-(-convolution.run // depth) * depth, -depth))
