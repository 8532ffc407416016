"""The kernel of a product on a GPU: from a description to Triton.

    program of one tile (with descriptors: of one tile after the other):
        for each step of the depth:
            acc += a[rows, step] @ b[step, columns]          tensor cores, float32 sums
        out = f(acc)                                         written by `triton.values`: rows i, columns j

Sums go into `f` as they are, in float32. Tiles are enumerated in groups of rows, so that programs that run at the same
time share rows of `a` and columns of `b` in the second cache. Conditions vanish where tiles divide the sizes. Where
tiles are few the depth is split among programs, too (see `gemm.triton_split_k`).
"""

from __future__ import annotations

import hashlib

from ...codegen.triton import KernelSource
from ...codegen.triton.source import module_text
from ..common.triton_launch import TemplateLaunch
from .description import Matrix, Product
from .triton_operand import ComputedOperand, LoadedOperand
from .triton_split_k import Parts
from .triton_tiles import GemmTile, described

_GROUP = 8  # rows of tiles that are taken together


def written(kind: str, label: str, first: Parts, last: Parts | None = None) -> KernelSource:
    """The source of one launch or two; its name says what it is, what it computes, and how."""
    first.write()
    if last is not None:
        last.write()
    lines = [*first.writer.lines, *(last.writer.lines if last is not None else ())]
    text = "\n".join([*(str(buffer.dtype) for buffer in first.buffers), str(first.tile), *lines])
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    name = f"{kind}_{f'{label}_' if label else ''}{digest}_{first.tile}"
    launches = [first.finished(name), *([] if last is None else [last.finished(f"{name}_sum")])]
    return KernelSource(module_text([launch.text for launch in launches]), tuple(launches))


