"""Estimates of the time of a product with a tile, and of a library call, in cycles of one multiprocessor.

waves of programs  *  (multiplications of those that share a multiprocessor  +  latency that nothing overlaps)
"""

from __future__ import annotations

import math

from ...gpu import Gpu
from ...ir.index.index import Index, Loaded, atoms
from ...ir.ops import OPS
from ...ir.value import Load, Op, walk
from .description import FEWEST, LANES_ROWS, Product, Prologue
from .triton_tiles import FEW_SHARED, GemmTile, read_bytes, shared_bytes

_STREAMED = 19 / 16  # times as fast as that: memory where kernels only read
_CACHED_BYTES_PER_CYCLE = 48  # the same of the L2 cache
_LATENCY, _EARLIER_LATENCY = 1300, 800  # cycles of a load from busy memory, on Hopper and before
_LANES = 64  # operations per cycle of a multiprocessor without tensor cores, including those that move operands
_LANES_OF_WARP = 8  # the same for each warp
_SCHEDULED = 200  # cycles of one more program on a multiprocessor
_BESIDE = 1 / 4  # share of the time of faster resources that adds to that of the slowest
_SECOND = 1500  # cycles of a second launch
_WIDE_ROWS = 64  # fewest rows for which Hopper multiplies operands in shared memory
_MOST_TOGETHER = 4  # most programs on a multiprocessor
START = 1500  # cycles until the first operands are loaded, and to end a program
_LIBRARY = 0.7  # share of the peak rate that libraries reach
REGISTERS = 64 << 10  # registers of a multiprocessor
_MOST_WARPS, _MOST_PROGRAMS = 64, 32  # most warps and programs on a multiprocessor
_LIGHT, _SPILLED = 6, 0.85  # most values of an epilogue that need no spilling with large tiles; rate with spilling
FEW = 64  # most rows that tensor cores multiply in the time of loading the other operand
_LARGE = 8 << 20  # fewest bytes of that operand, so that loading takes longer than a launch
_LARGE_FOR_FEW = 1 << 20  # the same for few rows, where a program does little else
_LARGE_FOR_LANES = 1 << 14  # the same without tensor cores: an early launch saves 2 us
_EVEN = 4  # number of waves from which on a partial last wave does not matter
_GATHERED = 20  # cycles per row to add up the sums of a program's threads
_LARGE_TILE = 128 * 256  # elements
_NOTABLE = 85_000  # cycles, 50 microseconds, that all layers of a kind must save together
_RATES = {
    128 * 256: 0.8,
    128 * 128: 0.72,
    64 * 128: 0.58,
    0: 0.42,
}  # share of the tensor cores' rate, by number of elements of a tile
# Factors of that rate: for fewer than `_WIDE_ROWS`; where warps compute addresses; where these find no registers.
_NARROW_RATE, _ADDRESSES_RATE, _CROWDED_RATE = 0.5, 0.85, 0.9


def estimate(product: Product, tile: GemmTile, gpu: Gpu) -> float:
    """Approximate cycles of a product with a tile."""
    busy = 2.0 * START if tile.descriptors else 0.0  # persistent programs: one tile begins while another ends
    waves = _waves(product, tile, gpu)
    cycles = {
        programs: _wave(product, tile, gpu, programs) for programs in set(waves)
    }  # all waves but the last are equal
    busy += sum(map(cycles.__getitem__, waves))
    if tile.splits == 1:
        return busy
    summed = _elements_of(product) * (4 * tile.splits + epilogue_bytes(product))
    return busy + _SECOND + summed / (gpu.bytes_per_cycle * gpu.processors)


