"""Parts of all launches of a product's Triton kernel: arguments, lanes, and the epilogue of a tile of sums.

i, j  rows and columns of the tile, g its matrix;   acc  sums   ->   store f(acc) to every result
"""

from __future__ import annotations

from ...codegen.flatten import flatten_value
from ...codegen.triton.dtypes import type_name
from ...codegen.triton.values import TileAxis, TritonNames, TritonValues
from ...codegen.triton.writer import TritonWriter
from ...ir.dependence import Dependence
from ...ir.index.index import Var
from ...ir.iteration_space import has_small_offsets
from ...ir.program import Buffer
from ...ir.value import Value
from ...schedule.fast_math import fast_values
from ..common.triton_launch import TemplateLaunch, launch_of
from .description import ELEMENT, OTHER, ExtraOutput, Product


class ProductText:
    """A launch that is being written.

    Args:
        product: what to compute.
        workspaces: memory of the kernel's own, after what it reads and its results.
    """

    multiplies_float32 = False  # whatever operands are, so that these may be float32 already

    def __init__(self, product: Product, workspaces: tuple[Buffer, ...]) -> None:
        self.product = product
        self.buffers = (*product.reads, *(result.buffer for result in product.results), *workspaces)
        # By position, as the call has it: a result may be called like what it is made from.
        self.arguments = [f"p{number}_ptr" for number in range(len(self.buffers))]
        pairs = list(zip(self.buffers, self.arguments, strict=True))
        names = TritonNames({b.name: name for b, name in pairs}, {b.name: b.dtype for b, _ in pairs})
        names.variables = {product.batch: "g", product.row: "i", product.column: "j"}
        self.writer = TritonWriter()
        self.long = "" if all(map(has_small_offsets, self.buffers)) else ".to(tl.int64)"
        self.values = TritonValues(self.writer, names, Dependence(), "tl.int64" if self.long else "tl.int32")

    def line(self, *lines: str) -> None:
        """Add lines."""
        for line in lines:
            self.writer.line(line)

    def launch(self, name: str, programs: int, warps: int, stages: int = 3, early: bool = False) -> TemplateLaunch:
        """The kernel's text, as a function of the arguments that it uses."""
        arguments = dict(zip(self.arguments, self.buffers, strict=True))
        return launch_of(name, self.writer.lines, arguments, programs, warps, stages, early)

    def lanes(self, rows: int, columns: int) -> None:
        """`i` and `j`: rows and columns of a tile that begins at `row` and `column`."""
        self.line(f"i = (row + tl.arange(0, {rows}))[:, None]{self.long}")
        self.line(f"j = (column + tl.arange(0, {columns}))[None, :]{self.long}")

    def row_mask(self, rows: int) -> str | None:
        """The mask of lanes that are rows, where not all are."""
        extent = self.product.row.extent
        return f"(i < {extent})" if extent % rows else None

    def column_mask(self, columns: int) -> str | None:
        """The mask of lanes that are columns, where not all are."""
        extent = self.product.column.extent
        return f"(j < {extent})" if extent % columns else None

    def axes(self, rows: int, columns: int) -> None:
        """Name the conditions that lanes are inside."""
        self.values.rows = self._axis("i", self.product.row, rows, self.row_mask(rows))
        self.values.columns = self._axis("j", self.product.column, columns, self.column_mask(columns))

    def _axis(self, name: str, var: Var, block: int, mask: str | None) -> TileAxis:
        if mask is not None:
            self.line(f"{name}_inside = {mask}")
        return TileAxis(frozenset({var}), str(block), None if mask is None else f"{name}_inside")

    def epilogue(self) -> None:
        """`f` of the tile, to where results are; `axes` first."""
        sums = {ELEMENT: "acc"} | ({OTHER: "other"} if self.product.other is not None else {})
        raw = [Buffer(x.buffer, x.dtype, (1,), (1,), self.product.out.device) for x in sums]
        for element, name in sums.items():
            self.writer.name(flatten_value(element, raw), name)
        results = self.product.results
        made = fast_values([(result.value, result.buffer.dtype) for result in results])
        for result, value in zip(results, made, strict=True):
            self._store(result, flatten_value(value, [*self.product.reads, *raw]))

    def _store(self, result: ExtraOutput, value: Value) -> None:
        held = type_name(result.buffer.dtype)
        text = self.values.get(value)
        pointer = self.values.pointer(result.buffer.name, result.place)
        mask = self.values.mask(always=True)
        self.line(f"tl.store({pointer}, {text}.to({held}){f', mask={mask}' if mask else ''})")
