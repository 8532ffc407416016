"""Builders of the canonical spellings: each returns the simplest node with the requested value.

    permute(permute(x))  ->  permute(x)        reshape(reshape(x))  ->  reshape(x)        identity  ->  x

`user` is the node that is respelled: a builder looks through operands only if that node may.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import graph
from ...rewrites.editor import Editor
from ...rewrites.graph import dtype, is_number, is_tensor, rank, sees, shape, val
from ...rewrites.symbolic import hint, known_equal, same_shape
from .analysis import Factor, is_literal, uniform

aten = torch.ops.aten

END = torch.iinfo(torch.int64).max
"""The end of the slice in x[n:]."""


def permute(edit: Editor, user: fx.Node, x: fx.Node, dims: Sequence[int]) -> fx.Node:
    """`x` with its dimensions in the order `dims` (none negative)."""
    dims = list(dims)
    while sees(user, x, "aten.permute"):
        inner = [d % len(dims) for d in x.args[1]]
        x, dims = x.args[0], [inner[d] for d in dims]
    if dims == sorted(dims):
        return x
    if not reorders(x, dims):
        return reshape(edit, user, x, [shape(x)[d] for d in dims])
    return edit.call(aten.permute.default, x, dims)


def reorders(x: fx.Node, dims: Sequence[int]) -> bool:
    """Whether a permutation changes the order of elements: moving dimensions of size 1 does not."""
    sizes = shape(x)
    moved = [d for d in dims if not known_equal(sizes[d], 1)]
    return moved != sorted(moved)


def swap_last(edit: Editor, user: fx.Node, x: fx.Node) -> fx.Node:
    """The last two dimensions of `x` exchanged."""
    n = rank(x)
    return permute(edit, user, x, [*range(n - 2), n - 1, n - 2])


def reshape(edit: Editor, user: fx.Node, x: fx.Node, sizes: Sequence[Any]) -> fx.Node:
    """`x` in the shape `sizes`, each size explicit."""
    while sees(user, x, "aten.reshape"):
        x = x.args[0]
    if same_shape(shape(x), sizes):
        return x
    return edit.call(aten.reshape.default, x, list(sizes))


def expand(edit: Editor, user: fx.Node, x: fx.Node, sizes: Sequence[Any]) -> fx.Node:
    """`x` broadcast to `sizes`: leading dimensions are added by a reshape first, so that ranks agree."""
    missing = len(sizes) - rank(x)
    x = reshape(edit, user, x, [1] * missing + list(shape(x))) if missing else x
    while sees(user, x, "aten.expand") and rank(x.args[0]) == rank(x):
        x = x.args[0]
    return x if same_shape(shape(x), sizes) else edit.call(aten.expand.default, x, list(sizes))


def cast(edit: Editor, user: fx.Node, x: fx.Node, to: torch.dtype) -> fx.Node:
    """`x` in another dtype; if `x` is a widening cast, its operand is cast instead."""
    while sees(user, x, "aten.to") and is_tensor(x.args[0]) and widens(dtype(x.args[0]), dtype(x)):
        if val(x).device != val(x.args[0]).device:
            break
        x = x.args[0]
    return x if dtype(x) == to else edit.call(aten.to.dtype, x, to)


def widens(narrow: torch.dtype, wide: torch.dtype) -> bool:
    """Whether every value of the floating type `narrow` is one of `wide`."""
    return narrow.is_floating_point and wide.is_floating_point and graph.widens(narrow, wide)


def scaled(edit: Editor, x: fx.Node, factor: Factor) -> fx.Node:
    """`x * factor`; `x` itself for a factor of 1."""
    if is_literal(factor) and factor == 1:
        return x
    if is_tensor(factor) and rank(factor) > 0:
        factor = edit.call(aten.reshape.default, factor, [])
    return edit.call(aten.mul.Tensor, x, factor)


def times(edit: Editor, a: Factor, b: Factor) -> Factor:
    """The product of two factors, a number where both are numbers.

    It scales a floating-point tensor, so it is not computed in 64 bits, which two integers may exceed.
    """
    if is_literal(a) and is_literal(b):
        return a * b if _fits(a * b) else float(a) * float(b)
    if is_number(a) and is_number(b):
        return edit.call(operator.mul, _as_float(edit, a), b)
    if is_number(a):
        a, b = b, a
    return scaled(edit, a, b)


def _fits(number: float) -> bool:
    return not isinstance(number, int) or -(1 << 63) <= number < 1 << 63


def _as_float(edit: Editor, number: Factor) -> Factor:
    """A number of a program as a float: of a node, a node."""
    if is_literal(number):
        return float(number)
    return edit.call(torch.sym_float, number) if isinstance(val(number), (int, torch.SymInt)) else number


def inverse(edit: Editor, factor: Factor) -> Factor | None:
    """`1 / factor`, or None if the factor is 0."""
    known = uniform(factor)
    if known is not None:
        return 1.0 / known if known != 0 else None
    if is_number(factor):  # a symbol may be 0 in the example and another number later
        return edit.call(operator.truediv, 1.0, factor) if hint(val(factor)) != 0 else None
    return edit.call(aten.reciprocal.default, factor)


def part(edit: Editor, user: fx.Node, x: fx.Node, dim: int, start: Any, end: Any) -> fx.Node | None:
    """slice(x, dim, start, end) for a part of `x` that `user` takes, if it is known to be as long.

    A slice ends where `x` ends. Of symbolic sizes it may not be known that they reach no further.
    """
    new = edit.call(aten.slice.Tensor, x, dim, start, end_of(end, shape(x)[dim]))
    return new if same_shape(shape(new), shape(user)) else None


def end_of(end: Any, size: Any) -> Any:
    """The end of a slice of a dim of `size`."""
    return END if known_equal(end, size) else end
