"""The description of an attention: `softmax(f(q k^T)) v`, with `f` a value of the loop IR.

    for g in lead, i < M, j < N:   score[g, i, j] = f(g, i, j, sum over d of q[g, i, d] * k[g, j, d])
    for g in lead, i < M, e < Dv:  out[g, i, e]   = sum over j of softmax(score[g, i])[j] * v[g, j, e]

In training weights may be dropped: softmax(score[g, i])[j] * keep[g, i, j] * kept, the softmax over all keys as before.
Operands are read where they are: permuted, expanded, with repeated KV heads; so is everything that `f` loads.
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

SCORE = Load("<score>", (0,), torch.float32)  # inside `f`: the raw product of a row of q and a row of k


@dataclass(frozen=True)
class Operand:
    """A matrix for each iteration of the lead loops, somewhere in a buffer.

    Args:
        buffer: what it is a part of.
        base: where it starts, in elements: an index of the lead variables.
        row, column: its strides, in elements.
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
        depth, width: columns of q and k, and of v and the result.
        q, k, v, out: the operands.
        score: `f` over `lead`, `row` and `key`, float32, with `SCORE` for the raw product.
        buffers: what `f` (and `sink`, and `keep`) loads from.
        sink: over `lead` and `row`: one more score, whose key has the value 0; None without.
        safe: a row without any finite score gives 0 rather than NaN.
        keep: over `lead`, `row` and `key`, bool: which weights stay, the others are 0; None where all do. Dropout draws
            it from a seed: a load from `buffers`.
        kept: what weights that stay are multiplied with: 1 / (1 - p), above 0 and finite.
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
        """Multiplications and additions of both products."""
        pairs = math.prod(var.extent for var in (*self.lead, self.row, self.key))
        return 2 * pairs * (self.depth + self.width)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """Every buffer that is read, each once, in the order of the kernel's parameters."""
        return tuple(dict.fromkeys([self.q.buffer, self.k.buffer, self.v.buffer, *self.buffers]))

    @property
    def values(self) -> tuple[Value, ...]:
        """`score`, and `sink` and `keep` where there is one."""
        return tuple(value for value in (self.score, self.sink, self.keep) if value is not None)

    def loads(self) -> Iterator[Load]:
        """The loads of `values`, without the score."""
        return (value for value in walk(self.values) if isinstance(value, Load) and value is not SCORE)


def operand(buffer: Buffer, address: Any, row: Var, column: Var) -> Operand | None:
    """The operand whose element (row, column) is at `address`; None where that is not affine in both.

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
    """Where an element lies, in elements from the buffer's first."""
    total: Any = 0
    for index, stride in zip(indices, buffer.strides, strict=True):
        total = total + index * stride
    return total


def mentions(monomial: tuple[Atom, ...], var: Var) -> bool:
    """Whether a product of an index depends on a variable, divisions and the like looked into."""
    return any(found is var for atom in monomial for found in atoms(Index((((atom,), 1),))))