def estimate_lanes(product: Product, tile: GemmTile, gpu: Gpu) -> float:
    """Approximate cycles of a tile without tensor cores: bytes that are being loaded, against the latency of memory."""
    programs, rows = tile.count(product) * tile.splits, product.row.extent
    held = tile.depth * tile.columns / (32 * tile.warps)  # elements of one thread
    registers = 32 + held * (rows + min(tile.stages, 2) * product.dtype.itemsize / 4)
    together = min(_MOST_WARPS / tile.warps, REGISTERS / (registers * 32 * tile.warps), _MOST_PROGRAMS)
    each = tile.depth * tile.columns * read_bytes(product.b, product.right)
    there = min(programs / gpu.processors, together)
    latency = _LATENCY if gpu.capability >= 90 else _EARLIER_LATENCY
    steps = tile.span(product.depth) // tile.depth
    rate = min(_STREAMED * gpu.bytes_per_cycle, there * each * (1 + min(tile.stages, steps)) / 2 / latency)
    waves = programs / (gpu.processors * together)
    uneven = -(-waves // 1) / waves if 1 < waves < _EVEN else 1.0
    computed = programs * tile.depth * tile.columns * steps * (rows + work(product.right) + 1)
    busy = max(moved(product) / rate * uneven, computed / (2 * _LANES)) / gpu.processors
    finish = _GATHERED * max(programs / gpu.processors, 1) * rows
    if tile.splits > 1:
        finish += _SECOND + _elements_of(product) * (4 * tile.splits + 4) / (gpu.bytes_per_cycle * gpu.processors)
    return START + latency + busy + finish


def _waves(product: Product, tile: GemmTile, gpu: Gpu) -> list[int]:
    """For each wave, the number of programs that run at the same time."""
    programs = tile.count(product) * tile.splits
    together = 1 if tile.descriptors else _together(product, tile, gpu)
    full, rest = divmod(programs, gpu.processors * together)
    return [gpu.processors * together] * full + [rest] * (rest > 0)


def _together(product: Product, tile: GemmTile, gpu: Gpu) -> int:
    """The number of programs that a multiprocessor runs at the same time."""
    registers = (tile.rows * tile.columns // (32 * tile.warps) + 64) * 32 * tile.warps
    buffers = tile.stages if tile.rows >= _WIDE_ROWS and gpu.capability >= 90 else tile.stages - 1
    shared = shared_bytes(product, tile) * buffers // tile.stages + FEW_SHARED
    return max(min(gpu.shared_bytes // shared, REGISTERS // registers, _MOST_TOGETHER), 1)


def _wave(product: Product, tile: GemmTile, gpu: Gpu, programs: int) -> float:
    """Cycles of programs that run at the same time: the slowest resource, and a part of the time of others."""
    each = -(-programs // gpu.processors)
    share = programs / (tile.count(product) * tile.splits)
    span = tile.span(product.depth)
    rows, columns = min(tile.rows, product.row.extent), min(tile.columns, product.column.extent)
    read = span * (rows * read_bytes(product.a, product.left) + columns * read_bytes(product.b, product.right))
    computed = span * (tile.rows * work(product.left) + tile.columns * work(product.right))
    latency = _LATENCY if gpu.capability >= 90 else _EARLIER_LATENCY
    sides = (
        each * _multiplying(product, tile, gpu),
        max(each * computed / _LANES, computed / (_LANES_OF_WARP * tile.warps)),
        each * read / _CACHED_BYTES_PER_CYCLE,
        share * moved(product) / (_STREAMED * gpu.bytes_per_cycle * gpu.processors),
        span // tile.depth * latency / max(tile.stages - 2, 1),
    )
    *_, second, longest = sorted(sides)
    finish = rows * columns * (epilogue_bytes(product) if tile.splits == 1 else 4) / gpu.bytes_per_cycle
    return longest + _BESIDE * second + finish + each * _SCHEDULED + (0 if tile.descriptors else START)


def _multiplying(product: Product, tile: GemmTile, gpu: Gpu) -> float:
    """Cycles that tensor cores need for one program."""
    held = sum(OPS[value.name].registers if isinstance(value, Op) else 1 for value in walk([product.value]))
    crowded = held > _LIGHT and tile.rows * tile.columns >= _LARGE_TILE
    reached = efficiency(tile, gpu) * (_SPILLED if crowded else 1.0)
    operations = 2.0 * tile.rows * tile.columns * tile.span(product.depth)
    return operations / (tensor_rate(gpu, product.dtype.itemsize) * reached)


def library(product: Product, gpu: Gpu) -> float:
    """Approximate cycles of a library call: the time of multiplications, or of moving data."""
    multiply = 2.0 * product.multiplications / (tensor_rate(gpu, product.dtype.itemsize) * _LIBRARY * gpu.processors)
    return max(multiply, moved(product) / (gpu.bytes_per_cycle * _LIBRARY * gpu.processors))


def cycles_to_move(count: float, gpu: Gpu) -> float:
    """Cycles to move this many bytes."""
    return count / (gpu.bytes_per_cycle * gpu.processors)


def is_notable(count: float, gpu: Gpu) -> bool:
    """Whether all layers of a kind save so much, if they move this many bytes less, that they are worth measuring."""
    return cycles_to_move(count, gpu) >= _NOTABLE


def is_skinny(product: Product) -> bool:
    """Whether memory bandwidth limits the product: one operand is large, and the other has few rows or columns."""
    few = min(product.row.extent, product.column.extent) <= FEW
    large = _LARGE if not has_few_rows(product) else _LARGE_FOR_FEW
    return few and moved(product) >= (_LARGE_FOR_LANES if has_rows_for_lanes(product) else large)


def has_rows_for_lanes(product: Product) -> bool:
    """Whether a product has so few rows that it needs no tensor cores."""
    return has_few_rows(product) and product.row.extent <= LANES_ROWS


def has_few_rows(product: Product) -> bool:
    """Whether a product multiplies few rows with a matrix, as many products of a decoding step do."""
    return product.row.extent <= FEWEST and (product.batch.extent == 1 or is_gathered(product))


def is_gathered(product: Product) -> bool:
    """Whether an index that is read from memory selects the matrices of the right operand."""
    if product.right is None:
        return False
    indices = [n for part in walk([product.right.value]) if isinstance(part, Load) for n in part.indices]
    return any(isinstance(atom, Loaded) for n in indices if isinstance(n, Index) for atom in atoms(n))


def moved(product: Product) -> int:
    """Bytes that any kernel reads and writes: operands and the result, once each."""
    p, read = product, 0
    for x, prologue, n in ((p.a, p.left, p.row.extent * p.depth), (p.b, p.right, p.depth * p.column.extent)):
        buffers = (x.buffer,) if prologue is None else prologue.buffers
        read += sum(min(p.batch.extent * n, math.prod(b.sizes)) * b.dtype.itemsize for b in buffers)
    return read + _elements_of(p) * p.out.dtype.itemsize


def apart(product: Product, gpu: Gpu) -> float:
    """Approximate cycles of separate kernels that compute the operands which prologues would compute."""
    p, cycles = product, 0.0
    for x, prologue, n in ((p.a, p.left, p.row.extent * p.depth), (p.b, p.right, p.depth * p.column.extent)):
        if prologue is not None:
            bytes_moved = p.batch.extent * n * (read_bytes(x, prologue) + prologue.dtype.itemsize)
            cycles += bytes_moved / (gpu.bytes_per_cycle * gpu.processors) + 2 * START
    return cycles


def work(prologue: Prologue | None) -> int:
    """Approximate number of operations for an element of an operand, including its address and the final rounding."""
    if prologue is None:
        return 0
    return 2 + sum(OPS[value.name].registers for value in walk([prologue.value]) if isinstance(value, Op))


def fused_gain(product: Product, gpu: Gpu, lost: int = 0) -> float:
    """The share of the product's own time that an epilogue saves at least, approximately.

    A separate kernel would read the product again. The product is only written if it has other readers.

    Args:
        product: the product.
        gpu: the GPU.
        lost: the number of additional passes over the result, by loops that would have computed it themselves.
    """
    passes = (1 if product.more else 2) - lost
    itemsize = product.dtype.itemsize
    saved = passes * _elements_of(product) * itemsize / (gpu.bytes_per_cycle * gpu.processors) + 2 * START
    return saved / library(product, gpu)


def epilogue_bytes(product: Product) -> float:
    """Approximate bytes that the epilogue moves for each element of the result; small operands do not count."""
    whole = _elements_of(product)
    read = sum(b.dtype.itemsize for b in product.buffers if math.prod(b.sizes) >= whole)
    return read + sum(result.buffer.dtype.itemsize for result in product.results)


def _elements_of(product: Product) -> int:
    return product.batch.extent * product.row.extent * product.column.extent


def tensor_rate(gpu: Gpu, itemsize: int) -> int:
    """Floating-point operations per cycle of a multiprocessor."""
    of_halves = 4096 if gpu.capability >= 90 else 2048 if gpu.capability == 80 else 1024
    return of_halves * 2 // itemsize


def efficiency(tile: GemmTile, gpu: Gpu) -> float:
    """The share of the peak rate that a tile reaches: wide tiles read less shared memory per multiplication."""
    area = tile.rows * tile.columns
    base = next(rate for least, rate in _RATES.items() if area >= least)
    if tile.rows < _WIDE_ROWS and gpu.capability >= 90:  # uses the instructions of earlier GPUs
        base *= _NARROW_RATE
    if not tile.descriptors and gpu.capability >= 90:  # the warps that multiply also compute addresses
        base *= _ADDRESSES_RATE
    if area >= 128 * 32 * tile.warps and not tile.descriptors:  # there are no registers left for addresses
        base *= _CROWDED_RATE
    return base * min(1.0, tile.rows / 32)
