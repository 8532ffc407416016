"""Products with few tiles and much depth: parts of the depth are summed side by side, then added up.

    program (tile, part):   sums[part, i, j] = sum over the part's k of a[i, k] * b[k, j]
    second launch:          out[i, j] = f(sums[0, i, j] + sums[1, i, j] + ...)         always in this order

No sum depends on which program comes first: results are the same in every run.
"""

from __future__ import annotations

import torch

from ...codegen.triton.kernel_text import waiting
from ...ir.iteration_space import power_of_two
from ...ir.program import Buffer
from ..common.triton_launch import TemplateLaunch
from .description import Product
from .triton_text import ProductText
from .triton_tiles import GemmTile

WORKSPACE = "<sums>"
_BLOCK, _SMALL_BLOCK = 512, 128  # elements that a program of the second launch adds up: one to four a thread
_WARPS = 4


def workspaces(product: Product, tile: GemmTile) -> tuple[Buffer, ...]:
    """Memory for the parts' sums: (parts, rows of all matrices, columns), lines a multiple of 16 bytes apart."""
    if tile.splits == 1:
        return ()
    rows, columns = product.batch.extent * product.row.extent, product.column.extent
    line = -(-columns // 4) * 4
    sizes, strides = (tile.splits, rows, line), (rows * line, line, 1)
    return (Buffer(WORKSPACE, torch.float32, sizes, strides, product.out.device),)


class Parts(ProductText):
    """A launch that reads or writes sums of parts."""

    def __init__(self, product: Product, tile: GemmTile) -> None:
        super().__init__(product, workspaces(product, tile))
        self.tile = tile

    def write(self) -> None:
        """Write the body."""
        raise NotImplementedError

    def finished(self, name: str) -> TemplateLaunch:
        """The finished kernel."""
        raise NotImplementedError

    def sums(self, part: str) -> str:
        """Pointers to a part's sums of the tile."""
        _, rows, line = self.buffers[-1].sizes
        row = f"g * {self.product.row.extent} + i" if self.product.batch.extent > 1 else "i"
        return f"{self.arguments[-1]} + {part} * {rows * line} + ({row}) * {line} + j"


def sum_of_parts(product: Product, tile: GemmTile, processors: int) -> _Sum:
    """The second launch: adds the parts, computes the epilogue."""
    return _Sum(product, tile, processors)


class _Sum(Parts):
    def __init__(self, product: Product, tile: GemmTile, processors: int) -> None:
        super().__init__(product, tile)
        rows, columns = product.row.extent, product.column.extent
        block = _BLOCK if product.batch.extent * rows * columns >= _BLOCK * processors else _SMALL_BLOCK
        self._columns = min(power_of_two(columns), block)
        self._rows = min(power_of_two(rows), block // self._columns)
        self._across, self._down = -(-columns // self._columns), -(-rows // self._rows)
        self.programs = self._across * self._down * product.batch.extent

    def write(self) -> None:
        """Write the body."""
        self.line("program = tl.program_id(0)")
        if self.product.batch.extent > 1:
            self.line(f"g = (program // {self._across * self._down}){self.long}")
            self.line(f"program = program % {self._across * self._down}")
        else:
            self.line("g = 0")
        self.line(f"row = program // {self._across} * {self._rows}")
        self.line(f"column = program % {self._across} * {self._columns}")
        self.lanes(self._rows, self._columns)
        self.axes(self._rows, self._columns)
        mask = self.values.mask(always=True)
        inside = f", mask={mask}" if mask else ""
        for part in range(self.tile.splits):
            self.line(f"{'acc' if part == 0 else f'sum{part}'} = tl.load({self.sums(str(part))}{inside})")
        for part in range(1, self.tile.splits):
            self.line(f"acc += sum{part}")
        self.epilogue()

    def finished(self, name: str) -> TemplateLaunch:
        """The finished kernel."""
        made = self.launch(name, self.programs, _WARPS)
        return waiting(made) if self.product.early else made