class GemmTriton(Parts):
    """Writes the first launch; what reads operands in another way has its own way to address them."""

    def __init__(self, product: Product, tile: GemmTile, processors: int) -> None:
        super().__init__(product, tile)
        self._count = tile.count(product) * tile.splits
        self._programs = min(self._count, processors) if tile.descriptors else self._count
        self._dot = f"acc = {self.dot('a', 'b', 'acc')}"

    def dot(self, a: str, b: str, total: str) -> str:
        """``total + a b`` by tensor cores; float32, where the user allows that, rounded as libraries round it."""
        if self.product.dtype.itemsize == 2:
            return f"tl.dot({a}, {b}, {total})"
        return f'tl.dot(tensor_float({a}), tensor_float({b}), {total}, input_precision="tf32")'

    def finished(self, name: str) -> TemplateLaunch:
        """The written source."""
        stages = 1 if self.tile.by_lanes else self.tile.stages  # lanes count theirs by themselves
        return self.launch(name, self._programs, self.tile.warps, stages, self.product.early)

    def write(self) -> None:
        """Write the body."""
        self.line("program = tl.program_id(0)")
        if self.product.early:
            self.line("let_later_begin()")
        self.write_part()

    def write_part(self) -> None:
        """Write what follows from the number of the program."""
        if self.product.early:
            self._first_of_all()
        if not self.tile.descriptors:
            self._tile("program")
            self._by_pointers()
            self._finish()
            return
        self._describe()
        flat = "" if self.tile.splits > 1 else ", flatten=True"  # parts have steps that begin anywhere
        with self.writer.block(f"for tile in tl.range(program, {self._count}, {self._programs}{flat})"):
            self._tile("tile")
            self._by_descriptors()
            self._finish()

    def _first_of_all(self) -> None:
        """The statements that wait for earlier kernels, before anything is read."""
        self.line("await_earlier()")

    # -- which part of the result ---------------------------------------------------------------------------------

    def _tile(self, number: str) -> None:
        """The start of the tile with this number; `i` and `j` are its rows and columns."""
        product, tile = self.product, self.tile
        rows, columns = tile.row_tiles(product), -(-product.column.extent // tile.columns)
        if tile.splits > 1:
            self.line(f"part = {number} // {tile.count(product)}", f"first = part * {tile.span(product.depth)}")
            self.line(f"within = {number} % {tile.count(product)}")
            number = "within"
        if product.batch.extent > 1:
            self.line(f"g = ({number} // {rows * columns}){self.long}", f"of_g = {number} % {rows * columns}")
            number = "of_g"
        else:
            self.line("g = 0")
        if rows % _GROUP == 0 or rows < _GROUP:
            height = str(min(rows, _GROUP))
            self.line(f"group = {number} // {int(height) * columns} * {height}")
        else:
            height = "height"
            self.line(f"group = {number} // {_GROUP * columns} * {_GROUP}")
            self.line(f"height = tl.minimum({rows} - group, {_GROUP})")
        within = f"({number} % {min(rows, _GROUP) * columns})"
        self._rows(f"group + {within} % {height}")
        self.line(f"column = {within} // {height} * {tile.columns}")
        self.lanes(tile.rows, tile.columns)
        self._zeros()

    def _rows(self, number: str) -> None:
        """The first rows of the tiles with this number."""
        self.line(f"row = ({number}) * {self.tile.rows}")

    def _zeros(self) -> None:
        for name in ("acc", *(["other"] if self.product.other is not None else [])):
            self.line(f"{name} = tl.zeros([{self.tile.rows}, {self.tile.columns}], tl.float32)")

    # -- the product ----------------------------------------------------------------------------------------------

    def _steps(self, done: int = 0) -> str:
        """The start of the steps of this program's depth, without the first that are done."""
        whole, step, span = self.product.depth, self.tile.depth, self.tile.span(self.product.depth)
        if self.tile.splits == 1:
            return f"range({done * step}, {whole}, {step})"
        end = f"first + {span}" if whole % span == 0 else f"tl.minimum(first + {span}, {whole})"
        return f"range(first{f' + {done * step}' if done else ''}, {end}, {step})"

    def _by_pointers(self) -> None:
        product, tile = self.product, self.tile
        self.line(f"k = tl.arange(0, {tile.depth}){self.long}")
        if product.is_computed:
            self.axes(tile.rows, tile.columns)
        first = "k" if tile.splits == 1 else "(first + k)"
        sides: list[LoadedOperand | ComputedOperand] = [
            LoadedOperand(self, name, x, tile, first)
            if prologue is None
            else ComputedOperand(self, name, prologue, tile)
            for name, x, prologue in (("a", product.a, product.left), ("b", product.b, product.right))
        ]
        if product.other is not None:
            also = product.also
            sides.append(
                LoadedOperand(self, "c", product.other, tile, first)
                if also is None
                else ComputedOperand(self, "c", also, tile)
            )
        for side in sides:
            side.ahead()
        with self.writer.block(f"for start in {self._steps()}"):
            if product.depth % tile.depth:
                self.line(f"inside = k < {product.depth} - start")
            for side in sides:
                side.load()
            self.line(self._dot)
            if product.other is not None:
                self.line(f"other = {self.dot('a', 'c', 'other')}")
            for side in sides:
                side.advance()

    def _describe(self) -> None:
        self._descriptor("a", self.product.a, self.product.row.extent, self.product.depth)
        self._descriptor("b", self.product.b, self.product.depth, self.product.column.extent)

    def _descriptor(self, name: str, x: Matrix, rows: int, columns: int) -> None:
        """Describe an operand to the unit that copies tiles; what lies outside of it is 0."""
        found = described(x, rows, columns)
        assert found is not None, x
        line, turned = found
        block = (self.tile.rows, self.tile.depth) if name == "a" else (self.tile.depth, self.tile.columns)
        sizes = (rows, columns)
        if turned:
            block, sizes = block[::-1], sizes[::-1]
        pointer = self.values.names.buffers[x.buffer.name]
        self.line(
            f"{name}_tiles = tl.make_tensor_descriptor({pointer}, shape={list(sizes)}, strides=[{line}, 1], "
            f"block_shape={list(block)})"
        )

    def _by_descriptors(self) -> None:
        p = self.product
        with self.writer.block(f"for start in {self._steps()}"):
            for name, x, sizes, at in (
                ("a", p.a, (p.row.extent, p.depth), ("row", "start")),
                ("b", p.b, (p.depth, p.column.extent), ("start", "column")),
            ):
                found = described(x, *sizes)
                turned = found is not None and found[1]
                place = ", ".join(at[::-1] if turned else at)
                self.line(f"{name} = {name}_tiles.load([{place}]){'.T' if turned else ''}")
            self.line(self._dot)

    # -- what becomes of it ---------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """The tile's results; of a part, its sums."""
        self.axes(self.tile.rows, self.tile.columns)
        if self.tile.splits == 1:
            self.epilogue()
            return
        mask = self.values.mask(always=True)
        self.line(f"tl.store({self.sums('part')}, acc{f', mask={mask}' if mask else ''})")
