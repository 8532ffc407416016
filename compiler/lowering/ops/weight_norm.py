"""Gradients of a weight that is a direction with a length: w = g * v / norm(v), the norm over all dims but one.

for j: reduce over the others of dw * v: dot[j] = sum
for i, j: dv[i, j] = g[j] / norm[j] * (dw[i, j] - v[i, j] * dot[j] / norm[j] ** 2)
for j: dg[j] = dot[j] / norm[j]
"""

from __future__ import annotations

from ...ir.value import Value, compute_dtype
from ..arithmetic import minus, over, times
from ..core import Indices, Lowering, Tensor, cast, lowers
from ..spaces import promised


@lowers("aten._weight_norm_interface_backward")
def weight_norm_backward(
    low: Lowering, dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients of direction and length; sums are of the dtype of the computation."""
    dtype, axis = compute_dtype(v.dtype), dim % len(v.sizes)
    others = [size for d, size in enumerate(v.sizes) if d != axis]

    def product(at: Indices, r: Indices) -> Value:
        place = (*r[:axis], at[0], *r[axis:])
        return times(cast(dw.at(place), dtype), cast(v.at(place), dtype))

    dot = low.reduce("sum", product, (v.sizes[axis],), others, lambda _, parts: parts[0], [dtype])[0]

    def length(of: Tensor, at: Indices) -> Value:
        return cast(of.at(tuple(i if d == axis else 0 for d, i in enumerate(at))), dtype)

    def direction(at: Indices) -> Value:
        norm = length(norms, at)
        along = times(cast(v.at(at), dtype), over(dot.at((at[axis],)), times(norm, norm)))
        return times(over(length(g, at), norm), minus(cast(dw.at(at), dtype), along))

    dv = low.pointwise(direction, v.sizes, promised(low, 0), output=0)
    dg = low.pointwise(lambda at: over(dot.at((at[axis],)), length(norms, at)), g.sizes, promised(low, 1), output=1)
    return dv, dg
