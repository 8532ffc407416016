"""Positions as values: what lowerings need to load and store at computed places.

within(i - 1, 8)             ->  [i - 1 >= 0]                          conditions, without what always holds
guarded([i - 1 >= 0], x, 0)  ->  Guarded(i - 1 >= 0, x[i - 1], 0)      a load that may lie outside
loaded(index, (i, j), 8)     ->  an index read from the tensor `index`, which must address 8 elements
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch

from ..ir.index.bounds import known_lt, known_nonnegative
from ..ir.index.index import Index, Loaded, Var, add, atoms, mul, quotient, remainder
from ..ir.index.ranges import in_range
from ..ir.value import Const, Guarded, Value, compute_dtype, indices_of, walk
from .arithmetic import op, size_value
from .core import Indices, Lowering, Tensor, Unlowered, cast, const
from .ops.elementwise import element
from .scalars import literal


def swapped(indices: Sequence[Any], dim: int, *new: Any) -> Indices:
    """Indices with the one at `dim` replaced by `new` (none, one, or several)."""
    return (*indices[:dim], *new, *indices[dim + 1 :])


def numel(sizes: Sequence[Any]) -> Any:
    """The product of sizes."""
    return reduce(mul, sizes, 1)


def is_empty(sizes: Sequence[Any]) -> bool:
    """Whether a tensor of these sizes is known to have no elements."""
    return any(not isinstance(size, Index) and size == 0 for size in sizes)


def raveled(indices: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """The row-major position of an element."""
    return reduce(lambda flat, pair: add(mul(flat, pair[1]), pair[0]), zip(indices, sizes, strict=True), 0)


def unraveled(flat: Any, sizes: Sequence[Any]) -> Indices:
    """The indices of the element at a row-major position."""
    indices: list[Any] = []
    for size in reversed(sizes[1:]):
        indices.append(remainder(flat, size) if size != 0 else 0)
        flat = quotient(flat, size) if size != 0 else 0
    return (flat, *reversed(indices)) if sizes else ()


def compared(name: str, a: Any, b: Any) -> Value:
    """Two indices compared: `name` is one of eq, ne, lt, le, gt, ge."""
    return op(name, size_value(a, torch.int64), size_value(b, torch.int64))


def within(index: Any, size: Any) -> list[Value]:
    """The conditions for ``0 <= index < size`` that do not always hold."""
    conditions = [] if known_nonnegative(index) else [compared("ge", index, 0)]
    return conditions if known_lt(index, size) else [*conditions, compared("lt", index, size)]


def all_of(conditions: Sequence[Value]) -> Value:
    """The conjunction of conditions, at least one."""
    return reduce(lambda a, b: op("logical_and", a, b), conditions)


def guarded(conditions: Sequence[Value], value: Value, other: Value) -> Value:
    """`value` where all conditions hold, `other` elsewhere."""
    if not conditions:
        return value
    return Guarded(all_of(conditions), value, other, value.dtype)


def loaded(index: Tensor, indices: Sequence[Any], size: Any, *, wrap: bool = False) -> Any:
    """The index that an integer tensor (broadcast to `indices`) holds, for a dimension of `size`."""
    return Loaded(cast(element(index, indices), torch.int64), size, wrap).index()


def picked(x: Tensor, at: Indices) -> Value:
    """The element at indices of which some are read from memory, which are checked even if the element is the same.

    x: 4 elements, each one the same in memory; x[loaded i]  ->  where(loaded i >= 0, x, x)
    """
    value = x.at(at)
    kept = {atom for part in walk([value]) for number in indices_of(part) for atom in atoms(number)}
    for number in at:
        if any(isinstance(atom, Loaded) and atom not in kept and not in_range(atom) for atom in atoms(number)):
            value = op("where", compared("ge", number, 0), value, value)
    return value


def scalar(value: Any, dtype: torch.dtype) -> Value:
    """A scalar argument (a number, known or not, or a tensor of rank 0) in the dtype that `dtype` is computed in."""
    kind = compute_dtype(dtype)
    if isinstance(value, Tensor):
        return cast(element(value, (0,) * len(value.sizes)), kind)
    return literal(value, kind)


def lowest(dtype: torch.dtype) -> Const:
    """The lower bound of all numbers of a dtype."""
    kind = compute_dtype(dtype)
    if kind == torch.bool:
        return const(False, kind)
    return const(-float("inf") if kind.is_floating_point else torch.iinfo(kind).min, kind)


def highest(dtype: torch.dtype) -> Const:
    """The upper bound of all numbers of a dtype."""
    kind = compute_dtype(dtype)
    if kind == torch.bool:
        return const(True, kind)
    return const(float("inf") if kind.is_floating_point else torch.iinfo(kind).max, kind)


def filled(low: Lowering, sizes: Sequence[Any], value: Any, dtype: torch.dtype) -> Tensor:
    """Fresh memory full of one number, to be written in part."""
    number = scalar(value, dtype)
    return low.pointwise(lambda _: number, sizes, dtype)


def require_rank(x: Tensor, rank: int = 1) -> None:
    """Refuse tensors of fewer dims: for them eager's rules about indices are others.

    Raises:
        Unlowered: `x` has less than `rank` dims.
    """
    if len(x.sizes) < rank:
        raise Unlowered("arguments", f"a tensor of {len(x.sizes)} dims, {rank} needed")


def iterations(loops: Sequence[Var]) -> Indices:
    """The loop variables as indices."""
    return tuple(v.index() for v in loops)
