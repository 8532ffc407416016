"""Products with one row, or a few: every lane multiplies and sums elements of its own, without tensor cores.

    program of some columns:
        ask for b[step, columns] of the first steps          as many as the tile has stages
        wait for kernels before this one                     where b lies still, whatever they do
        for each step of the depth:
            total += a[row, step] * b[step, columns]         a tile of float32 sums, one for each element of b
        out = f(sum of total over the steps' places)         once, at the end

What takes time is reading `b`: each lane has as many bytes of it on their way as registers hold, nothing goes through
shared memory, and no lane multiplies rows that are not there. float32 is multiplied as float32.
"""

from __future__ import annotations

from typing import Any

from ...codegen.triton.values import Axis
from ...ir.value import substitute
from .description import Matrix, Product, Prologue
from .triton_matmul import GemmTriton
from .triton_operand import Computed, Loaded, base
from .triton_text import ProductText
from .triton_tiles import GemmTile


class LanesTriton(GemmTriton):
    """Writes the first launch of a tile that `by_lanes`."""

    def __init__(self, product: Product, tile: GemmTile, processors: int) -> None:
        super().__init__(product, tile, processors)
        self._rows_there = range(product.row.extent)

    def _zeros(self) -> None:
        for row in self._rows_there:
            self.line(f"total{row} = tl.zeros([{self.tile.depth}, {self.tile.columns}], tl.float32)")

    def _first_of_all(self) -> None:
        """Weights are read before kernels before this one have ended."""

    def _by_pointers(self) -> None:
        product, tile = self.product, self.tile
        self.line(f"k = tl.arange(0, {tile.depth}){self.long}")
        if product.is_computed:
            self.axes(tile.rows, tile.columns)
        first = "k" if tile.splits == 1 else "(first + k)"
        weight = (
            Loaded(self, "b", product.b, tile, first, ', eviction_policy="evict_first"')  # nobody reads it again soon
            if product.right is None
            else Computed(self, "b", product.right, tile)
        )
        rows = [
            _LoadedRow(self, row, product.a, tile, first)
            if product.left is None
            else _ComputedRow(self, row, product.left, tile)
            for row in self._rows_there
        ]
        steps, ahead = tile.span(product.depth) // tile.depth, self._ahead()
        weight.ahead()
        for step in range(ahead):
            self._begin(step)
            weight.load()
            self.line(f"b{step} = b")
            weight.advance()
        if product.early:
            self.line("await_earlier()")
        for row in rows:
            row.ahead()
        for step in range(ahead):
            self._begin(step)
            self._add(rows, f"b{step}")
        if ahead == steps:
            self._gather()
            return
        with self.writer.block(f"for start in {self._steps(ahead)}"):
            self._inside()
            weight.load()
            self._add(rows, "b")
            weight.advance()
        self._gather()

    def _ahead(self) -> int:
        """How many steps' weights are asked for before anything else: no more than every part of the depth has."""
        tile, depth = self.tile, self.product.depth
        last = depth - (tile.splits - 1) * tile.span(depth)
        return min(tile.stages, -(-last // tile.depth))

    def _begin(self, step: int) -> None:
        """Where one of the first steps begins."""
        first = "first + " if self.tile.splits > 1 else ""
        self.line(f"start = {first}{step * self.tile.depth}")
        self._inside()

    def _inside(self) -> None:
        if self.product.depth % self.tile.depth:
            self.line(f"inside = k < {self.product.depth} - start")

    def _add(self, rows: list[Any], weight: str) -> None:
        """Multiply a step's weights with all rows."""
        self.line(f"wide = {weight}.to(tl.float32)")
        for row in rows:
            row.load()
            self.line(f"total{row.row} = tl.fma({row.name}.to(tl.float32), wide, total{row.row})")
            row.advance()

    def _gather(self) -> None:
        """The sums of rows and columns, of the sums of places."""
        for row in self._rows_there:
            self.line(f"{'acc' if row == 0 else f'of_row{row}'} = tl.sum(total{row}, 0)[None, :]")
        for row in self._rows_there[1:]:
            self.line(f"acc = tl.where(i == {row}, of_row{row}, acc)")


class _LoadedRow:
    """A row of the left operand that is loaded as it is: a column of numbers, one for each place along the depth."""

    def __init__(self, text: ProductText, row: int, matrix: Matrix, tile: GemmTile, first: str) -> None:
        self.row, self.name = row, f"a{row}"
        self._text, self._matrix, self._first, self._depth = text, matrix, first, tile.depth

    def ahead(self) -> None:
        """Write pointers to the places of the first step."""
        x = self._matrix
        begin = f"{base(self._text, x)} + {self.row * x.row}"
        self._text.line(f"{self.name}_at = {begin} + {self._first}[:, None] * {x.column}")

    def load(self) -> None:
        """Write the row's elements of a step."""
        where = ", mask=inside[:, None], other=0.0" if self._text.product.depth % self._depth else ""
        self._text.line(f"{self.name} = tl.load({self.name}_at{where})")

    def advance(self) -> None:
        """Write where the next step's elements lie."""
        self._text.line(f"{self.name}_at += {self._depth * self._matrix.column}")


class _ComputedRow(Computed):
    """A row of the left operand with a prologue."""

    def __init__(self, text: ProductText, row: int, prologue: Prologue, tile: GemmTile) -> None:
        mine = Prologue(substitute(prologue.value, {text.product.row: row}), prologue.dtype, prologue.buffers)
        super().__init__(text, f"a{row}", mine, tile)
        self.row, self.name = row, f"a{row}"
        self._shape, self._turned = f"[{tile.depth}, 1]", "[:, None]"

    def _set_axes(self, step: Axis | None) -> None:
        self._text.values.rows, self._text.values.columns = step, None
