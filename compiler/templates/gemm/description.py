"""The description of a matrix product: every element of the result is a formula of the product's element.

    for g < batch, i < rows, j < columns:   out[g, i, j] = f(g, i, j, sum over k of a[g, i, k] * b[g, k, j])

`f` is a value of the loop IR: bias, activation, scale, residuals, the other half of a gated layer. Operands may
be formulas, too: weights of fewer bytes with their scales, a cast, what a normalization or a gate ends with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...ir.index.index import Var
from ...ir.program import Buffer
from ...ir.value import Load, Value
from .windows import Windows

FEWEST = 16  # fewest rows that tensor cores multiply
LANES_ROWS = 4  # most rows that a GPU multiplies without tensor cores
CPU_FEW_ROWS = 16  # most rows for which a CPU reads weights in place
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)  # read by prologues; the loop IR knows neither
ELEMENT = Load("<product>", (0,), torch.float32)  # the sum, inside of `f`
INTEGER = Load("<product>", (0,), torch.int32)  # the same of a product of bytes
OTHER = Load("<other>", (0,), torch.float32)  # the sum with the other right operand, if there are two


@dataclass(frozen=True)
class Matrix:
    """A matrix for each batch: a buffer, and strides in elements."""

    buffer: Buffer
    batch: int
    row: int
    column: int


@dataclass(frozen=True)
class Prologue:
    """An operand that is computed element by element while it is read.

    Args:
        value: the element (g, i, k) or (g, k, j), in the compute dtype of `dtype`.
        dtype: the dtype to which it is rounded, at most, before the multiplication.
        buffers: the buffers that it reads; the operand's `Matrix` is the largest of these.
    """

    value: Value
    dtype: torch.dtype
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True)
class ExtraOutput:
    """Another tensor that a product's kernel writes: its element (g, i, j) is `value`, stored at `place`."""

    buffer: Buffer
    place: Any
    value: Value


@dataclass(frozen=True)
class Product:
    """One product with its epilogue.

    Args:
        batch, row, column: the loops.
        depth: the loop over which products are summed.
        a: rows by depth, with column stride 1 (on GPUs any).
        b: depth by columns; if `packed`, one vector of columns after the other, each over the whole depth.
        out: the result; its element (g, i, j) is stored at `place`, and rows are contiguous.
        value: `f`, in the compute dtype of `out`, with `ELEMENT` for the sum.
        buffers: the buffers that `f` reads, and perhaps more.
        packed: whether `b` consists of vectors (see `packing`).
        more: other results: the product before the epilogue, if it has other readers (on GPUs).
        step: the loop over the depth, as a variable in prologues.
        left, right: the formulas of elements of `a` and `b`; None if they are loaded (on GPUs).
        other: another right operand, whose sums `f` reads too (`OTHER`): the other half of a gated layer (on GPUs).
        windows: where rows of `a` lie, if they have no stride (of bytes, on CPUs).
        also: the formula of its elements; None if they are loaded.
        exact: tensor cores must not be used for float32, which they would round first (on GPUs).
        early: no earlier kernel writes to `b`, so that it may be read before they have ended (on GPUs).
    """

    batch: Var
    row: Var
    column: Var
    depth: int
    a: Matrix
    b: Matrix
    out: Buffer
    place: Any
    value: Value
    buffers: tuple[Buffer, ...] = ()
    packed: bool = False
    more: tuple[ExtraOutput, ...] = ()
    step: Var | None = None
    left: Prologue | None = None
    right: Prologue | None = None
    other: Matrix | None = None
    exact: bool = False
    early: bool = False
    also: Prologue | None = None
    windows: Windows | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the operands."""
        return self.a.buffer.dtype if self.left is None else self.left.dtype

    @property
    def element(self) -> Load:
        """The sum, inside of `f`."""
        return INTEGER if self.is_of_bytes else ELEMENT

    @property
    def is_of_bytes(self) -> bool:
        """Whether it multiplies bytes with or without sign by signed ones; sums are integers (on CPUs)."""
        return self.dtype in (torch.int8, torch.uint8)

    @property
    def is_computed(self) -> bool:
        """Whether an operand has a prologue."""
        return self.left is not None or self.right is not None

    @property
    def results(self) -> tuple[ExtraOutput, ...]:
        """All buffers that are written, in the order of the kernel's parameters."""
        return (ExtraOutput(self.out, self.place, self.value), *self.more)

    @property
    def flops(self) -> int:
        """The number of multiplications and additions of the product."""
        return 2 * self.batch.extent * self.row.extent * self.column.extent * self.depth

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """All buffers that are read, in the order of the kernel's parameters."""
        return (self.a.buffer, self.b.buffer, *self.buffers)

    def row_tiles(self, rows: int, descriptors: bool) -> int:  # noqa: ARG002
        """The number of tiles with this many rows."""
        return -(-self.row.extent // rows)

    def steps(self, depth: int) -> int:
        """The number of steps of this depth."""
        return -(-self.depth // depth)

    @property
    def multiplications(self) -> int:
        """The number of multiplications."""
        return self.batch.extent * self.row.extent * self.column.extent * self.depth
