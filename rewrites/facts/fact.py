"""The kinds of facts, and how they are made: normalized, pruned, and only where the dtype holds the numbers.

    Uniform(0.0)                                  every element is 0.0
    Positions(offset=0, steps=(0, 1))             element [i, j] is j                          integers only
    Choice([i - j >= 0], yes=0.0, no=-inf)        element [i, j] is 0.0 where j <= i, -inf elsewhere
    Table(tensor)                                 a small tensor, element by element

Offsets, steps and sizes may be symbolic: a fact holds for every value of the symbols, and adds no guard. Of a tensor
without elements everything is true.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..symbolic import known, known_equal

Number = bool | int | float
Size = Any  # an int or a SymInt

_MOST = 1 << 40  # no size is larger: what int64 makes of a few of them does not wrap around
REAL = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Uniform:
    """All elements are `number`; `exact` unless eager may round it differently on the way."""

    number: Number
    exact: bool = True


@dataclass(frozen=True, eq=False)
class Positions:
    """Integers: `offset` plus, for every dim, its step times the index."""

    offset: Size
    steps: tuple[Size, ...]

    def aligned(self, rank: int) -> Positions:
        """The same positions after broadcasting to more dims, which stand in front."""
        return Positions(self.offset, (0,) * (rank - len(self.steps)) + self.steps)

    def plus(self, other: Positions, factor: Size = 1) -> Positions:
        """The sum with `factor` times another, of equal rank."""
        steps = tuple(settled(a + factor * b) for a, b in zip(self.steps, other.steps, strict=True))
        return Positions(settled(self.offset + factor * other.offset), steps)

    def negated(self) -> Positions:
        """What is non-negative where this is negative: -self - 1."""
        return Positions(settled(-self.offset - 1), tuple(settled(-s) for s in self.steps))

    def same(self, other: Positions) -> bool:
        """Whether the two are known to be equal."""
        mine, theirs = (self.offset, *self.steps), (other.offset, *other.steps)
        return len(mine) == len(theirs) and all(map(known_equal, mine, theirs))


@dataclass(frozen=True, eq=False)
class Conditional:
    """`yes` where all of `conditions` are non-negative, `no` elsewhere."""

    conditions: tuple[Positions, ...]
    yes: Number
    no: Number
    exact: bool = True


@dataclass(frozen=True, eq=False)
class Table:
    """A small tensor on the CPU; `exact` as for `Uniform`."""

    value: torch.Tensor
    exact: bool = True


Fact = Uniform | Positions | Conditional | Table


def settled(size: Size) -> Size:
    """A size without symbols as an int."""
    if not isinstance(size, torch.SymInt):
        return size
    expr = size.node.expr
    return int(expr) if expr.is_Integer else size


def nonnegative(size: Size) -> bool:
    """Whether a number is known to be 0 or more."""
    size = settled(size)
    return known(size >= 0) if isinstance(size, torch.SymInt) else size >= 0


def same_number(a: Number, b: Number) -> bool:
    """Whether two numbers of one dtype are the same bits: NaN is NaN, and the two zeros are two."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


def ends(positions: Positions, sizes: Sequence[Size]) -> tuple[Size, Size] | None:
    """The least and the largest number among `positions`; None where the sign of a step is not known."""
    low = high = positions.offset
    for step, size in zip(positions.steps, sizes, strict=True):
        reach = step * (size - 1)
        if nonnegative(step):
            high = high + reach
        elif nonnegative(-step):
            low = low + reach
        else:
            return None
    return settled(low), settled(high)


def make_positions(offset: Size, steps: Sequence[Size], value: torch.Tensor) -> Fact | None:
    """Positions as a tensor like `value` holds them; None where its dtype may not hold all of them."""
    if value.dtype.is_floating_point or value.dtype == torch.bool or value.dtype not in REAL:
        return None
    kept = tuple(0 if known_equal(n, 1) else settled(s) for s, n in zip(steps, value.shape, strict=True))
    made = Positions(settled(offset), kept)
    limits = ends(made, value.shape)
    if limits is None or not all(fits(end, value.dtype) for end in limits):
        return None
    constant = isinstance(made.offset, int) and all(isinstance(s, int) and s == 0 for s in kept)
    return Uniform(made.offset) if constant else made


def fits(number: Size, dtype: torch.dtype) -> bool:
    """Whether an integer dtype is known to hold a number."""
    info = torch.iinfo(dtype)
    if not isinstance(number, torch.SymInt):
        return info.min <= number <= info.max
    largest = _magnitude(number.node.expr, number.node.shape_env)
    return largest is not None and largest <= info.max and (info.min < 0 or nonnegative(number))


def _magnitude(expr: Any, shape_env: Any) -> int | None:
    """What the absolute value of a polynomial of sizes does not exceed."""
    if expr.is_Integer:
        return abs(int(expr))
    if expr.is_Symbol:
        limits = shape_env.bound_sympy(expr)
        if not bool(limits.lower > -_MOST):
            return None  # some number of the user's
        return int(limits.upper) if bool(limits.upper <= _MOST) else _MOST
    if not (expr.is_Add or expr.is_Mul):
        return None
    parts = [_magnitude(a, shape_env) for a in expr.args]
    if any(p is None for p in parts):
        return None
    return sum(parts) if expr.is_Add else math.prod(parts)  # type: ignore[arg-type]


def make_choice(
    conditions: Sequence[Positions], yes: Number, no: Number, sizes: Sequence[Size], exact: bool = True
) -> Fact:
    """A choice without the conditions that always hold; one number where they never all do.

    A single condition falls along its last dim that counts: j > i  is  not (j <= i).
    """
    if same_number(yes, no):
        return Uniform(yes, exact)
    kept: list[Positions] = []
    for condition in conditions:
        limits = ends(condition, sizes)
        if limits is not None and nonnegative(-limits[1] - 1):
            return Uniform(no, exact)
        always = limits is not None and nonnegative(limits[0])
        if not always and not any(condition.same(k) for k in kept):
            kept.append(condition)
    if not kept:
        return Uniform(yes, exact)
    if len(kept) == 1 and _rises(kept[0]):
        return Conditional((kept[0].negated(),), no, yes, exact)
    return Conditional(tuple(kept), yes, no, exact)


def _rises(condition: Positions) -> bool:
    steps = [s for s in condition.steps if not (isinstance(s, int) and s == 0)]
    return bool(steps) and isinstance(steps[-1], int) and steps[-1] > 0
