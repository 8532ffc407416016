"""Products with a vector: sums or products of elements, which fuse with what is around them.

    bmm(x[b, m, k], y[b, k, 1])   ->   for b, i: reduce r < k of x[b, i, r] * y[b, r, 0]: out[b, i, 0] = sum
    bmm(x[b, m, 1], y[b, 1, n])   ->   for b, i, j: out[b, i, j] = x[b, i, 0] * y[b, 0, j]

Libraries call a product for each matrix, which is small in such batches. Batches on GPUs are theirs, and so are large
matrices of float32 whose rows are added up.

Of one matrix and a vector, a library's kernel takes several times as long as a fold on GPUs if the matrix is small, and
on CPUs if it has 16 bits. On CPUs, small products of float32 are as fast, and fuse (spectral norm):

    mv(x[m, k], y[k])             ->   for i: reduce r < k of x[i, r] * y[r]: out[i] = sum
    dot(x[k], y[k])               ->   reduce r < k of x[r] * y[r]: out = sum
"""

from __future__ import annotations

from typing import Any

import torch

from ...ir.index.index import mul
from ...ir.value import Value
from ..arithmetic import times
from ..core import Indices, Lowering, Tensor, Unlowered, lowers
from ..fallbacks import kept

_MATRIX_BYTES = 1 << 20  # a second cache
_SMALL_BYTES = 4 << 20  # of one matrix on a GPU: a library's kernel takes longer than a fold of the graph's own


@lowers("aten.bmm")
def bmm(low: Lowering, x: Tensor, y: Tensor) -> Tensor:
    """Each of the matrices of `x` by the one of `y`; terms are added up in float32 where elements have 16 bits."""
    (batch, rows, depth), columns = x.sizes, y.sizes[2]
    if low.device.type != "cpu" or not x.dtype.is_floating_point or x.dtype != y.dtype or batch == 1:
        raise Unlowered(*_library("bmm"))
    sizes = (batch, rows, columns)
    if depth == 1 and x.dtype.itemsize >= torch.float32.itemsize:
        return low.pointwise(lambda at: times(x.at((at[0], at[1], 0)), y.at((at[0], 0, at[2]))), sizes, x.dtype)
    if 1 not in (rows, columns) or depth in (0, 1) or _adds_up_long_rows(low, y):
        raise Unlowered(*_library("bmm"))

    def term(at: Indices, r: Indices) -> Value:
        return times(x.at((at[0], at[1], r[0])), y.at((at[0], r[0], at[2])))

    return low.reduce("sum", term, sizes, (depth,), lambda _, parts: parts[0], [x.dtype])[0]


def _adds_up_long_rows(low: Lowering, matrices: Tensor) -> bool:
    """Whether rows, not columns, lie in one piece and leave the caches; of 16 bits libraries are slower there, too."""
    _, rows, columns = matrices.sizes
    in_columns = low.current.args[1].meta["val"].stride(1) == 1
    if columns == 1 or in_columns or matrices.dtype.itemsize < torch.float32.itemsize:
        return False
    size = mul(mul(rows, columns), matrices.dtype.itemsize)
    return not isinstance(size, int) or size > _MATRIX_BYTES


@lowers("aten.mv")
def mv(low: Lowering, x: Tensor, y: Tensor) -> Tensor:
    """A matrix by a vector; terms are added up in float32 where elements have 16 bits."""
    if not _is_fold(low, x, y):
        raise Unlowered(*_library("mv"))
    depth = x.sizes[1]
    term = lambda at, r: times(x.at((at[0], r[0])), y.at(r))  # noqa: E731
    return low.reduce("sum", term, x.sizes[:1], (depth,), lambda _, parts: parts[0], [x.dtype])[0]


@lowers("aten.dot")
def dot(low: Lowering, x: Tensor, y: Tensor) -> Tensor:
    """The sum of products of two vectors, in the same way."""
    if not _is_fold(low, x, y):
        raise Unlowered(*_library("dot"))
    term = lambda _, r: times(x.at(r), y.at(r))  # noqa: E731
    return low.reduce("sum", term, (), x.sizes, lambda _, parts: parts[0], [x.dtype])[0]


def _is_fold(low: Lowering, x: Tensor, y: Tensor) -> bool:
    """Whether a fold takes no longer than a library's kernel."""
    if not x.dtype.is_floating_point or x.dtype != y.dtype:
        return False
    size: Any = x.dtype.itemsize
    for extent in x.sizes:
        size = mul(size, extent)
    if not isinstance(size, int) or size == 0:
        return False
    if low.device.type == "cpu":
        return x.dtype.itemsize < torch.float32.itemsize or size <= _MATRIX_BYTES
    return size <= _SMALL_BYTES


def _library(name: str) -> tuple[str, str]:
    found = kept(f"aten.{name}")
    assert found is not None
    return found
