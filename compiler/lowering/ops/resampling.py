"""Resampling: outputs are weighted sums of the few elements of the input around where they lie.

    upsample_nearest1d, 4 -> 8    ->   out[i] = x[i // 2]
    upsample_linear1d             ->   s = max(0.5 * (i + 0.5) - 0.5, 0);  j = min(int(s), 3)
                                       out[i] = x[j] * (1 - (s - j)) + x[min(j + 1, 3)] * (s - j)

The place of an output is computed in eager's steps and dtype, so that the same elements are taken. Gradients are
gathered axis by axis where the sizes are known (`readers`), else scattered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ...ir.index.index import add, least, mul, quotient
from ...ir.value import Value, compute_dtype
from ..arithmetic import minus, op, plus, size_value, times, where
from ..core import Indices, Lowering, Tensor, Unlowered, cast, const, lowers
from ..positions import compared, filled, guarded, iterations, within
from ..readers import MOST_OUTPUTS, Readers, readers
from ..scale import Scale
from ..windows import require_floating, summed
from .copies import copied

CUBIC = -0.75  # the free coefficient of eager's cubic convolution


class ResampledDim(Protocol):
    """How one dim is resampled."""

    @property
    def at(self) -> Scale:
        """How outputs lie among elements."""

    @property
    def taps(self) -> int:
        """How many elements an output is made of."""

    def tap(self, o: Any, k: Any, /) -> tuple[Any, Value | None]:
        """Element `k` of output `o`, and its weight (None: 1)."""

    def readers(self) -> Readers | None:
        """The outputs that read an element, where that is known."""

    def weight(self, o: Any, i: Any, /) -> Value:
        """How much of element `i` is in output `o`."""


@dataclass(frozen=True)
class Nearest:
    """The element under an output, its left end (or, if `exact`, its middle)."""

    at: Scale
    exact: bool
    taps: int = 1

    def tap(self, o: Any, _k: Any) -> tuple[Any, Value | None]:
        """The element of output `o`."""
        simple = self._simple(o)
        if simple is not None:
            return simple, None
        position = cast(size_value(o, torch.int64), self.at.dtype)
        position = times(self.at.step, plus(position, 0.5) if self.exact else position)
        # Eager rounds to float32 before it takes the floor, whatever it computed in.
        return self.at.element(self.at.whole(op("floor", cast(position, torch.float32)))), None

    def readers(self) -> Readers | None:
        """The outputs that read an element, where that is known."""
        if not self.at.is_static or self.at.out > MOST_OUTPUTS or not self.at.out:
            return None
        return readers([(i, i + 1) for i in self.elements(self.at.dtype)], self.at.size)

    def weight(self, o: Any, i: Any) -> Value:
        """How much of element `i` is in output `o`."""
        return _weight(self, o, i)

    @property
    def factor(self) -> int | None:
        """How many outputs each element has, where those are the same number, in a row."""
        size, out = self.at.size, self.at.out
        if self.at.is_static and size and out % size == 0:
            return out // size if self._simple(0) is not None else None
        return None

    def _simple(self, o: Any) -> Any:
        """The element by integer arithmetic, where that is known to give the same as eager's rounded one."""
        size, out, half = self.at.size, self.at.out, int(self.exact)
        if not self.at.is_static:
            return None
        if self.elements(self.at.dtype) != [(2 * i + half) * size // (2 * out) for i in range(out)]:
            return None
        return quotient(add(mul(o, 2 * size), half * size), 2 * out)

    def elements(self, dtype: torch.dtype) -> list[int]:
        """The element of each output, static sizes given, where eager computes in `dtype`."""
        rounded = _float32 if dtype == torch.float32 else float
        step = rounded(1 / self.at.factor if self.at.factor else self.at.size / max(self.at.out, 1))
        places = (_float32(step * (o + 0.5 * self.exact)) for o in range(self.at.out))
        return [min(int(place), self.at.size - 1) for place in places]


def _float32(number: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", number))
    return rounded


@dataclass(frozen=True)
class Linear:
    """The two elements around an output.

    Args:
        twice: whether outputs are the elements, which eager reads twice on CPUs: 0 times infinity is NaN.
    """

    at: Scale
    taps: int = 2
    twice: bool | Value = False

    def tap(self, o: Any, k: Any) -> tuple[Any, Value | None]:
        """Element `k` of output `o`, and its weight."""
        place = self.at.place(o)
        place = place if self.at.align_corners else op("maximum", place, 0)
        first = self.at.element(self.at.whole(place))
        weight = _unit(minus(place, size_value(first, self.at.dtype)))
        return self._index(first, k), _chosen([minus(const(1, self.at.dtype), weight), weight], k)

    def _index(self, first: Any, k: Any) -> Any:
        second = least(add(first, k), add(self.at.size, -1))
        if isinstance(self.twice, bool):
            return first if self.twice else second
        return self.at.element(where(self.twice, *(size_value(index, torch.int64) for index in (first, second))))

    def readers(self) -> Readers | None:
        """The outputs that read an element, where that is known."""
        return self.at.readers(1, 1)

    def weight(self, o: Any, i: Any) -> Value:
        """How much of element `i` is in output `o`: what their distance leaves of 1."""
        place = op("maximum", op("minimum", self.at.place(o), size_value(add(self.at.size, -1), self.at.dtype)), 0)
        apart = op("abs", minus(place, size_value(i, self.at.dtype)))
        return op("maximum", minus(const(1, self.at.dtype), apart), 0)


@dataclass(frozen=True)
class Cubic:
    """The four elements around an output."""

    at: Scale
    taps: int = 4

    def tap(self, o: Any, k: Any) -> tuple[Any, Value | None]:
        """Element `k` of output `o`, and its weight."""
        place = self.at.place(o)
        first = self.at.whole(op("floor", place))
        first = op("minimum", first, size_value(add(self.at.size, -1), first.dtype))
        t = _unit(minus(place, cast(first, self.at.dtype)))
        rest = minus(const(1, self.at.dtype), t)
        weights = [outer_cubic(plus(t, 1)), inner_cubic(t), inner_cubic(rest), outer_cubic(plus(rest, 1))]
        return self.at.element(plus(first, size_value(add(k, -1), first.dtype))), _chosen(weights, k)

    def readers(self) -> Readers | None:
        """The outputs that read an element, where that is known."""
        return self.at.readers(2, 2)

    def weight(self, o: Any, i: Any) -> Value:
        """How much of element `i` is in output `o`."""
        return _weight(self, o, i)


def _weight(axis: ResampledDim, o: Any, i: Any) -> Value:
    """The weights of the taps of output `o` that are element `i`, together."""
    one = const(1, torch.float32)
    parts = []
    for k in range(axis.taps):
        index, weight = axis.tap(o, k)
        weight = one if weight is None else weight
        parts.append(where(compared("eq", index, i), weight, const(0, weight.dtype)))
    return plus(*parts)


def _unit(value: Value) -> Value:
    return op("minimum", op("maximum", value, 0), 1)


def inner_cubic(x: Value) -> Value:
    """The cubic convolution at a distance of at most 1."""
    return plus(times(minus(times(CUBIC + 2, x), CUBIC + 3), x, x), 1)


def outer_cubic(x: Value) -> Value:
    """The cubic convolution at a distance between 1 and 2."""
    return minus(times(plus(times(minus(times(CUBIC, x), 5 * CUBIC), x), 8 * CUBIC), x), 4 * CUBIC)


def _chosen(weights: Sequence[Value], k: Any) -> Value:
    """``weights[k]``, for an integer or a loop variable."""
    if isinstance(k, int):
        return weights[k]
    chosen = weights[-1]
    for position in reversed(range(len(weights) - 1)):
        chosen = where(compared("eq", k, position), weights[position], chosen)
    return chosen


# -- operators ---------------------------------------------------------------------------------------------------------

MakeAxis = Callable[[Scale], ResampledDim]


@lowers("aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d")
def nearest(low: Lowering, x: Tensor, output_size: Sequence[Any], *scales: float | None) -> Tensor:
    """Copies of the elements."""
    return _resampled(low, x, _axes(x.dtype, x.sizes, output_size, scales, False, _nearest))


@lowers("aten._upsample_nearest_exact1d", "aten._upsample_nearest_exact2d", "aten._upsample_nearest_exact3d")
def nearest_exact(low: Lowering, x: Tensor, output_size: Sequence[Any], *scales: float | None) -> Tensor:
    """Copies of the elements."""
    return _resampled(low, x, _axes(x.dtype, x.sizes, output_size, scales, False, _nearest_exact))


@lowers("aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_trilinear3d")
def linear(low: Lowering, x: Tensor, output_size: Sequence[Any], align_corners: bool, *scales: float | None) -> Tensor:
    """Means of the elements around, weighted by distance."""
    require_floating(x)
    axes = _axes(x.dtype, x.sizes, output_size, scales, align_corners, _linear)
    if low.device.type == "cpu":
        axes = [_read_twice(axis) for axis in axes]
    return _resampled(low, x, axes)


@lowers("aten.upsample_bicubic2d")
def cubic(low: Lowering, x: Tensor, output_size: Sequence[Any], align_corners: bool, *scales: float | None) -> Tensor:
    """Cubic convolution."""
    require_floating(x)
    return _resampled(low, x, _axes(x.dtype, x.sizes, output_size, scales, align_corners, Cubic))


@lowers("aten.upsample_nearest1d_backward", "aten.upsample_nearest2d_backward", "aten.upsample_nearest3d_backward")
def nearest_backward(
    low: Lowering, grad_output: Tensor, output_size: Sequence[Any], input_size: Sequence[Any], *scales: float | None
) -> Tensor:
    """Gradients added up by element."""
    axes = _axes(grad_output.dtype, input_size, output_size, scales, False, _nearest)
    return _nearest_backward(low, grad_output, axes, input_size)


@lowers(
    "aten._upsample_nearest_exact1d_backward",
    "aten._upsample_nearest_exact2d_backward",
    "aten._upsample_nearest_exact3d_backward",
)
def nearest_exact_backward(
    low: Lowering, grad_output: Tensor, output_size: Sequence[Any], input_size: Sequence[Any], *scales: float | None
) -> Tensor:
    """Gradients added up by element."""
    axes = _axes(grad_output.dtype, input_size, output_size, scales, False, _nearest_exact)
    return _nearest_backward(low, grad_output, axes, input_size)


@lowers("aten.upsample_linear1d_backward", "aten.upsample_bilinear2d_backward", "aten.upsample_trilinear3d_backward")
def linear_backward(
    low: Lowering,
    grad_output: Tensor,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    """Gradients shared out by weight."""
    axes = _axes(grad_output.dtype, input_size, output_size, scales, align_corners, _linear)
    return _gradient(low, grad_output, axes, input_size)


@lowers("aten.upsample_bicubic2d_backward")
def cubic_backward(
    low: Lowering,
    grad_output: Tensor,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    """Gradients shared out by weight.

    Raises:
        Unlowered: the sizes may be the same: then eager copies, whatever the scale.
    """
    axes = _axes(grad_output.dtype, input_size, output_size, scales, align_corners, Cubic)
    if not any(axis.at.is_consistent or _known_unlike(axis.at.out, axis.at.size) for axis in axes):
        raise Unlowered("arguments", f"cubic convolution scaled by {scales} to {output_size}")
    return _gradient(low, grad_output, axes, input_size)


def _nearest(at: Scale) -> ResampledDim:
    """Nearest neighbours, where eager's kernels agree on them.

    Raises:
        Unlowered: some of them take outputs of the same or twice the size to have no other scale than that.
    """
    if not at.is_consistent and not _known_unlike(at.out, at.size, mul(at.size, 2)):
        raise Unlowered("arguments", f"nearest neighbours scaled by {at.factor} from {at.size} to {at.out}")
    return _agreed(Nearest(at, exact=False))


def _nearest_exact(at: Scale) -> ResampledDim:
    return _agreed(Nearest(at, exact=True))


def _agreed(axis: Nearest) -> ResampledDim:
    """Raise where eager's kernels for float64 disagree: some compute places in float32."""
    if axis.at.dtype != torch.float64:
        return axis
    if not axis.at.is_static or axis.elements(torch.float32) != axis.elements(torch.float64):
        raise Unlowered("arguments", f"nearest neighbours of float64 from {axis.at.size} to {axis.at.out}")
    return axis


def _read_twice(axis: ResampledDim) -> ResampledDim:
    return replace(axis, twice=axis.at.is_same) if isinstance(axis, Linear) else axis


def _linear(at: Scale) -> Linear:
    """Linear interpolation; outputs of the same size are the elements, whatever the scale."""
    return Linear(replace(at, copies_same=True))


def _known_unlike(size: Any, *others: Any) -> bool:
    return all(isinstance(n, int) for n in (size, *others)) and size not in others


def _axes(
    dtype: torch.dtype,
    sizes: Sequence[Any],
    outs: Sequence[Any],
    scales: Sequence[float | None],
    align_corners: bool,
    make: MakeAxis,
) -> list[ResampledDim]:
    kind = compute_dtype(dtype) if dtype.is_floating_point else torch.float32
    if any(scale is not None and not isinstance(scale, (int, float)) for scale in scales):
        raise Unlowered("symbolic", "a scale that is known when run")
    factors = [scale if scale is not None and scale > 0 else None for scale in scales]
    each = zip(sizes[2:], outs, factors, strict=True)
    return [make(Scale(size, out, factor, align_corners, kind)) for size, out, factor in each]


def _resampled(low: Lowering, x: Tensor, axes: Sequence[ResampledDim]) -> Tensor:
    def element(at: Indices) -> Value:
        return _interpolated(x, at[:2], at[2:], axes)

    outs = tuple(axis.at.out for axis in axes)
    return low.pointwise(element, (*x.sizes[:2], *outs), x.dtype)


def _interpolated(x: Tensor, place: Indices, rest: Indices, axes: Sequence[ResampledDim]) -> Value:
    """The weighted sum over the taps of the first axis of those over the next."""
    if not rest:
        return x.at(place)
    parts = []
    for k in range(axes[0].taps):
        index, weight = axes[0].tap(rest[0], k)
        part = _interpolated(x, (*place, index), rest[1:], axes[1:])
        parts.append(part if weight is None else times(part, weight))
    return plus(*parts)


def _nearest_backward(low: Lowering, grad: Tensor, axes: Sequence[Any], sizes: Sequence[Any]) -> Tensor:
    factors = [axis.factor for axis in axes]
    if None in factors:
        return _gradient(low, grad, axes, sizes)

    def term(at: Indices, r: Indices) -> Value:
        place = [add(mul(i, f), k) for i, f, k in zip(at[2:], factors, r, strict=True)]
        return grad.at((*at[:2], *place))

    return summed(low, tuple(sizes), factors, term, lambda _, total: total, grad.dtype)


def _gradient(low: Lowering, grad: Tensor, axes: Sequence[ResampledDim], sizes: Sequence[Any]) -> Tensor:
    """Axis by axis, what the outputs that read an element have of it; scattered where those are not known.

    By axes since an element of an image is read by as many outputs as those of both its axes multiplied.
    """
    rows = [axis.readers() for axis in axes]
    if None in rows:
        return _scattered(low, grad, axes, sizes)
    kind, dtype = compute_dtype(grad.dtype), grad.dtype
    for dim, (axis, row) in enumerate(zip(axes, rows, strict=True), 2):
        assert row is not None
        grad = _gathered(low, grad, dim, axis, row, dtype if dim == len(axes) + 1 else kind)
    return grad


def _gathered(low: Lowering, grad: Tensor, dim: int, axis: ResampledDim, row: Readers, dtype: torch.dtype) -> Tensor:
    """``out[i] = sum of weight(o, i) * grad[o]`` over the outputs that read element `i`, along `dim`."""

    def term(at: Indices, r: Indices) -> Value:
        o = add(row.first(at[dim]), r[0])
        weight = cast(axis.weight(o, at[dim]), grad_kind)
        part = times(grad.at((*at[:dim], o, *at[dim + 1 :])), weight)
        return guarded(within(o, axis.at.out), part, const(0, grad_kind))

    grad_kind = compute_dtype(grad.dtype)
    sizes = (*grad.sizes[:dim], axis.at.size, *grad.sizes[dim + 1 :])
    return summed(low, sizes, [row.count], term, lambda _, total: total, dtype)


def _scattered(low: Lowering, grad: Tensor, axes: Sequence[ResampledDim], sizes: Sequence[Any]) -> Tensor:
    """Zeros, and then ``out[index of the tap] += weight of the tap * grad[i]``, for each tap of each output."""
    out = filled(low, tuple(sizes), 0, compute_dtype(grad.dtype))
    loops, taps = low.loops(grad.sizes), low.loops([axis.taps for axis in axes], "k")
    at, place, value = iterations(loops), [], None
    for axis, o, k in zip(axes, at[2:], iterations(taps), strict=True):
        index, weight = axis.tap(o, k)
        place.append(index)
        value = weight if value is None or weight is None else times(value, weight)
    element = grad.at(at)
    element = element if value is None else times(element, value)
    low.store(out, (*loops, *taps), (*at[:2], *place), element, "add")
    return out if out.dtype == grad.dtype else copied(low, out, grad.dtype)
