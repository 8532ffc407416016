"""The tiles of the Triton product kernel that are worth measuring: the best by the estimate, unlike each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...gpu import Gpu
from ...ir.iteration_space import power_of_two
from .description import FEWEST, LANES_ROWS, Product
from .triton_cost import apart, estimate, estimate_lanes, is_skinny
from .triton_tiles import LANES_DEEPEST, GemmTile, are_halves, fits, read_bytes

_HOPE = 1.1  # of the estimated time of what there is: with that it may still be faster
_ALIKE = 1.15  # of the least estimate: tiles without tensor cores that may well be the fastest
_MIN_SHARE = 2  # of the tiles measured, at least one in so many has its operands read in the other way

_HOPPER = (
    GemmTile(128, 256, 64, 8, 3), GemmTile(256, 128, 64, 8, 3), GemmTile(128, 128, 64, 8, 4),
    GemmTile(128, 128, 64, 8, 3), GemmTile(128, 128, 64, 4, 3), GemmTile(64, 256, 64, 8, 3),
    GemmTile(64, 256, 64, 4, 3), GemmTile(128, 64, 64, 4, 4), GemmTile(64, 128, 64, 4, 4), GemmTile(64, 64, 64, 4, 5),
    GemmTile(64, 64, 128, 4, 3), GemmTile(32, 64, 128, 4, 4), GemmTile(16, 64, 128, 4, 4), GemmTile(64, 32, 128, 4, 4),
    # Few rows: what counts is how much of the other operand is on its way.
    GemmTile(16, 32, 256, 4, 4), GemmTile(16, 32, 128, 4, 5), GemmTile(16, 128, 128, 4, 4), GemmTile(32, 32, 256, 4, 4),
    GemmTile(64, 128, 128, 4, 3), GemmTile(16, 16, 256, 1, 4),
)  # fmt: skip
_AMPERE = (
    GemmTile(128, 256, 32, 8, 3), GemmTile(256, 128, 32, 8, 3), GemmTile(128, 128, 64, 8, 3),
    GemmTile(128, 128, 32, 4, 4), GemmTile(128, 64, 32, 4, 4), GemmTile(64, 128, 32, 4, 4), GemmTile(64, 64, 64, 4, 3),
    GemmTile(32, 64, 64, 4, 4), GemmTile(16, 64, 128, 4, 3), GemmTile(64, 32, 64, 4, 4),
    GemmTile(16, 32, 256, 4, 3), GemmTile(32, 32, 128, 4, 4),
)  # fmt: skip
# Without tensor cores: how much a program has on its way counts, and how many of them there are. By whether neighbours
# along the depth lie side by side, or columns do.
_DEEP = (
    GemmTile(1, 2, 1024, 4, 4), GemmTile(1, 2, 512, 2, 4), GemmTile(1, 4, 1024, 8, 4), GemmTile(1, 1, 2048, 4, 4),
    GemmTile(1, 4, 1024, 4, 1), GemmTile(1, 2, 1024, 4, 1), GemmTile(1, 8, 512, 8, 4), GemmTile(1, 4, 512, 4, 4),
    GemmTile(1, 1, 512, 2, 4), GemmTile(1, 2, 256, 2, 4), GemmTile(1, 1, 256, 1, 4),
)  # fmt: skip
# The same of bytes, as many steps on their way as there are: columns, step, warps. The first of few programs have too
# few warps for memory to be busy: they are for wide products.
_DEEP_BYTES = (
    (8, 512, 2), (4, 512, 1), (4, 512, 2), (8, 1024, 4), (8, 2048, 8), (4, 2048, 8), (2, 2048, 4), (2, 1024, 4),
    (2, 1024, 2), (2, 512, 1), (1, 2048, 4), (1, 1024, 4),
)  # fmt: skip
# The same where tensor cores multiply what lanes hold: of halves of bytes, or for several rows. Bytes of one row wait
# for memory, not for lanes. Asked about last: alone they take up to a tenth less, but the only whole step of decoding
# that ran with them took twice the time of one without, and what they are measured by is a kernel alone.
_CORES_BYTES = ((8, 256, 1), (4, 512, 2), (8, 1024, 4), (2, 1024, 4), (4, 2048, 8), (2, 2048, 8), (1, 1024, 4))
_MOST_STEPS, _FEWEST_WARPS = 8, 12  # of a lane, and on each multiprocessor
_WIDE = (
    GemmTile(1, 64, 32, 4, 4), GemmTile(1, 64, 64, 8, 4), GemmTile(1, 128, 16, 4, 4), GemmTile(1, 32, 64, 4, 4),
    GemmTile(1, 64, 32, 4, 1), GemmTile(1, 32, 128, 8, 4), GemmTile(1, 256, 16, 8, 2),
)  # fmt: skip
_SPLITS = (2, 4, 8, 16)
_FEWEST = 16, 32  # rows and columns of a tile that every product may have
_BESIDE = 4  # parts of tiles on a multiprocessor, at most: more would wait for each other


def gemm_tiles(product: Product, gpu: Gpu, count: int) -> list[GemmTile]:
    """The tiles worth measuring, the one to take unmeasured first; of few rows, also tiles without tensor cores."""
    found = preferred(sorted(_legal(product, gpu), key=lambda tile: estimate(product, tile, gpu)), gpu)
    lanes = _lanes_of_bytes(product, gpu)
    of_bytes = bool(lanes)
    lanes = lanes or _about_alike({tile: estimate_lanes(product, tile, gpu) for tile in _lanes(product, gpu)})
    lanes = [] if gpu.tma == "always" and any(tile.descriptors for tile in found) else lanes
    if not lanes or not found:
        return lanes[:count] or best_tiles(found, count)
    most = count // (6 if of_bytes else 2 if product.row.extent > 1 else 3)
    return [*lanes[: count - most], *best_tiles(found, most)[:most]]


def _about_alike(estimates: dict[GemmTile, float]) -> list[GemmTile]:
    """Tiles by estimate, those that it hardly tells apart as they come."""
    least = min(estimates.values(), default=0.0)
    return sorted(estimates, key=lambda tile: max(estimates[tile] / least, _ALIKE))


def _lanes_of_bytes(product: Product, gpu: Gpu) -> list[GemmTile]:
    """Tiles without tensor cores for weights of bytes along the depth, the best first; measured, not estimated."""
    deep = product.b.row == 1 or product.b.column != 1
    if product.row.extent > LANES_ROWS or not deep or read_bytes(product.b, product.right) != 1:
        return []
    cores = _CORES_BYTES if are_halves(product) or product.row.extent > 1 else ()
    return [*_busy(product, gpu, _DEEP_BYTES, False), *_busy(product, gpu, cores, True)]


def _busy(product: Product, gpu: Gpu, known: Iterable[tuple[int, int, int]], cores: bool) -> list[GemmTile]:
    """The tiles (columns, step and warps) that fit, and have warps enough for all multiprocessors."""
    rows, found = 1 << (product.row.extent - 1).bit_length(), []
    for columns, depth, warps in known:
        steps = -(-product.depth // depth)
        tile = GemmTile(rows, columns, depth, warps, steps, cores=cores)
        busy = tile.count(product) * warps >= _FEWEST_WARPS * gpu.processors
        if steps <= _MOST_STEPS and busy and depth <= product.depth and fits(product, tile, gpu):
            found.append(tile)
    return found


def _lanes(product: Product, gpu: Gpu) -> Iterator[GemmTile]:
    """Legal tiles without tensor cores."""
    rows = product.row.extent
    if rows > LANES_ROWS:
        return
    wide = max(product.dtype.itemsize // 2, 1)
    bytes_are_read = read_bytes(product.b, product.right) == 1  # twice as many are on their way at a time
    for known in _DEEP if product.b.row == 1 or product.b.column != 1 else _WIDE:
        deepest = max(power_of_two(product.depth), 16)
        depth = min(2 * known.depth, LANES_DEEPEST) if bytes_are_read else known.depth // wide
        tile = replace(known, rows=1 << (rows - 1).bit_length(), depth=min(depth, deepest))
        # One step of one column each: alone as fast as others, slower where the next kernel's programs wait for room.
        small = tile.columns == 1 and tile.depth >= product.depth and tile.count(product) > _BESIDE * gpu.processors
        if fits(product, tile, gpu) and not small:
            yield tile
            yield from _split(product, tile, gpu)


def preferred(tiles: list[GemmTile], gpu: Gpu) -> list[GemmTile]:
    """The tiles among these that the GPU's own unit copies, where nothing else is wanted and there are any."""
    copied = [tile for tile in tiles if tile.descriptors]
    return copied if copied and gpu.tma == "always" else tiles


