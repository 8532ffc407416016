"""The description of an attention: `softmax(f(q k^T)) v`, with `f` a value of the loop IR.

    for g in lead, i < M, j < N:   score[g, i, j] = f(g, i, j, sum over d of q[g, i, d] * k[g, j, d])
    for g in lead, i < M, e < Dv:  out[g, i, e]   = sum over j of softmax(score[g, i])[j] * v[g, j, e]

In training there may be dropout: softmax(score[g, i])[j] * keep[g, i, j] * kept, with the softmax over all keys as
before. Operands are read in place, whether permuted, expanded, or with repeated KV heads, and so are the operands of
`f`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...ir.index.index import Atom, Index, Var, atoms, from_terms, terms
from ...ir.program import Buffer
from ...ir.value import Load, Value, walk

SCORE = Load("<score>", (0,), torch.float32)  # the product of a row of q and a row of k, inside of `f`


@dataclass(frozen=True)
class Operand:
    """A matrix for each iteration of the lead loops, as a part of a buffer.

    Args:
        buffer: the buffer.
        base: the start of the matrix in elements, as an index of the lead variables.
        row, column: its strides in elements.
    """

    buffer: Buffer
    base: Any
    row: int
    column: int


@dataclass(frozen=True)
class Attention:
    """One attention.

    Args:
        lead: loops over batches, heads, windows, ...
        row: the loop over queries.
        key: the loop over keys.
        depth, width: the number of columns of q and k, and of v and the result.
        q, k, v, out: the operands.
        score: `f` over `lead`, `row` and `key`, float32, with `SCORE` for the raw product.
        buffers: the buffers that `f`, `sink` and `keep` read.
        sink: over `lead` and `row`: an additional score, whose value is 0; None if there is none.
        safe: whether a row without any finite score gives 0 instead of NaN.
        keep: over `lead`, `row` and `key`, bool: the probabilities that dropout keeps, others are 0; None without
            dropout. It is computed from a seed, which is a load from `buffers`.
        kept: the factor of kept probabilities: 1 / (1 - p), above 0 and finite.
    """

    lead: tuple[Var, ...]
    row: Var
    key: Var
    depth: int
    width: int
    q: Operand
    k: Operand
    v: Operand
    out: Operand
    score: Value
    buffers: tuple[Buffer, ...] = ()
    sink: Value | None = None
    safe: bool = False
    keep: Value | None = None
    kept: float = 1.0

    @property
    def flops(self) -> int:
        """The number of multiplications and additions of both products."""
        pairs = math.prod(var.extent for var in (*self.lead, self.row, self.key))
        return 2 * pairs * (self.depth + self.width)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """All buffers that are read, each once, in the order of the kernel's parameters."""
        return tuple(dict.fromkeys([self.q.buffer, self.k.buffer, self.v.buffer, *self.buffers]))

    @property
    def values(self) -> tuple[Value, ...]:
        """`score`, and `sink` and `keep` if they are given."""
        return tuple(value for value in (self.score, self.sink, self.keep) if value is not None)

    def loads(self) -> Iterator[Load]:
        """The loads of `values`, except for the score."""
        return (value for value in walk(self.values) if isinstance(value, Load) and value is not SCORE)


def operand(buffer: Buffer, address: Any, row: Var, column: Var) -> Operand | None:
    """The operand whose element (row, column) is at `address`; None if the address is not affine in both.

    640*g0 + 80*(g1 // 2) + 8*i + d   ->   base 640*g0 + 80*(g1 // 2), row 8, column 1
    """
    base: dict[tuple[Atom, ...], int] = {}
    strides = {row: 0, column: 0}
    for monomial, coefficient in terms(address):
        if len(monomial) == 1 and monomial[0] in strides:
            strides[monomial[0]] = coefficient  # type: ignore[index]
        elif mentions(monomial, row) or mentions(monomial, column):
            return None
        else:
            base[monomial] = coefficient
    return Operand(buffer, from_terms(base), strides[row], strides[column])


def address(buffer: Buffer, indices: tuple[Any, ...]) -> Any:
    """The position of an element, in elements from the start of the buffer."""
    total: Any = 0
    for index, stride in zip(indices, buffer.strides, strict=True):
        total = total + index * stride
    return total


def mentions(monomial: tuple[Atom, ...], var: Var) -> bool:
    """Whether a product of an index depends on a variable, also inside of divisions."""
    return any(found is var for atom in monomial for found in atoms(Index((((atom,), 1),))))
