"""Reductions: sums, extrema, positions of extrema, moments, norms.

    sum:     for i < 8: reduce j < 4 of x[i, j]:      sum[i] = total
    argmax:  for i < 8: reduce j < 4 of (x[i, j], j): argmax[i] = position
    var:     mean first, then the mean of squared deviations; in one pass (Welford) where rows do not stay in cache

Float16 and bfloat16 are accumulated in float32. Rows that may be empty are refused where eager raises for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ...ir.index.bounds import bounds
from ...ir.reducers import REDUCERS
from ...ir.value import HALVES, Number, Value, compute_dtype
from ..arithmetic import element, minus, op, over, plus, power, size_value, square, times, where
from ..core import Indices, Lowering, Tensor, Unlowered, cast, lowers
from ..scalars import Scalar, literal
from ..spaces import Space, fold, promised, require_elements, space, stored, total
from .deviations import first_of, is_scaled, scaled_deviation
from .elementwise import rounded

Finish = Callable[[Value], tuple[Value, ...]]


def _first(_: Indices, value: Value) -> Value:
    return value


# -- sums and products -------------------------------------------------------------------------------------------------


def _exact(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of sums: integers and bool add up in int64."""
    return dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)


@lowers("aten.sum")
def sum_(low: Lowering, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The sum; integers and bool in int64."""
    made = _exact(x, dtype)
    return total(low, space(x, dim, keepdim), lambda i: element(x, i, made), made)


@lowers("aten.nansum")
def nansum(low: Lowering, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The sum of what is not NaN."""
    _refuse_no_dims(dim)
    if not x.dtype.is_floating_point:
        return sum_(low, x, dim, keepdim, dtype)
    made = _exact(x, dtype)
    if made.is_floating_point:
        return total(low, space(x, dim, keepdim), lambda i: _nan_as_zero(element(x, i, made)), made)
    return total(low, space(x, dim, keepdim), lambda i: cast(_as_number(element(x, i, x.dtype), x.dtype), made), made)


def _refuse_no_dims(dim: Any) -> None:
    """Eager and its shape inference differ over what ``[]`` means to these."""
    if isinstance(dim, (list, tuple)) and not dim:
        raise Unlowered("arguments", "an empty list of dims")


def _nan_as_zero(value: Value) -> Value:
    return where(op("isnan", value), 0, value) if value.dtype.is_floating_point else value


def _as_number(value: Value, dtype: torch.dtype) -> Value:
    """A number in place of NaN and infinity, as eager's `nan_to_num` gives it before a cast to integers."""
    limits = torch.finfo(dtype)
    value = _nan_as_zero(rounded(value, dtype))
    return where(op("gt", value, limits.max), limits.max, where(op("lt", value, limits.min), limits.min, value))


@lowers("aten.prod")
def prod(low: Lowering, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The product; integers and bool in int64."""
    made = _exact(x, dtype)
    return fold(low, space(x, dim, keepdim), "prod", lambda i: element(x, i, made), _first, made)[0]


@lowers("aten.mean")
def mean(low: Lowering, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The mean; NaN of nothing. On CPUs eager makes 16 bits of the mean, not of what it is of."""
    made = dtype or x.dtype
    summed = compute_dtype(made) if low.device.type == "cpu" else made
    return average(low, space(x, dim, keepdim), lambda i: element(x, i, summed), made)


def average(low: Lowering, of: Space, compute: Callable[[Indices], Value], dtype: torch.dtype) -> Tensor:
    """The mean over a space, as a tensor; NaN of nothing."""
    return fold(low, of, "sum", compute, lambda _, x: over(x, size_value(of.count, x.dtype)), dtype)[0]


@lowers("aten.count_nonzero")
def count_nonzero(low: Lowering, x: Tensor, dim: Any = None) -> Tensor:
    """How many elements are not 0."""
    return total(low, space(x, dim), lambda i: cast(_nonzero(x.at(i)), torch.int64), torch.int64)


# -- logic -------------------------------------------------------------------------------------------------------------


def _nonzero(value: Value) -> Value:
    return value if value.dtype == torch.bool else op("ne", value, 0)


def _logical(low: Lowering, x: Tensor, of: Space, reducer: str) -> Tensor:
    made = torch.uint8 if x.dtype == torch.uint8 else torch.bool
    return fold(low, of, reducer, lambda i: _nonzero(x.at(i)), _first, made)[0]


def _some(x: Tensor, dim: Any, keepdim: bool) -> Space:
    """`any` and `all` take ``[]`` for no dim at all, unlike the other reductions; None is every dim."""
    return Space(x.sizes, (), keepdim) if isinstance(dim, (list, tuple)) and not dim else space(x, dim, keepdim)


@lowers("aten.any")
def any_(low: Lowering, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether any element is not 0; of uint8, as uint8."""
    return _logical(low, x, _some(x, dim, keepdim), "any")


@lowers("aten.all")
def all_(low: Lowering, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether no element is 0; of uint8, as uint8."""
    return _logical(low, x, _some(x, dim, keepdim), "all")


# -- extrema -----------------------------------------------------------------------------------------------------------


def extremum(low: Lowering, x: Tensor, of: Space, reducer: str, output: int | None = None) -> Tensor:
    """The maximum or minimum (`reducer`) over rows that must not be empty."""
    require_elements(of)
    if x.dtype == torch.bool:
        reducer = REDUCERS[reducer].of_truths
    return fold(low, of, reducer, x.at, _first, x.dtype, output=output)[0]


@lowers("aten.amax")
def amax(low: Lowering, x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The maximum over dims."""
    return extremum(low, x, space(x, dim, keepdim), "max")


@lowers("aten.amin")
def amin(low: Lowering, x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The minimum over dims."""
    return extremum(low, x, space(x, dim, keepdim), "min")


@lowers("aten.max.default")
def max_(low: Lowering, x: Tensor) -> Tensor:
    """The maximum of all."""
    return extremum(low, x, space(x, None), "max")


@lowers("aten.min.default")
def min_(low: Lowering, x: Tensor) -> Tensor:
    """The minimum of all."""
    return extremum(low, x, space(x, None), "min")


@lowers("aten.aminmax")
def aminmax(low: Lowering, x: Tensor, *, dim: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Both extrema."""
    of = space(x, dim, keepdim)
    return extremum(low, x, of, "min", 0), extremum(low, x, of, "max", 1)


def _positioned(x: Tensor, of: Space) -> Callable[[Indices], tuple[Value, Value]]:
    """An element, ordered as an integer where it is a bool, and where it stands in its row."""
    ordered = torch.uint8 if x.dtype == torch.bool else compute_dtype(x.dtype)

    def compute(indices: Indices) -> tuple[Value, Value]:
        position = of.position(tuple(indices[d] for d in of.dims) or (0,))
        return cast(rounded(x.at(indices), x.dtype), ordered), Number(position, torch.int64)

    return compute


def _with_position(low: Lowering, x: Tensor, of: Space, reducer: str) -> tuple[Tensor, ...]:
    require_elements(of)
    return fold(low, of, reducer, _positioned(x, of), lambda _, *both: both, x.dtype, torch.int64)


def _position(low: Lowering, x: Tensor, of: Space, reducer: str) -> Tensor:
    require_elements(of)
    return fold(low, of, reducer, _positioned(x, of), lambda _, value, position: position, torch.int64)[0]


@lowers("aten.max.dim")
def max_dim(low: Lowering, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
    """The maximum along a dim, and its first position."""
    return _with_position(low, x, space(x, dim, keepdim), "argmax")


@lowers("aten.min.dim")
def min_dim(low: Lowering, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
    """The minimum along a dim, and its first position."""
    return _with_position(low, x, space(x, dim, keepdim), "argmin")


@lowers("aten.argmax")
def argmax(low: Lowering, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The first position of the maximum, in the flattened tensor where no dim is given."""
    return _position(low, x, space(x, dim, keepdim), "argmax")


@lowers("aten.argmin")
def argmin(low: Lowering, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The first position of the minimum, in the flattened tensor where no dim is given."""
    return _position(low, x, space(x, dim, keepdim), "argmin")


# -- moments -----------------------------------------------------------------------------------------------------------


def moments(
    low: Lowering,
    x: Tensor,
    of: Space,
    finish: Finish,
    dtype: torch.dtype | None = None,
    terms: Callable[[Indices], Value] | None = None,
    *,
    corrected: bool = False,
) -> tuple[Tensor, ...]:
    """The mean, and what `finish` makes of the sum of squared deviations, in the dtype computed in.

    Two passes where a row stays in cache (as accurate, and each pass vectorizes), one pass (Welford) elsewhere: of long
    rows, and on GPUs of those that lie scattered, as a channel's elements, since there several programs share a row.

    Two passes move a mean that is to be `corrected` by the mean deviation from it, which is what rounding left of it:
    as accurate as if it were summed in twice the precision, as eager does for batches.

    Of the elements themselves, or of the `terms` that are made of them.
    """
    dtype = dtype or compute_dtype(x.dtype)
    computed = terms or (lambda i: element(x, i, dtype))
    made = len(finish(size_value(of.count, dtype)))
    if not of.cached or (low.device.type == "cuda" and _is_scattered(x, of)):
        mean = _mean_of_some(of)
        return fold(low, of, "welford", computed, lambda _, m, m2, n: (mean(m), *finish(m2)), *[dtype] * (1 + made))
    center = average(low, of, computed, dtype)
    deviation = lambda i: minus(computed(i), center.at(of.result(i)))  # noqa: E731
    if corrected:
        return _corrected(low, of, center, deviation, finish, [dtype] * made)
    spread = fold(low, of, "sum", lambda i: square(deviation(i)), lambda _, m2: finish(m2), *[dtype] * made)
    return center, *spread


def _corrected(
    low: Lowering,
    of: Space,
    center: Tensor,
    deviation: Callable[[Indices], Value],
    finish: Finish,
    dtypes: list[torch.dtype],
) -> tuple[Tensor, ...]:
    """Moments about a mean that is moved by the mean deviation from it; of what is not finite it stays."""
    count = size_value(of.count, center.dtype)
    off = average(low, of, deviation, center.dtype)

    def squares(i: Indices, m2: Value) -> Any:
        return finish(minus(m2, times(square(off.at(i)), count)))

    def moved(i: Indices) -> Value:
        by = off.at(i)
        return plus(center.at(i), where(op("eq", minus(by, by), 0.0), by, 0.0))

    spread = fold(low, of, "sum", lambda i: square(deviation(i)), squares, *dtypes)
    return low.pointwise(moved, center.sizes, center.dtype), *spread


def _mean_of_some(of: Space) -> Callable[[Value], Value]:
    """Makes the mean that one pass keeps, which of no elements is 0, what eager gives: of none NaN."""
    least = bounds(of.count)[0]
    if least is not None and least > 0:
        return lambda mean: mean
    return lambda mean: where(op("eq", size_value(of.count, mean.dtype), 0), math.nan, mean)


def _is_scattered(x: Tensor, of: Space) -> bool:
    """Whether the elements of a row are known not to lie side by side in memory."""
    sizes, strides = x.buffer.sizes, x.buffer.strides
    if not x.is_whole or not all(isinstance(n, int) for n in (*sizes, *strides)):
        return False
    expected = 1
    for stride, size in sorted((strides[d], sizes[d]) for d in of.dims if sizes[d] != 1):
        if stride != expected:
            return True
        expected *= size
    return False


def _variance(of: Space, correction: float | None, root: bool) -> Finish:
    def finish(m2: Value) -> tuple[Value]:
        freedom = minus(size_value(of.count, m2.dtype), 1.0 if correction is None else correction)
        variance = over(m2, op("maximum", freedom, 0.0))
        return (op("sqrt", variance) if root else variance,)

    return finish


@lowers("aten.var.correction", "aten.std.correction")
def var_(
    low: Lowering, x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """Variance or standard deviation."""
    return _in_dtype(low, _spread(low, x, space(x, dim, keepdim), correction)[1], x.dtype)


@lowers("aten.var_mean.correction", "aten.std_mean.correction")
def var_mean(
    low: Lowering, x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Variance or standard deviation, and the mean."""
    of = space(x, dim, keepdim)
    center, spread = _spread(low, x, of, correction)
    if of.count != 1:
        center = low.pointwise(lambda row: _as_differences_have_it(center.at(row), of), center.sizes, center.dtype)
    return stored(low, spread, 0), stored(low, center, 1)


def _as_differences_have_it(mean: Value, of: Space) -> Value:
    """NaN for an infinite mean of several elements: eager moves a mean by the difference of each element from it.

    But for one infinity that comes last, which stays what it is in eager.
    """
    moved = plus(mean, minus(mean, mean))
    if isinstance(of.count, int):
        return moved
    return where(op("eq", size_value(of.count, mean.dtype), 1), mean, moved)


def _spread(low: Lowering, x: Tensor, of: Space, correction: float | None) -> tuple[Tensor, ...]:
    """The mean, and the variance or standard deviation; a correction of NaN leaves no freedom, as in eager.

    On CPUs in eager's dtype, float64, or as precisely: squares of 1e-23 or 1e20 are numbers in it, deviations from a
    large mean keep their digits, and those of equal elements are 0. For variances of 16 bits, float32 about the first
    element has these digits.
    """
    correction = math.inf if isinstance(correction, float) and math.isnan(correction) else correction
    if is_scaled(low, x, of):
        return scaled_deviation(low, x, of, correction, root=_is_deviation(low))
    finish = _variance(of, correction, _is_deviation(low))
    few_digits = low.device.type == "cuda" or (x.dtype in HALVES and not _is_deviation(low))
    if few_digits and (bounds(of.count)[0] or 0) > 0:
        return _about_first(low, x, of, finish)
    return moments(low, x, of, finish, torch.float64 if low.device.type == "cpu" else None)


def _about_first(low: Lowering, x: Tensor, of: Space, finish: Finish) -> tuple[Tensor, ...]:
    """Moments of the differences from a row's first element: of equal elements exactly 0, as eager's are on GPUs.

    Gradients of a deviation that rounding alone has made would be of the size of its own inverse.
    """
    dtype = compute_dtype(x.dtype)

    def first(row: Indices) -> Value:
        value = first_of(x, of, dtype)(row)
        return where(op("eq", minus(value, value), 0.0), value, 0.0)  # differences from infinity are not numbers

    apart = lambda i: minus(element(x, i, dtype), first(of.result(i)))  # noqa: E731
    center, *spread = moments(low, x, of, finish, dtype, apart)
    return low.pointwise(lambda row: plus(center.at(row), first(row)), center.sizes, dtype), *spread


def _is_deviation(low: Lowering) -> bool:
    return "std" in str(low.current.target)


def _in_dtype(low: Lowering, x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else low.pointwise(x.at, x.sizes, dtype)


# -- norms and logarithms ----------------------------------------------------------------------------------------------


@lowers("aten.linalg_vector_norm")
def vector_norm(
    low: Lowering, x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The `order`-norm of the elements as a vector; of one element its magnitude, which powers would round."""
    of, made = space(x, dim, keepdim), promised(low)
    if of.count == 1 and not isinstance(order, Scalar) and order != 0:
        order = 1
    if isinstance(order, Scalar) or order < 0 or order == math.inf:
        require_elements(of)
    if isinstance(order, Scalar):
        reducer, term, finish = _norm_parts_when_run(order)
    else:
        reducer, term, finish = _norm_parts(float(order), compute_dtype(made))
    magnitude = lambda i: op("abs", element(x, i, dtype or x.dtype))  # noqa: E731
    return fold(low, of, reducer, lambda i: term(magnitude(i)), lambda _, value: finish(value), made)[0]


def _norm_parts(order: float, dtype: torch.dtype) -> tuple[str, Callable[[Value], Value], Callable[[Value], Value]]:
    """Reducer, what it folds of each magnitude, and what becomes of the result.

    An order beyond the dtype is infinite there, and its inverse 0, but not the norm of infinite order; or the reverse.
    """
    same: Callable[[Value], Value] = lambda v: v  # noqa: E731
    special = {
        math.inf: ("max", same, same),
        -math.inf: ("min", same, same),
        0.0: ("sum", lambda v: cast(op("ne", v, 0.0), v.dtype), same),
        1.0: ("sum", same, same),
        2.0: ("sum", square, lambda v: op("sqrt", v)),
    }
    if order in special:
        return special[order]
    exponent = torch.tensor(order, dtype=dtype)
    inverse = exponent.reciprocal().item()
    return "sum", lambda v: power(v, exponent.item()), lambda v: power(v, inverse)


def _norm_parts_when_run(order: Scalar) -> tuple[str, Callable[[Value], Value], Callable[[Value], Value]]:
    """The same of an order that is known when run, finite: 0 counts."""

    def counts(v: Value) -> Value:
        return op("eq", literal(order, v.dtype), 0.0)

    return (
        "sum",
        lambda v: where(counts(v), cast(op("ne", v, 0.0), v.dtype), op("pow", v, order)),
        lambda v: where(counts(v), v, op("pow", v, 1.0 / order)),
    )


@lowers("aten.norm")
def norm(
    low: Lowering, x: Tensor, order: float | None = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """The `vector_norm` of an older API."""
    return vector_norm(low, x, 2 if order is None else order, dim, keepdim, dtype=dtype)


@lowers("aten.norm.ScalarOpt_dtype")
def norm_all(low: Lowering, x: Tensor, order: float | None, *, dtype: torch.dtype) -> Tensor:
    """The norm of all elements, in another dtype."""
    return norm(low, x, order, dtype=dtype)


@lowers("aten.dist")
def dist(low: Lowering, x: Tensor, y: Tensor, order: float = 2) -> Tensor:
    """The norm of the difference."""
    made = promised(low)
    if x.sizes != y.sizes:
        raise Unlowered("arguments", "distance of tensors of different shapes")
    apart = low.pointwise(lambda i: minus(element(x, i, made), element(y, i, made)), x.sizes, made)
    return vector_norm(low, apart, order)


@lowers("aten.logsumexp")
def logsumexp(low: Lowering, x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """The logarithm of the sum of exponentials, without overflow."""
    _refuse_no_dims(dim)
    made = promised(low)
    of, dtype = space(x, dim, keepdim), compute_dtype(made)
    shift = fold(low, of, "max", lambda i: element(x, i, made), lambda _, top: _finite(top), dtype)[0]
    grown = lambda i: op("exp", minus(element(x, i, made), shift.at(of.result(i))))  # noqa: E731
    return fold(low, of, "sum", grown, lambda i, s: plus(op("log", s), shift.at(i)), made)[0]


def _finite(top: Value) -> Value:
    """The number to subtract: an infinite maximum would make NaN of the others."""
    return where(op("isinf", top), 0.0, top)