def best_tiles(tiles: list[GemmTile], count: int) -> list[GemmTile]:
    """Some of the tiles, which come in the order of an estimate; both ways to read operands among them."""
    ordered = _varied(tiles)
    sure = [
        tile
        for kind in (False, True)
        for tile in [tile for tile in ordered if tile.descriptors == kind][: max(count // _MIN_SHARE, 1)]
    ]
    sure = sorted(sure, key=ordered.index)[:count]
    more = [tile for tile in ordered if tile not in sure]
    return sorted([*sure, *more[: count - len(sure)]], key=ordered.index)


def promises(computed: Product, plain: Product, gpu: Gpu) -> bool:
    """Whether computing operands as they are read may take less time than kernels of their own, and `plain`."""
    tiles, others = gemm_tiles(computed, gpu, 1), gemm_tiles(plain, gpu, 1)
    if not tiles or not others:
        return False
    both = _estimated(plain, others[0], gpu) + apart(computed, gpu)
    return _estimated(computed, tiles[0], gpu) < _HOPE * both


def _estimated(product: Product, tile: GemmTile, gpu: Gpu) -> float:
    return (estimate_lanes if tile.by_lanes else estimate)(product, tile, gpu)


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
    return preferred([made for made in changes(tile) if fits(product, made, gpu)], gpu)


def changes(tile: GemmTile) -> list[GemmTile]:
    """Tiles that differ from one in one thing."""
    changed = [
        replace(tile, **{name: size})
        for name in ("rows", "columns", "depth")
        for size in (getattr(tile, name) // 2, getattr(tile, name) * 2)
        if name != "rows" or (min(size, tile.rows) >= FEWEST)
    ]
    changed += [replace(tile, warps=n) for n in (tile.warps // 2, tile.warps * 2)]
    changed += [replace(tile, stages=n) for n in (tile.stages - 1, tile.stages + 1)]
    changed.append(replace(tile, descriptors=not tile.descriptors))
    return changed + [replace(tile, splits=n) for n in (tile.splits // 2, tile.splits * 2) if n]


def _legal(product: Product, gpu: Gpu) -> Iterator[GemmTile]:
    wide = product.dtype.itemsize // 2  # as many bytes a step whatever the dtype
    pointers_only = is_skinny(product) and gpu.tma != "always"
    for known in _HOPPER if gpu.capability >= 90 else _AMPERE:
        tile = replace(known, depth=known.depth // wide)
        if is_skinny(product) and not _is_slim(product, tile):
            continue
        for made in (tile, *(() if pointers_only else (replace(tile, descriptors=True),))):
            if fits(product, made, gpu):
                yield made
                yield from _split(product, made, gpu)


def _is_slim(product: Product, tile: GemmTile) -> bool:
    """Whether a tile has no more rows and columns than there are, more or less."""
    rows, columns = product.row.extent, product.column.extent
    return (tile.rows <= _FEWEST[0] or tile.rows < 2 * rows) and (
        tile.columns <= _FEWEST[1] or tile.columns < 2 * columns
    )


def _split(product: Product, tile: GemmTile, gpu: Gpu) -> Iterator[GemmTile]:
    """The same with the depth in parts, where tiles alone leave multiprocessors idle."""
    tiles = tile.count(product)
    if tiles >= gpu.processors:
        return
    for splits in _SPLITS:
        made = replace(tile, splits=splits)
        if tiles * splits <= _BESIDE * gpu.processors and fits(product, made, gpu):
            yield made
