"""The kernel of a convolution on a GPU: that of a product whose rows are pixels, and which reads windows of images.

    program of one tile of (pixels of the result) x (channels of the result):
        for each place of the window, for each step of channels:
            acc += image[pixels moved by the place, step] @ weight[place, step, columns]
        out = f(acc)

Two ways to read images. By pointers, one a pixel: any stride, lanes whose window looks outside load zeros. By
descriptors: a tile is a box of pixels, and reads a moved box of pixels; the unit that copies boxes fills in zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...codegen.triton import KernelSource
from ...gpu import Gpu
from ..gemm.triton_matmul import GemmTriton, written
from ..gemm.triton_operand import base
from ..gemm.triton_tiles import GemmTile
from .description import Convolution, box, boxes

_ALIGNED = 16  # bytes that lines of boxes must be apart


def convolution_triton(convolution: Convolution, tile: GemmTile, processors: int, label: str = "") -> KernelSource:
    """The kernel's source, see `gemm_triton`.

    Raises:
        UnsupportedDtypeError: the epilogue computes with a dtype that Triton has no type for.
    """
    return written("convolution", label, _ConvolutionTriton(convolution, tile, processors))


def takes_boxes(convolution: Convolution, depth: int, gpu: Gpu) -> bool:
    """Whether the unit that copies boxes can read both operands in steps of this depth."""
    c = convolution
    if not gpu.copies_tiles or c.merged or c.channels % depth or len(c.sides) > 3:
        return False
    if c.a.column != 1 or c.b.row != 1 or any(side.window.stride != 1 for side in c.sides):
        return False
    step = c.channels
    for side in reversed(c.sides):  # places of the window follow each other
        if side.weight != step and side.window.kernel > 1:
            return False
        step *= side.window.kernel
    size = c.a.buffer.dtype.itemsize
    return all(s > 0 and s * size % _ALIGNED == 0 for s in (c.images, *(side.image for side in c.sides), c.b.column))


class _ConvolutionTriton(GemmTriton):
    def __init__(self, convolution: Convolution, tile: GemmTile, processors: int) -> None:
        super().__init__(convolution, tile, processors)
        self._c = convolution
        self._names = [f"side{number}" for number in range(len(convolution.sides))]

    # -- pixels ---------------------------------------------------------------------------------------------------

    def _rows(self, number: str) -> None:
        if not self.tile.descriptors:
            super()._rows(number)
            return
        extents, sizes = self._c.extents, box(self._c.extents, self.tile.rows)
        counts, total = boxes(extents, sizes), ""
        self.line(f"box = {number}", f"lane = tl.arange(0, {self.tile.rows})[:, None]")
        places, inside = ["image", *self._names], []
        for dim, name in enumerate(places):
            after, within = prod(counts[dim + 1 :]), prod(sizes[dim + 1 :])
            self.line(f"{name} = {digit('box', after, counts[dim], dim == 0)} * {sizes[dim]}")
            at = f"({name} + {digit('lane', within, sizes[dim], dim == 0)})"
            total = f"({total} * {extents[dim]} + {at})" if total else at
            if extents[dim] % sizes[dim]:
                inside.append(f"({at} < {extents[dim]})")
        self.line(f"i = {total}{self.long}")
        if inside:
            self.line(f"in_box = {' & '.join(inside)}")

    def lanes(self, rows: int, columns: int) -> None:
        """`i` and `j`: of boxes `i` is known."""
        if not self.tile.descriptors:
            super().lanes(rows, columns)
            return
        self.line(f"j = (column + tl.arange(0, {columns}))[None, :]{self.long}")

    def row_mask(self, rows: int) -> str | None:
        """The mask of lanes that are pixels, where not all are."""
        if not self.tile.descriptors:
            return super().row_mask(rows)
        sizes = box(self._c.extents, self.tile.rows)
        fits = all(extent % size == 0 for extent, size in zip(self._c.extents, sizes, strict=True))
        return None if fits else "in_box"

    # -- windows --------------------------------------------------------------------------------------------------

    def _place(self) -> None:
        """`start` of the step's channels, and where in the window it looks: `r0`, `r1`."""
        kernel, parts = self._c.kernel, -(-self._c.run // self.tile.depth)
        self.line(f"start = {digit('step', 1, parts, prod(kernel) == 1)} * {self.tile.depth}")
        for number, extent in enumerate(kernel):
            after = prod(kernel[number + 1 :]) * parts
            self.line(f"r{number} = {digit('step', after, extent, number == 0)}")

    def _by_pointers(self) -> None:
        c, depth = self._c, self.tile.depth
        outs = [side.window.out for side in c.sides]
        self.line(f"k = tl.arange(0, {depth}){self.long}")
        self.line(f"a_at = {base(self, c.a)} + {digit('i', prod(outs), 0, True)} * {c.images}")
        for number, (name, side) in enumerate(zip(self._names, c.sides, strict=True)):
            place = digit("i", prod(outs[number + 1 :]), side.window.out, False)
            self.line(f"{name} = {place} * {side.window.stride} - {side.window.padding}")
            self.line(f"a_at += {name} * {side.image}")
        self.line(f"b_at = {base(self, c.b)} + j * {c.b.column}")
        rows, columns = self.row_mask(self.tile.rows), self.column_mask(self.tile.columns)
        if rows is not None:
            self.line(f"is_pixel = {rows}")
        with self.writer.block(f"for step in range(0, {c.steps(depth)})"):
            self._place()
            self.line("at = k + start")
            within = c.run % depth != 0
            if within:
                self.line(f"inside = at < {c.run}")
            masks = [None if rows is None else "is_pixel", *self._borders(), "inside[None, :]" if within else None]
            self.line(f"a = tl.load(a_at + {self._image_offset()}{where(*masks)})")
            weight = where("inside[:, None]" if within else None, columns)
            self.line(f"b = tl.load(b_at + {self._weight_offset()}{weight})")
            self.line(self._dot)

    def _borders(self) -> list[str]:
        """Conditions under which windows look at an image."""
        found = []
        for number, (name, side) in enumerate(zip(self._names, self._c.sides, strict=True)):
            size, place = side.window.size, f"{name} + r{number} * {side.window.dilation}"
            if self._c.merged and number == len(self._names) - 1:
                size, place = size * self._c.channels, f"{name} * {self._c.channels} + at[None, :]"
            if side.looks_before:
                found.append(f"({place} >= 0)")
            if side.looks_beyond:
                found.append(f"({place} < {size})")
        return found

    def _image_offset(self) -> str:
        c = self._c
        moved = [f"r{n} * {side.window.dilation * side.image}" for n, side in enumerate(c.sides[: len(c.kernel)])]
        return f"({' + '.join([*moved, f'at[None, :] * {c.a.column}'])})"

    def _weight_offset(self) -> str:
        c = self._c
        moved = [f"r{n} * {side.weight}" for n, side in enumerate(c.sides[: len(c.kernel)])]
        depth = f"at[:, None] * {c.b.row}"
        if c.merged and c.sides[-1].weight != c.channels * c.b.row:
            depth = f"at[:, None] // {c.channels} * {c.sides[-1].weight} + at[:, None] % {c.channels} * {c.b.row}"
        return f"({' + '.join([*moved, depth])})"

    # -- boxes ----------------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        c, t = self._c, self.tile
        extents, sizes = c.extents, box(c.extents, t.rows)
        a, b = (self.values.names.buffers[x.buffer.name] for x in (c.a, c.b))
        groups, taps = c.batch.extent, prod(c.kernel)
        shape = [extents[0], *(side.window.size for side in c.sides), groups * c.channels]
        strides = [c.images, *(side.image for side in c.sides), 1]
        self.line(
            f"a_tiles = tl.make_tensor_descriptor({a}, shape={shape}, strides={strides}, "
            f"block_shape={[*sizes, t.depth]})",
            f"b_tiles = tl.make_tensor_descriptor({b}, shape={[groups * c.column.extent, taps * c.channels]}, "
            f"strides=[{c.b.column}, 1], block_shape={[t.columns, t.depth]})",
        )

    def _zeros(self) -> None:
        if not self.tile.descriptors:
            super()._zeros()
            return
        # Channels by pixels: a box is multiplied where it lies only as the right operand (Triton 3.6 to 3.9).
        self.line(f"sums = tl.zeros([{self.tile.columns}, {self.tile.rows}], tl.float32)")

    def _by_descriptors(self) -> None:
        c, t = self._c, self.tile
        kernel = c.kernel
        with self.writer.block(f"for step in range(0, {c.steps(t.depth)})"):
            self._place()
            at = ["image"]
            for number, (name, side) in enumerate(zip(self._names, c.sides, strict=True)):
                at.append(f"{name} + r{number} * {side.window.dilation} - {side.window.padding}")
            group, columns = (
                ("g.to(tl.int32) * {0} + ", f"g.to(tl.int32) * {c.column.extent} + ")
                if c.batch.extent > 1
                else ("", "")
            )
            at.append(f"{group.format(c.channels)}start")
            places = [f"r{n} * {prod(kernel[n + 1 :]) * c.channels}" for n in range(len(kernel))]
            self.line(
                f"a = a_tiles.load([{', '.join(at)}]).reshape([{t.rows}, {t.depth}]).T",
                f"b = b_tiles.load([{columns}column, {' + '.join([*places, 'start'])}])",
                f"sums = {self.dot('b', 'a', 'sums')}",
            )
        self.line("acc = sums.T")


def where(*masks: str | None) -> str:
    """The arguments of a load of the elements inside, with zeros elsewhere."""
    found = [mask for mask in masks if mask is not None]
    return f", mask={' & '.join(found)}, other=0.0" if found else ""


def lanes_of_boxes(names: Sequence[str], extents: Sequence[int], sizes: Sequence[int], long: str) -> list[str]:
    """The lines that place lanes along dims, those of the box number `box`: `lane` is a lane's number within it.

    `in_box` tells which lanes have a place.
    """
    counts, inside, lines = boxes(tuple(extents), tuple(sizes)), [], []
    for dim, (name, extent, size) in enumerate(zip(names, extents, sizes, strict=True)):
        box = digit("box", prod(counts[dim + 1 :]), counts[dim], dim == 0)
        lane = digit("lane", prod(sizes[dim + 1 :]), size, dim == 0)
        lines.append(f"{name} = ({box} * {size} + {lane}){long}")
        if extent % size:
            inside.append(f"({name} < {extent})")
    return [*lines, f"in_box = {' & '.join(inside) or '(lane >= 0)'}"]


def digit(number: str, after: int, extent: int, first: bool) -> str:
    """One digit of a number: ``number // after % extent``, where `first` all that is left of it."""
    shifted = number if after == 1 else f"{number} // {after}"
    return f"({shifted if first else f'{shifted} % {extent}'})"
