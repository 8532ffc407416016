"""The kernel of a convolution of few channels a group on a GPU: no products of matrices, but sums that reuse loads.

    program of one tile of (boxes of pixels) x (channels), each lane `lines` x `together` neighbours:
        for each line of the image that they look at, of each channel of the group:
            for each column that they look at:    x = image[line, column], once
                acc[v, t] += x * weight[place]    for each neighbour that sees it, float32
        out = f(acc[l, t])

Channels lie side by side, in images as in the weight, so that loads are wide; a window of 7 columns over 4 neighbours
loads 10 columns instead of 28, and one of 7 lines over 2 lines of neighbours 8 lines instead of 14. A line of the
weight is loaded for the first line of neighbours, and kept for those below. Most groups are single channels; a group of
one that gives several, or of a few, is one as well, which libraries compute group by group.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ...codegen.triton import KernelSource
from ...lowering.windows import Sliding
from ..gemm.description import Product
from ..gemm.triton_matmul import GemmTriton, written
from ..gemm.triton_operand import base
from ..gemm.triton_tiles import GemmTile
from .description import Convolution, boxes, splits
from .triton_implicit_gemm import digit, lanes_of_boxes, where

_STAGES = 2  # there is no pipeline: columns are loaded as they are needed
_ELEMENTS = 4  # of a thread, for each neighbour: one load of 8 bytes in 16 bits
# Neighbours along a line, lines of them, and warps, the best first (as measured on an H200).
_WIDE = ((7, 2, 4), (8, 2, 4), (4, 2, 2), (7, 1, 4), (8, 1, 2), (4, 1, 4), (2, 1, 4), (1, 1, 4))
_NARROW = ((4, 3, 4), (8, 2, 4), (2, 3, 4), (7, 2, 4), (4, 1, 4), (2, 1, 4), (1, 1, 4))
_WIDE_WINDOW = 5
_WASTE = (1.05, 1.25)  # lanes for each pixel: hardly any are left over, some are
MOST_UNROLLED = 16  # columns of a window
MOST_SUMMED = 4  # channels of a group


@dataclass(frozen=True, kw_only=True)
class Depthwise(Convolution):
    """A convolution by channels: `column` are all of the result, `depth` the places that each of them looks at.

    Args:
        channels: of the image, in a group.
        multiplier: channels of the result, in a group.
    """

    multiplier: int = 1


@dataclass(frozen=True)
class DepthwiseTile(GemmTile):
    """One configuration.

    Args:
        rows, columns: lanes along boxes of pixels, and along channels.
        depth: neighbours along a line that a lane computes together.
        warps: of a program.
        lines: lines of such neighbours, one below the other.
    """

    lines: int = 1

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}x{self.lines}_{self.warps}w"

    def count(self, product: Product) -> int:
        """How many programs there are."""
        assert isinstance(product, Depthwise)
        return prod(boxes(*_grid(product, self))) * -(-product.column.extent // self.columns)


def depthwise_tiles(convolution: Depthwise, count: int) -> Sequence[DepthwiseTile]:
    """The tiles worth measuring, the one to take unmeasured first."""
    channels, window = convolution.column.extent, convolution.sides[-1].window
    # Wide loads, but few lanes beyond the channels.
    columns = min((64, 32, 16, 8), key=lambda n: -(-channels // n) * n * (1 + 1 / n))
    shapes = _WIDE if window.kernel >= _WIDE_WINDOW else _NARROW
    most = most_lines(convolution)
    found = [
        DepthwiseTile(_ELEMENTS * 32 * warps // columns, columns, together, warps, _STAGES, lines=lines)
        for together, lines, warps in shapes
        if together <= window.out and lines <= most
    ]
    return sorted(found, key=lambda tile: _waste(convolution, tile))[:count]


def _waste(convolution: Depthwise, tile: DepthwiseTile) -> int:
    """A rank of the lanes that have no pixel, since neighbours reach beyond the image: 0 (hardly any), 1 or 2."""
    *_, line = convolution.extents
    lanes = -(-line // tile.depth) * tile.depth / line
    if tile.lines > 1:
        lines = convolution.extents[-2]
        lanes *= -(-lines // tile.lines) * tile.lines / lines
    return sum(lanes > limit for limit in _WASTE)


def most_lines(convolution: Depthwise) -> int:
    """The number of lines of neighbours that a lane may compute.

    Several need windows that are one line apart: a line of the weight then passes from neighbours to those below.
    """
    if len(convolution.sides) != 2 or convolution.channels > 1:
        return 1
    window = convolution.sides[0].window
    return min(window.kernel, window.out) if window.stride == window.dilation == 1 else 1


def depthwise_triton(convolution: Depthwise, tile: DepthwiseTile, label: str = "") -> KernelSource:
    """The kernel's source, see `gemm_triton`.

    Raises:
        UnsupportedDtypeError: the epilogue computes with a dtype that Triton has no type for.
    """
    return written("depthwise", label, _DepthwiseTriton(convolution, tile))


def _grid(convolution: Depthwise, tile: DepthwiseTile) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dims that lanes enumerate: images, lines, groups of neighbours; and the box of them that a program has."""
    *outer, columns = convolution.extents
    if tile.lines > 1:
        outer[-1] = -(-outer[-1] // tile.lines)
    extents = (*outer, -(-columns // tile.depth))
    return extents, _square(extents, tile.rows, tile.depth, tile.lines)


@functools.lru_cache(maxsize=1024)
def _square(extents: tuple[int, ...], rows: int, together: int, lines: int) -> tuple[int, ...]:
    """The box of one image that leaves the least of itself unused; of such, the one that looks at the fewest others."""

    def cost(sizes: tuple[int, ...]) -> float:
        around = prod(size * lines + 4 for size in sizes[1:-1]) * (sizes[-1] * together + 4) * sizes[0]
        return prod(boxes(extents, sizes)) * around

    return min(splits(rows, len(extents)), key=lambda sizes: (cost(sizes), sizes))


class _DepthwiseTriton(GemmTriton):
    def __init__(self, convolution: Depthwise, tile: DepthwiseTile) -> None:
        super().__init__(convolution, tile, 0)
        self._c, self._together, self._below = convolution, tile.depth, tile.lines
        self._extents, self._sizes = _grid(convolution, tile)
        self._block = f"[{tile.rows}, {tile.columns}]"

    def write(self) -> None:
        """Write the body."""
        self._lanes()
        self._sums()
        for below, number in product(range(self._below), range(self._together)):
            with self.writer.apart():
                self._neighbour(below, number)

    def _lanes(self) -> None:
        """The pixels and channels of lanes: `image`, `side0`, ..., and the first of neighbours along the line."""
        columns = -(-self._c.column.extent // self.tile.columns)
        self.line("program = tl.program_id(0)", "g = 0")
        self.line(f"box = program // {columns}", f"lane = tl.arange(0, {self.tile.rows})[:, None]")
        names = list(map(_name, range(len(self._extents))))
        self.line(*lanes_of_boxes(names, self._extents, self._sizes, self.long))
        self.line(f"{self._last} *= {self._together}")
        if self._below > 1:
            self.line(f"{_name(len(self._c.sides) - 1)} *= {self._below}")
        self.line(f"column = program % {columns} * {self.tile.columns}")
        self.line(f"j = (column + tl.arange(0, {self.tile.columns}))[None, :]{self.long}")

    @property
    def _last(self) -> str:
        return _name(len(self._c.sides))

    # -- sums -----------------------------------------------------------------------------------------------------

    def _sums(self) -> None:
        c = self._c
        each = product(range(self._below), range(self._together))
        self.line(*(f"acc{v}_{t} = tl.zeros({self._block}, tl.float32)" for v, t in each))
        channel = "j" if c.channels == c.multiplier == 1 else f"j // {c.multiplier} * {c.channels}"
        self.line(f"a_at = {base(self, c.a)} + image * {c.images} + {channel}")
        for dim, side in enumerate(c.sides, 1):
            self.line(f"first{dim} = {_name(dim)} * {side.window.stride} - {side.window.padding}")
            self.line(f"a_at += first{dim} * {side.image}")
        self.line(f"b_at = {base(self, c.b)} + j")
        for steps, seen in _spans(prod(c.kernel[:-1]) * c.channels, self._below):
            if len(steps) == 1:
                self.line(f"step = {steps[0]}")
                self._one_line(seen)
                continue
            with self.writer.block(f"for step in range({steps[0]}, {steps[-1] + 1})"):
                self._one_line(seen)

    def _one_line(self, seen: range) -> None:
        """Add the products of one line of the image, for the lines of neighbours that see it."""
        c, line = self._c, self._c.sides[-1]
        conditions, moved, weight = ["in_box"], "0", "0"
        for dim, side in enumerate(c.sides[:-1], 1):
            self.line(f"r{dim} = {digit('step', prod(c.kernel[dim:-1]) * c.channels, side.window.kernel, dim == 1)}")
            place = f"first{dim} + r{dim} * {side.window.dilation}"
            conditions += [f"({place} >= 0)"] * side.looks_before
            conditions += [f"({place} < {side.window.size})"] * (side.looks_beyond or self._below > 1)
            moved += f" + r{dim} * {side.window.dilation * side.image}"
            weight += f" + r{dim} * {side.weight}"
        if c.channels > 1:
            self.line(f"channel = step % {c.channels}")
            moved, weight = f"{moved} + channel", f"{weight} + channel * {c.column.extent}"
        self.line(f"in_line = {' & '.join(conditions)}", f"line = a_at + ({moved})", f"places = b_at + ({weight})")
        channels = self.column_mask(self.tile.columns)
        self._weights([s * line.weight for s in range(line.window.kernel)], seen)
        for column, pairs in columns_seen(line.window, self._together):
            place = f"first{len(c.sides)} + {column}"
            borders = [f"({place} >= 0)", f"({place} < {line.window.size})"]
            mask = where("in_line", *borders, channels)
            self.line(f"x = tl.load(line + {column * line.image}{mask}).to(tl.float32)")
            self.line(*(f"acc{v}_{t} = tl.fma(x, w{v}_{s}, acc{v}_{t})" for v in seen for s, t in pairs))

    def _weights(self, places: Sequence[int], seen: range) -> None:
        """The places of a line of the weight: a new line for the first line of neighbours, those before for others."""
        mask = where(self.column_mask(self.tile.columns))
        for s, place in enumerate(places):
            self.line(*(f"w{v}_{s} = w{v - 1}_{s}" for v in reversed(seen) if v))
            if 0 in seen:
                self.line(f"w = tl.load(places + {place}{mask}).to(tl.float32)")
                self.line(f"w0_{s} = tl.broadcast_to(w, {self._block})")

    # -- results --------------------------------------------------------------------------------------------------

    def _neighbour(self, below: int, number: int) -> None:
        """`f` of one neighbour's sums."""
        total, within, last = "", "", len(self._c.sides)
        moved = {last: (number, self._together), last - 1: (below, self._below)}
        for dim, extent in enumerate(self._c.extents):
            by, count = moved.get(dim, (0, 1)) if dim else (0, 1)
            place = f"({_name(dim)} + {by})" if count > 1 else _name(dim)
            total = f"({total} * {extent} + {place})" if total else place
            within += f" & ({place} < {extent})" if extent % count else ""
        self.line(f"i = {total}", f"is_pixel = in_box{within}", f"acc = acc{below}_{number}")
        self.axes(self.tile.rows, self.tile.columns)
        self.epilogue()

    def row_mask(self, rows: int) -> str | None:  # noqa: ARG002
        """The mask of lanes that are pixels."""
        return "is_pixel"


def _spans(lines: int, below: int) -> Iterator[tuple[range, range]]:
    """Steps along the lines of the image, each with the lines of neighbours whose windows contain that line.

    lines = 3, below = 2   ->   0: first line of neighbours;   1, 2: both;   3: second line
    """
    for step in range(below - 1):
        yield range(step, step + 1), range(step + 1)
    yield range(below - 1, lines), range(below)
    for step in range(lines, lines + below - 1):
        yield range(step, step + 1), range(step - lines + 1, below)


def columns_seen(window: Sliding, together: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The columns that neighbours look at, from the first one's first; which places of which neighbours these are."""
    found: dict[int, list[tuple[int, int]]] = {}
    for t in range(together):
        for s in range(window.kernel):
            found.setdefault(s * window.dilation + t * window.stride, []).append((s, t))
    yield from sorted(found.items())


def _name(dim: int) -> str:
    return f"side{dim - 1}" if dim else "image"
