"""The spaces that nested loops enumerate: how large, in which order, in how many blocks.

i < 128, j < 768      98304 iterations, number 768*i + j, in blocks of 1024: 96
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from .index.bounds import bounds
from .index.index import Atom, Index, Loaded, Quotient, Size, Var, add, atoms, most, mul, quotient
from .program import Buffer

_INT32 = 2**31 - 1


def extent_of(loops: Iterable[Var]) -> Any:
    """How many iterations loops have together."""
    total: Any = 1
    for var in loops:
        total = mul(total, var.extent)
    return total


def number_of(loops: Sequence[Var]) -> Any:
    """The number of an iteration of loops, outermost first, among all of theirs."""
    total: Any = 0
    for var in loops:
        total = add(mul(total, var.extent), var.index())
    return total


def power_of_two(size: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << max(size - 1, 0).bit_length()


def blocks_of(extent: Any, block: int) -> Any:
    """How many blocks cover an extent."""
    if isinstance(extent, int):
        return -(-extent // block)
    return quotient(add(extent, block - 1), block)


def is_small(number: Any) -> bool:
    """Whether 32 bits hold an index, also as computed by lanes outside of the loops."""
    low, high = bounds(number)
    return low is not None and high is not None and max(-low, high) < _INT32 // 2


@lru_cache(1 << 12)
def largest(number: Any) -> Any:
    """A bound of an index and of all numbers that it is computed from, by sizes alone: the terms' magnitudes, added.

    t*i - j, i < s, j < t   ->   t*s + t
    """
    if not isinstance(number, Index):
        return abs(number)
    total: Any = 0
    for monomial, coefficient in number.terms:
        product: Any = abs(coefficient)
        for atom in monomial:
            product = mul(product, _largest(atom))
        total = add(total, product)
    return total


def _largest(atom: Atom) -> Any:
    if isinstance(atom, Size):
        return atom.index() if atom.low is not None and atom.low >= 0 else most(atom.index(), mul(atom.index(), -1))
    if isinstance(atom, Var):
        return largest(atom.extent)
    if isinstance(atom, Loaded):
        return largest(atom.size)
    a, b = (largest(part) for part in atom.fields())
    return a if isinstance(atom, Quotient) else add(a, b)


def has_small_offsets(buffer: Buffer) -> bool:
    """The bound of every offset into a buffer whose sizes are numbers."""
    reach = sum(abs((size - 1) * stride) for size, stride in zip(buffer.sizes, buffer.strides, strict=True))
    return reach < _INT32 // 2


def is_indirect(offset: Any) -> bool:
    """Whether an index reads memory."""
    return isinstance(offset, Index) and any(isinstance(atom, Loaded) for atom in atoms(offset))


def are_apart(a: Any, b: Any) -> bool:
    """Whether two indices differ for certain, by a number."""
    apart = add(a, mul(b, -1))
    return isinstance(apart, int) and apart != 0
