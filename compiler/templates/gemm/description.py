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

FEWEST = 16  # rows that tensor cores multiply
LANES_ROWS = 4  # that a GPU's lanes multiply for themselves
CPU_FEW_ROWS = 16  # that a CPU multiplies with weights as they lie in memory
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)  # read by prologues; the loop IR knows neither
ELEMENT = Load("<product>", (0,), torch.float32)  # inside `f`: the sum
OTHER = Load("<other>", (0,), torch.float32)  # the same of the other right operand, where there are two


@dataclass(frozen=True)
class Matrix:
    """A matrix for each batch: a buffer and strides in elements."""

    buffer: Buffer
    batch: int
    row: int
    column: int


@dataclass(frozen=True)
class Prologue:
    """An operand that is computed element by element, as it is read.

    Args:
        value: the element (g, i, k) or (g, k, j), in the compute dtype of `dtype`.
        dtype: what it is rounded to before it is multiplied, at most.
        buffers: what it loads from; the operand's `Matrix` is the largest of these.
    """

    value: Value
    dtype: torch.dtype
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True)
class Result:
    """One more tensor that a product's kernel writes: its element (g, i, j) lies at `place` and is `value`."""

    buffer: Buffer
    place: Any
    value: Value


@dataclass(frozen=True)
class Product:
    """One product with its epilogue.

    Args:
        batch, row, column: the loops.
        depth: what is summed over.
        a: rows by depth, its column stride 1 (on GPUs any).
        b: depth by columns; where `packed`, vectors of columns one after the other, each with all of depth.
        out: the result; its element (g, i, j) lies at `place`, neighbours in a row side by side.
        value: `f`, in the compute dtype of `out`, with `ELEMENT` for the sum.
        buffers: what `f` loads from, and maybe more.
        packed: whether `b` comes in vectors (see `packing`).
        more: what else is written; the product before the epilogue, where somebody else reads it (on GPUs).
        step: the loop over the depth, of which prologues are formulas.
        left, right: how elements of `a` and `b` are computed, None where they are loaded (on GPUs).
        other: one more right operand, whose sums `f` has too (`OTHER`): the other half of a gated layer (on GPUs).
        also: how its elements are computed, None where they are loaded.
        exact: tensor cores, which cut float32 short before they multiply it, are not allowed to (on GPUs).
        early: `b` lies still, whatever kernels before this one do: it may be read before they have ended (on GPUs).
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
    more: tuple[Result, ...] = ()
    step: Var | None = None
    left: Prologue | None = None
    right: Prologue | None = None
    other: Matrix | None = None
    exact: bool = False
    early: bool = False
    also: Prologue | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the operands."""
        return self.a.buffer.dtype if self.left is None else self.left.dtype

    @property
    def is_computed(self) -> bool:
        """Whether an operand has a prologue."""
        return self.left is not None or self.right is not None

    @property
    def results(self) -> tuple[Result, ...]:
        """Everything that is written, in the order of the kernel's parameters."""
        return (Result(self.out, self.place, self.value), *self.more)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * self.batch.extent * self.row.extent * self.column.extent * self.depth

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """Every buffer that is read, in the order of the kernel's parameters."""
        return (self.a.buffer, self.b.buffer, *self.buffers)

    def row_tiles(self, rows: int, descriptors: bool) -> int:  # noqa: ARG002
        """How many tiles of so many rows there are."""
        return -(-self.row.extent // rows)

    def steps(self, depth: int) -> int:
        """How many steps of a depth there are."""
        return -(-self.depth // depth)

    @property
    def multiplications(self) -> int:
        """How many products are summed in all."""
        return self.batch.extent * self.row.extent * self.column.extent * self.depth
