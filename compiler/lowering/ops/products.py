"""Small products: sums or products of elements, which fuse with what is around them.

    bmm(x[b, m, k], y[b, k, n])   ->   for b, i, j: reduce r < k of x[b, i, r] * y[b, r, j]: out[b, i, j] = sum
    bmm(x[b, m, 1], y[b, 1, n])   ->   for b, i, j: out[b, i, j] = x[b, i, 0] * y[b, 0, j]

Libraries have tiles for large matrices. Of many small ones (poses, points, filters' states), a tile each is mostly
idle; of one small one (the layers of a policy), the launch is all that counts. On CPUs such are products with vectors,
and matrices of a few numbers a side; large matrices of float32 whose rows are added up are the library's.

Of one matrix and a vector, a library's kernel takes several times as long as a fold on GPUs if the matrix is small, and
on CPUs if it has 16 bits. On CPUs, small products of float32 are as fast, and fuse (spectral norm):

    mv(x[m, k], y[k])             ->   for i: reduce r < k of x[i, r] * y[r]: out[i] = sum
    dot(x[k], y[k])               ->   reduce r < k of x[r] * y[r]: out = sum
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ....rewrites.graph import arguments, op_name
from ....rewrites.symbolic import known_equal
from ...ir.index.index import mul
from ...ir.value import Value
from ..arithmetic import plus, times
from ..core import Indices, Lowering, Tensor, Unlowered, cast, lowers
from ..fallbacks import kept

_MATRIX_BYTES = 1 << 20  # a second cache
# Of matrices of a batch on a CPU: rows, terms and columns; those of 16 bits; terms that any layout may have; columns.
_SIDE, _SIDE_HALF, _TERMS, _COLUMNS = 32, 16, 4, 8
_SMALL_BYTES = 4 << 20  # of one matrix on a GPU: a library's kernel takes longer than a fold of the graph's own
# Of products on a GPU:
_SHORT, _FEW = 3, 8  # terms of a sum: coordinates, with as few columns or rows
_MATRIX, _THIN = 4096, 4  # elements of a matrix of a batch, and rows or columns of the other
_LONG = 1024  # terms of 16 bits that make a library's product with one vector slow
_RESULTS = 4096  # elements of a result: fewer do not fill the GPU
_WORK, _NARROW, _MOST_WORK = 1 << 18, 16, 1 << 20  # products of elements; of so few columns, or 32 bits, more
_REGROUPED = frozenset({"aten.view", "aten._unsafe_view", "aten.reshape", "aten.unsqueeze", "aten.squeeze"})


@lowers("aten.bmm")
def bmm(low: Lowering, x: Tensor, y: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    """Each of the matrices of `x` by the one of `y`; terms are added up in float32 where elements have 16 bits."""
    if not _are_floats(x, y) or not (_is_small_on_cpu(low, x, y) or _is_small_on_gpu(low, x, y)):
        raise Unlowered(*_library("bmm"))
    return _product(low, x, y, out_dtype or x.dtype)


@lowers("aten.mm")
def mm(low: Lowering, x: Tensor, y: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    """A matrix by another, in the same way; on GPUs only."""
    if not _are_floats(x, y) or not _is_small_on_gpu(low, x, y):
        raise Unlowered(*_library("mm"))
    return _product(low, x, y, out_dtype or x.dtype)


@lowers("aten.addmm")
def addmm(low: Lowering, bias: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """The same of a linear layer, whose bias is added before the sum is rounded."""
    is_layer = bias.dtype == x.dtype and bias.sizes == y.sizes[1:] and (beta, alpha) == (1, 1)
    if not is_layer or not _are_floats(x, y) or not _is_small_on_gpu(low, x, y):
        raise Unlowered(*_library("addmm"))
    return _product(low, x, y, x.dtype, bias)


def _product(low: Lowering, x: Tensor, y: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """One reduction for each element, or one product of two."""
    *batch, rows, depth = x.sizes
    sizes = (*batch, rows, y.sizes[-1])

    def term(at: Indices, r: Indices) -> Value:
        *place, row, column = at
        return times(x.at((*place, row, r[0])), y.at((*place, r[0], column)))

    if depth == 1 and bias is None:
        return low.pointwise(lambda at: term(at, (0,)), sizes, dtype)

    def finish(at: Indices, parts: tuple[Value, ...]) -> Value:
        return parts[0] if bias is None else plus(parts[0], cast(bias.at(at[1:]), parts[0].dtype))

    return low.reduce("sum", term, sizes, (depth,), finish, [dtype])[0]


def _are_floats(x: Tensor, y: Tensor) -> bool:
    return x.dtype.is_floating_point and x.dtype == y.dtype


def _is_small_on_cpu(low: Lowering, x: Tensor, y: Tensor) -> bool:
    """Whether these are vectors, or small matrices, and many."""
    (batch, rows, depth), columns = x.sizes, y.sizes[2]
    if low.device.type != "cpu" or batch == 1 or depth == 0:
        return False
    if depth == 1 or _are_small(low, x, y):
        return True
    return 1 in (rows, columns) and not _adds_up_long_rows(low, y)


def _are_small(low: Lowering, x: Tensor, y: Tensor) -> bool:
    """Whether the call of a library takes longer than a fold: few terms, or half a vector of columns side by side."""
    (_, rows, depth), columns = x.sizes, y.sizes[2]
    sizes = rows, depth, columns
    if not all(isinstance(n, int) and n <= _SIDE for n in sizes):
        return False
    if depth <= _TERMS:
        return True
    longest = _SIDE if x.dtype.itemsize >= torch.float32.itemsize else _SIDE_HALF
    side_by_side = known_equal(_step_of_columns(arguments(low.current)["mat2"]), 1)
    return bool(side_by_side) and columns >= _COLUMNS and max(rows, depth) <= longest


def _step_of_columns(matrices: fx.Node) -> Any:
    """The stride of the last dim where a fold reads its elements: a copy in rows becomes a part of the fold."""
    node, value = matrices, matrices.meta["val"]
    while op_name(node) in _REGROUPED:
        node = node.args[0]  # type: ignore[assignment]
    if op_name(node) != "aten.clone":
        return value.stride(-1)
    source = node.args[0].meta["val"]  # type: ignore[union-attr]
    dims = [d for d, n in enumerate(source.shape) if not known_equal(n, 1)]
    is_row = bool(dims) and known_equal(source.shape[dims[-1]], value.shape[-1])
    return source.stride(dims[-1]) if is_row else value.stride(-1)


def _is_small_on_gpu(low: Lowering, x: Tensor, y: Tensor) -> bool:
    """Whether a library's kernel takes longer than a fold, as measured on an H100."""
    *batch, rows, depth = x.sizes
    columns = y.sizes[-1]
    count = batch[0] if batch else 1
    sizes = count, rows, depth, columns
    if low.device.type != "cuda" or not all(isinstance(size, int) and size for size in sizes):
        return False
    if depth <= _SHORT or (depth <= _FEW and min(rows, columns) <= _FEW):
        return True
    wide, aligned, results = x.dtype.itemsize >= torch.float32.itemsize, _lie_side_by_side(low), count * rows * columns
    thin = min(rows, columns)
    if batch and depth * max(rows, columns) <= _MATRIX and results >= _RESULTS and thin <= (_THIN if aligned else 1):
        return True
    if thin == 1 and aligned and (wide or (not batch and depth >= _LONG)):
        return True
    if wide:
        return results * depth <= _MOST_WORK
    return results <= _RESULTS and results * depth <= (_WORK if columns > _NARROW else _MOST_WORK)


def _lie_side_by_side(low: Lowering) -> bool:
    """Whether the elements to add are in rows of the first matrix, and in columns of the second."""
    values = arguments(low.current)
    first, second = values.get("mat1", values["self"]), values["mat2"]
    return first.meta["val"].stride(-1) == 1 == second.meta["val"].stride(-2)


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
