"""Batched products with a vector: on CPUs a sum or a product of elements, which fuses with what is around it.

    bmm(x[b, m, k], y[b, k, 1])   ->   for b, i: reduce r < k of x[b, i, r] * y[b, r, 0]: out[b, i, 0] = sum
    bmm(x[b, m, 1], y[b, 1, n])   ->   for b, i, j: out[b, i, j] = x[b, i, 0] * y[b, 0, j]

Libraries call a product for each matrix, which is small in such batches. One matrix alone is theirs, and so are GPUs',
and large matrices of float32 whose rows are added up.
"""

from __future__ import annotations

import torch

from ...ir.index.index import mul
from ...ir.value import Value
from ..arithmetic import times
from ..core import Indices, Lowering, Tensor, Unlowered, lowers
from ..fallbacks import kept

_MATRIX_BYTES = 1 << 20  # a second cache


@lowers("aten.bmm")
def bmm(low: Lowering, x: Tensor, y: Tensor) -> Tensor:
    """Each of the matrices of `x` by the one of `y`; terms are added up in float32 where elements have 16 bits."""
    (batch, rows, depth), columns = x.sizes, y.sizes[2]
    if low.device.type != "cpu" or not x.dtype.is_floating_point or x.dtype != y.dtype or batch == 1:
        raise Unlowered(*_library())
    sizes = (batch, rows, columns)
    if depth == 1 and x.dtype.itemsize >= torch.float32.itemsize:
        return low.pointwise(lambda at: times(x.at((at[0], at[1], 0)), y.at((at[0], 0, at[2]))), sizes, x.dtype)
    if 1 not in (rows, columns) or depth in (0, 1) or _adds_up_long_rows(low, y):
        raise Unlowered(*_library())

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


def _library() -> tuple[str, str]:
    found = kept("aten.bmm")
    assert found is not None
    return found
