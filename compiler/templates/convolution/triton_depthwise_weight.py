"""The kernel of a gradient of the weight of single channels on a GPU: a sum for each place of the window.

    program of one part of the pixels, and some channels; each lane takes `together` neighbours along a line:
        for each box of the part's pixels:
            g[t] = gradient[t], once
            for each line of the window, for each column that the neighbours look at:
                x = image[column], once
                sum[place] += x * g[t]                  for each neighbour that sees it there, float32
        sums[part, place, channel] = sum[place] of all lanes
    second launch:    weight[channel, place] = sums[0, place, channel] + sums[1, place, channel] + ...

Sums of all places stay in registers, and an image is read once for all of them. No sum depends on which program comes
first: results are the same in every run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch

from ...codegen.triton import KernelSource
from ...codegen.triton.dtypes import type_name
from ...codegen.triton.source import module_text
from ...codegen.triton.writer import TritonWriter
from ...ir.iteration_space import has_small_offsets
from ...ir.program import Buffer
from ..common.triton_launch import launch_of
from .description import Side, boxes, splits
from .triton_depthwise import columns_seen
from .triton_implicit_gemm import lanes_of_boxes, where

WORKSPACE = "<sums>"
_HELD = 64  # sums and gradients of a thread, in registers
_FEW_PLACES = 25  # of which a thread has the sums of two channels, of more those of one
_WAVES = 4  # programs of a multiprocessor, if they have four warps
_SHAPES = ((16, 4), (32, 4), (32, 2), (16, 8))  # lanes along channels, and warps, the best first (on an H200)
_MOST_PLACES = 64
_ADDED = 128  # lanes of the second launch
_ADDED_WARPS = 4


@dataclass(frozen=True)
class WeightGradient:
    """The gradient of the weight of a convolution of single channels over images of two dims.

    Args:
        above: the gradient of the result; `image`: of which it was computed; `weight`: the gradient that is computed.
        sides: dims of the images, and how windows lie along them.
    """

    above: Buffer
    image: Buffer
    weight: Buffer
    sides: tuple[Side, Side]

    @property
    def channels(self) -> int:
        """How many there are."""
        return int(self.image.sizes[1])

    @property
    def window(self) -> tuple[int, int]:
        """Lines and columns of the window."""
        lines, columns = (side.window.kernel for side in self.sides)
        return lines, columns

    @property
    def fits(self) -> bool:
        """Whether the sums of all places fit into registers."""
        return prod(self.window) <= _MOST_PLACES


@dataclass(frozen=True)
class WeightTile:
    """One configuration.

    Args:
        rows, columns: lanes along boxes of pixels, and along channels.
        together: neighbours along a line that a lane takes: they end with the line, so that no pixel beyond it counts.
        warps: of a program.
        parts: of the pixels, which programs sum side by side.
    """

    rows: int
    columns: int
    together: int
    warps: int
    parts: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.together}_{self.warps}w_{self.parts}p"


def weight_tiles(gradient: WeightGradient, processors: int, count: int) -> list[WeightTile]:
    """The tiles worth measuring, the one to take unmeasured first."""
    out, places = gradient.sides[1].window.out, prod(gradient.window)
    each = 2 if places <= _FEW_PLACES else 1
    most = max(1, _HELD // each - places)
    together = next(n for n in range(most, 0, -1) if out % n == 0)
    found = []
    for columns, warps in _SHAPES:
        rows = each * 32 * warps // columns
        extents, sizes = _grid(gradient, rows, together)
        programs = _WAVES * processors * 4 // warps
        parts = min(prod(boxes(extents, sizes)), programs // -(-gradient.channels // columns))
        found.append(WeightTile(rows, columns, together, warps, max(1, parts)))
    return found[:count]


def workspace(gradient: WeightGradient, tile: WeightTile) -> Buffer:
    """Memory for the sums of parts."""
    places, channels = prod(gradient.window), gradient.channels
    strides = (places * channels, channels, 1)
    return Buffer(WORKSPACE, torch.float32, (tile.parts, places, channels), strides, gradient.weight.device)


def weight_triton(gradient: WeightGradient, tile: WeightTile) -> KernelSource:
    """The source of both launches.

    Raises:
        UnsupportedDtypeError: Triton has no type for one of the dtypes.
    """
    buffers = (gradient.above, gradient.image, gradient.weight, workspace(gradient, tile))
    arguments = dict(zip(("above_ptr", "image_ptr", "weight_ptr", "sums_ptr"), buffers, strict=True))
    first, last = _Sums(gradient, tile), _Added(gradient, tile)
    first.write()
    last.write()
    text = "\n".join([*map(repr, buffers), str(tile), *first.writer.lines, *last.writer.lines])
    name = f"depthwise_weight_{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}_{tile}"
    launches = (
        launch_of(name, first.writer.lines, arguments, first.programs, tile.warps, stages=2),
        launch_of(f"{name}_sum", last.writer.lines, arguments, last.programs, _ADDED_WARPS, stages=2),
    )
    return KernelSource(module_text([launch.text for launch in launches]), launches)


def _extents(gradient: WeightGradient, together: int) -> tuple[int, int, int]:
    """The dims that lanes enumerate: images, lines, groups of neighbours."""
    images, _, lines, columns = gradient.above.sizes
    return int(images), int(lines), int(columns) // together


def _grid(gradient: WeightGradient, rows: int, together: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """These dims, and the box of them that the lanes of a program take at a time."""
    extents = _extents(gradient, together)
    return extents, min(splits(rows, 3), key=lambda sizes: (prod(boxes(extents, sizes)), sizes))


class _WeightLaunch:
    def __init__(self, gradient: WeightGradient, tile: WeightTile) -> None:
        self.gradient, self.tile, self.writer = gradient, tile, TritonWriter()
        buffers = (gradient.above, gradient.image, workspace(gradient, tile))
        self.long = "" if all(map(has_small_offsets, buffers)) else ".to(tl.int64)"

    def line(self, *lines: str) -> None:
        """Add lines."""
        for line in lines:
            self.writer.line(line)

    def channel_mask(self, lanes: int) -> str | None:
        """The mask of lanes that are channels, where not all are."""
        return f"(j < {self.gradient.channels})" if self.gradient.channels % lanes else None


class _Sums(_WeightLaunch):
    """The first launch."""

    @property
    def programs(self) -> int:
        """How many there are."""
        return self.tile.parts * -(-self.gradient.channels // self.tile.columns)

    def write(self) -> None:
        """Write the body."""
        gradient, tile = self.gradient, self.tile
        across = -(-gradient.channels // tile.columns)
        extents, sizes = _grid(gradient, tile.rows, tile.together)
        self.line("program = tl.program_id(0)", f"part = program // {across}")
        self.line(f"j = (program % {across} * {tile.columns} + tl.arange(0, {tile.columns}))[None, :]{self.long}")
        self.line(f"lane = tl.arange(0, {tile.rows})[:, None]")
        block = f"tl.zeros([{tile.rows}, {tile.columns}], tl.float32)"
        self.line(*(f"sum{r}_{s} = {block}" for r, s in self._places()))
        with self.writer.block(f"for box in range(part, {prod(boxes(extents, sizes))}, {tile.parts})"):
            self.line(*lanes_of_boxes(("image", "side0", "side1"), extents, sizes, self.long))
            self.line(f"side1 *= {tile.together}")
            self._gradients()
            for r in range(gradient.window[0]):
                self._one_line(r)
        places, channels = prod(gradient.window), gradient.channels
        mask = self.channel_mask(tile.columns)
        for place, (r, s) in enumerate(self._places()):
            at = f"sums_ptr + (part * {places} + {place}){self.long} * {channels} + j"
            total = f"tl.sum(sum{r}_{s}, 0)[None, :]"
            self.line(f"tl.store({at}, {total}{f', mask={mask}' if mask else ''})")

    def _places(self) -> Iterator[tuple[int, int]]:
        lines, columns = self.gradient.window
        return ((r, s) for r in range(lines) for s in range(columns))

    def _gradients(self) -> None:
        """The gradients at neighbours: `g0`, `g1`, ..."""
        images, _, lines, columns = self.gradient.above.strides
        self.line(f"g_at = above_ptr + image * {images} + side0 * {lines} + side1 * {columns} + j")
        mask = where("in_box", self.channel_mask(self.tile.columns))
        for t in range(self.tile.together):
            self.line(f"g{t} = tl.load(g_at + {t * columns}{mask}).to(tl.float32)")
        above, along = (side.window for side in self.gradient.sides)
        self.line(f"first0 = side0 * {above.stride} - {above.padding}")
        self.line(f"first1 = side1 * {along.stride} - {along.padding}")
        stride, (line, column) = self.gradient.image.strides[0], (side.image for side in self.gradient.sides)
        self.line(f"x_at = image_ptr + image * {stride} + first0 * {line} + first1 * {column} + j")

    def _one_line(self, r: int) -> None:
        """Add the products of one line of the window."""
        above, along = self.gradient.sides
        line = f"first0 + {r * above.window.dilation}"
        inside = ["in_box"]
        inside += [f"({line} >= 0)"] * above.looks_before
        inside += [f"({line} < {above.window.size})"] * above.looks_beyond
        self.line(f"in_line = {' & '.join(inside)}", f"line = x_at + {r * above.window.dilation * above.image}")
        for column, pairs in columns_seen(along.window, self.tile.together):
            place = f"first1 + {column}"
            borders = [f"({place} >= 0)"] * along.looks_before
            borders += [f"({place} < {along.window.size})"] * along.looks_beyond
            mask = where("in_line", *borders, self.channel_mask(self.tile.columns))
            self.line(f"x = tl.load(line + {column * along.image}{mask}).to(tl.float32)")
            self.line(*(f"sum{r}_{s} = tl.fma(x, g{t}, sum{r}_{s})" for s, t in pairs))


class _Added(_WeightLaunch):
    """The second launch."""

    @property
    def _count(self) -> int:
        return prod(self.gradient.window) * self.gradient.channels

    @property
    def programs(self) -> int:
        """How many there are."""
        return -(-self._count // _ADDED)

    def write(self) -> None:
        """Write the body."""
        gradient, columns, strides = self.gradient, self.gradient.window[1], self.gradient.weight.strides
        self.line(f"at = tl.program_id(0) * {_ADDED} + tl.arange(0, {_ADDED})")
        self.line(f"inside = at < {self._count}", f"total = tl.zeros([{_ADDED}], tl.float32)")
        with self.writer.block(f"for part in range(0, {self.tile.parts})"):
            self.line(f"total += tl.load(sums_ptr + part{self.long} * {self._count} + at, mask=inside, other=0.0)")
        self.line(f"place = at // {gradient.channels}", f"channel = at % {gradient.channels}")
        self.line(f"place = place // {columns} * {strides[2]} + place % {columns} * {strides[3]}")
        held = type_name(gradient.weight.dtype)
        self.line(f"tl.store(weight_ptr + channel * {strides[0]} + place, total.to({held}), mask=inside)")
