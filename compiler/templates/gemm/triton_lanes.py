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

from collections.abc import Sequence
from dataclasses import replace

from ...codegen.triton.values import TileAxis
from ...ir.value import Value, substitute
from .description import Matrix, Product, Prologue
from .halves import halves
from .triton_matmul import GemmTriton
from .triton_operand import ComputedOperand, LoadedOperand, base
from .triton_text import ProductText
from .triton_tiles import GemmTile, read_bytes

_LOADED = 16  # bytes, by one instruction of a lane
HIGH = {"b": "d", "c": "e"}  # what operands of high halves are called, by those of the low ones


class LanesTriton(GemmTriton):
    """Writes the first launch of a tile that `by_lanes`."""

    multiplies_float32 = True

    def __init__(self, product: Product, tile: GemmTile, processors: int) -> None:
        found = halves(product)
        self._high: dict[str, Prologue] = {}
        if found is not None and tile.depth > 1:
            product, self._high = found
            tile = replace(tile, depth=tile.depth // 2)
        super().__init__(product, tile, processors)
        self._rows_there = range(product.row.extent)

    def _zeros(self) -> None:
        for total in ("total", *(["others"] if self.product.other is not None else [])):
            for row in self._rows_there:
                self.line(f"{total}{row} = tl.zeros([{self.tile.depth}, {self.tile.columns}], tl.float32)")

    def _first_of_all(self) -> None:
        """Weights are read before kernels before this one have ended."""

    def _by_pointers(self) -> None:
        product, tile = self.product, self.tile
        self.line(f"k = {self._places()}{self.long}")
        if product.is_computed:
            self.axes(tile.rows, tile.columns)
        first = "k" if tile.splits == 1 else "(first + k)"
        weights, rows = self._weights(first), self._rows_of(first)
        asked = self._ask(weights)
        if product.early:
            self.line("await_earlier()")
        for row in rows:
            row.ahead()
        for step, given in enumerate(asked):
            self._begin(step)
            self._add(rows, [self._asked(name, step, weight, given) for name, weight in weights.items()])
        if (ahead := len(asked)) < tile.span(product.depth) // tile.depth:
            with self.writer.block(f"for start in {self._steps(ahead)}"):
                self._inside()
                for weight in weights.values():
                    weight.load()
                self._add(rows, list(weights))
                for weight in weights.values():
                    weight.advance()
        self._gather("acc", "total")
        if product.other is not None:
            self._gather("other", "others")

    def _places(self) -> str:
        """Places of a step: as many side by side for a lane as it has of the rows, whose elements have more bytes.

        A lane that loads 16 bytes of each would hold other places of the rows than of the weights: these would go
        through shared memory, all warps waiting for each other.
        """
        product, depth = self.product, self.tile.depth
        places = f"tl.arange(0, {depth})"
        if product.right is None or read_bytes(product.b, product.right) >= product.dtype.itemsize:
            return places
        side_by_side = _LOADED // product.dtype.itemsize // (2 if self._high else 1)
        return f"tl.max_contiguous({places}, {min(side_by_side, depth)})"

    def _ask(self, weights: dict[str, LoadedOperand | ComputedOperand]) -> list[dict[str, dict[Value, str]]]:
        """Ask for the weights of the first steps; returns, by step, what computed ones have been loaded from.

        Nothing is computed of them yet: that would wait until they are there.
        """
        for weight in weights.values():
            weight.ahead()
        asked: list[dict[str, dict[Value, str]]] = []
        for step in range(self._ahead()):
            self._begin(step)
            asked.append({})
            for name, weight in weights.items():
                if isinstance(weight, ComputedOperand):
                    asked[-1][name] = weight.ask()
                    continue
                weight.load()
                self.line(f"{name}{step} = {name}")
                weight.advance()
        return asked

    def _asked(
        self, name: str, step: int, weight: LoadedOperand | ComputedOperand, given: dict[str, dict[Value, str]]
    ) -> str:
        """What holds one of the first steps' weights, computed where it is not as it was loaded."""
        if not isinstance(weight, ComputedOperand):
            return f"{name}{step}"
        weight.load(given[name])
        return name

    def _rows_of(self, first: str) -> list[_LoadedRow | _PairsRow | _ComputedRow]:
        """The rows of the left operand."""
        product, tile = self.product, self.tile
        if self._high:
            begin = "0" if tile.splits == 1 else "first"
            return [_PairsRow(self, row, product.a, tile, begin) for row in self._rows_there]
        if product.left is None:
            return [_LoadedRow(self, row, product.a, tile, first) for row in self._rows_there]
        return [_ComputedRow(self, row, product.left, tile) for row in self._rows_there]

    def _weights(self, first: str) -> dict[str, LoadedOperand | ComputedOperand]:
        """The right operands, by name."""
        product, tile, policy = self.product, self.tile, ', eviction_policy="evict_first"'  # they are read once
        found: dict[str, LoadedOperand | ComputedOperand] = {
            "b": LoadedOperand(self, "b", product.b, tile, first, policy)
        }
        if product.right is not None:
            found["b"] = ComputedOperand(self, "b", product.right, tile)
        if product.other is not None:
            found["c"] = LoadedOperand(self, "c", product.other, tile, first, policy)
        if product.also is not None:
            found["c"] = ComputedOperand(self, "c", product.also, tile)
        # The high halves of the bytes whose low ones `b` and `c` are.
        return found | {HIGH[name]: ComputedOperand(self, HIGH[name], made, tile) for name, made in self._high.items()}

    def _ahead(self) -> int:
        """How many steps' weights are asked for before anything else: no more than every part of the depth has."""
        tile, depth = self.tile, self.product.depth
        last = depth - (tile.splits - 1) * tile.span(depth)
        return min(tile.stages, -(-last // tile.depth))

    def _begin(self, step: int) -> None:
        """The start of one of the first steps."""
        first = "first + " if self.tile.splits > 1 else ""
        self.line(f"start = {first}{step * self.tile.depth}")
        self._inside()

    def _inside(self) -> None:
        if self.product.depth % self.tile.depth:
            self.line(f"inside = k < {self.product.depth} - start")

    def _add(self, rows: Sequence[_LoadedRow | _PairsRow | _ComputedRow], weights: list[str]) -> None:
        """Multiply a step's weights with all rows."""
        for weight in weights:
            self.line(f"wide_{weight[0]} = {weight}.to(tl.float32)")
        for row in rows:
            row.load()
            totals = {"b": f"total{row.row}", "c": f"others{row.row}"}
            for places, names in zip(row.names, (tuple(totals), tuple(HIGH.values())), strict=False):
                self.line(f"long = {places}.to(tl.float32)")
                for name, total in zip(names, totals.values(), strict=True):
                    if name in [weight[0] for weight in weights]:
                        self.line(f"{total} = tl.fma(long, wide_{name}, {total})")
            row.advance()

    def _gather(self, name: str, total: str) -> None:
        """The sums of rows and columns, of the sums of places."""
        for row in self._rows_there:
            self.line(f"{name if row == 0 else f'of_row{row}'} = tl.sum({total}{row}, 0)[None, :]")
        for row in self._rows_there[1:]:
            self.line(f"{name} = tl.where(i == {row}, of_row{row}, {name})")


class _LoadedRow:
    """A row of the left operand that is loaded as it is: a column of numbers, one for each place along the depth."""

    def __init__(self, text: ProductText, row: int, matrix: Matrix, tile: GemmTile, first: str) -> None:
        self.row, self.name, self.names = row, f"a{row}", (f"a{row}",)
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


class _PairsRow:
    """A row of the left operand, read by pairs: its elements at even places, and at odd ones.

    Args:
        first: the first pair of this program's depth.
    """

    def __init__(self, text: ProductText, row: int, matrix: Matrix, tile: GemmTile, first: str) -> None:
        self.row, self.names = row, (f"a{row}", f"odd{row}")
        self._text, self._matrix, self._first, self._depth = text, matrix, first, tile.depth

    def ahead(self) -> None:
        """Write pointers to the places of the first step."""
        x, text, row = self._matrix, self._text, self.row
        text.line(f"places = tl.arange(0, {2 * self._depth}){text.long}")
        begin = f"{base(text, x)} + {row * x.row}"
        text.line(f"a{row}_at = {begin} + (2 * {self._first} + places) * {x.column}")

    def load(self) -> None:
        """Write the row's elements of a step."""
        text, row, depth = self._text, self.row, self._depth
        cut = text.product.depth % depth != 0
        where = f", mask=places < 2 * ({text.product.depth} - start), other=0.0" if cut else ""
        text.line(f"pairs = tl.reshape(tl.load(a{row}_at{where}), [{depth}, 2])")
        text.line(f"a{row}, odd{row} = tl.split(pairs)")
        text.line(f"a{row}, odd{row} = a{row}[:, None], odd{row}[:, None]")

    def advance(self) -> None:
        """Write where the next step's elements lie."""
        self._text.line(f"a{self.row}_at += {2 * self._depth * self._matrix.column}")


class _ComputedRow(ComputedOperand):
    """A row of the left operand with a prologue."""

    def __init__(self, text: ProductText, row: int, prologue: Prologue, tile: GemmTile) -> None:
        mine = Prologue(substitute(prologue.value, {text.product.row: row}), prologue.dtype, prologue.buffers)
        super().__init__(text, f"a{row}", mine, tile)
        self.row, self.name, self.names = row, f"a{row}", (f"a{row}",)
        self._shape, self._turned = f"[{tile.depth}, 1]", "[:, None]"

    def _set_axes(self, step: TileAxis | None) -> None:
        self._text.values.rows, self._text.values.columns = step, None
