"""Convolutions of bytes that a program computes in wider numbers, as PT2E quantizes them.

    convolution((to(x) - z) * s, (to(w) - u) * t, bias)
        ->   (int_mm(windows(pad(x)), w.T) + (offset - z) * sum(w)) * s * t + bias

Sums of products of bytes are exact, as in `byte_products`. Images get their channels last and borders of their zero
point; windows over them are a view, the rows of a product, which its kernel reads where they are. A zero point of the
weight takes the sums of windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch

from ..rewrites.binding import Binding
from ..rewrites.compat.operators import multiplies_bytes
from ..rewrites.graph import describe, dtype, is_tensor, rank, shape, val
from ..rewrites.pattern import cast, choose
from ..rewrites.reason import Reason
from ..rewrites.rule import Candidate, Numerics, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import known_equal
from ..rewrites.words import counted
from .byte_products import (
    BYTES,
    DEEPEST,
    as_signed,
    computed_wider,
    converted,
    copied,
    dequantized,
    rounded_to_floats,
    scaled,
    tags_of,
    widest,
    with_zero_points,
)
from .convolution import convolved, forward_convolution, geometry
from .dtypes import result_dtype

_TOGETHER = 4  # channels whose bytes are multiplied together
_FEWEST = 2048  # fewest products for a pixel of the result for which laying images out anew pays
_RANKS = (3, 4, 5)


def in_bytes(  # noqa: PLR0913 - the operands of the pattern
    x: Any, zero: Any, shift: Any, scale: Any, factor: Any, weight: Any, weight_zero: Any, weight_shift: Any,
    weight_scale: Any, weight_factor: Any, bias: Any, kind: Any, *, result: torch.dtype,
    geometry: tuple[list[int], list[int], list[int], int],
) -> torch.Tensor:  # fmt: skip
    """The product in 32 bits, then scales and bias, channels last; the result with channels second."""
    wide = torch.float32 if result in (torch.float16, torch.bfloat16) else result
    pixels, more = as_signed(x, zero if shift is None else shift, wide)
    columns, more_columns = as_signed(weight, weight_zero if weight_shift is None else weight_shift, wide)
    dims = x.dim() - 2
    padding, stride, dilation = (numbers * dims if len(numbers) == 1 else numbers for numbers in geometry[:3])
    pixels = _padded(pixels, padding, 0 if more is None else -more, weight.shape[1])
    last = [0, *range(2, dims + 2), 1]
    flat = _padded_channels(columns.permute(last)).reshape(weight.shape[0], -1)
    window = _windows(pixels, weight.shape[2:], stride, dilation)
    sums = torch.ops.aten._int_mm(window.reshape(-1, flat.shape[1]), flat.t())
    sums = sums.reshape(*window.shape[: dims + 1], flat.shape[0])
    of_rows = None
    if more_columns is not None:
        of_pixels = pixels.sum(-1, keepdim=True, dtype=torch.int32)
        of_rows = _windows(of_pixels, weight.shape[2:], stride, dilation).sum([*range(dims + 1, 2 * dims + 2)])
        of_rows = of_rows.unsqueeze(-1)
    sums = with_zero_points(converted(sums, wide), flat, more, more_columns, of_rows, prod(weight.shape[1:]))
    sums = scaled(sums, scale, factor, weight_scale, weight_factor)
    sums = converted(sums if bias is None else sums + converted(bias, wide), result)
    return sums.permute([0, dims + 1, *range(1, dims + 1)])


def _padded(pixels: torch.Tensor, padding: list[int], value: Any, channels: int) -> torch.Tensor:
    """Images with channels last, a multiple of four of them, with borders."""
    pixels = pixels.permute([0, *range(2, pixels.dim()), 1])
    if any(padding):
        sides = [0, 0, *(side for width in reversed(padding) for side in (width, width))]
        pixels = torch.ops.aten.constant_pad_nd(pixels, sides, value)
    return _padded_channels(pixels).contiguous()


def _padded_channels(pixels: torch.Tensor) -> torch.Tensor:
    missing = -pixels.shape[-1] % _TOGETHER
    return torch.ops.aten.constant_pad_nd(pixels, [0, missing], 0) if missing else pixels


def _windows(pixels: torch.Tensor, window: Any, stride: list[int], dilation: list[int]) -> torch.Tensor:
    """A view of images: images, places of windows, places in a window, channels."""
    dims = len(stride)
    for dim in range(dims):
        reach = (window[dim] - 1) * dilation[dim] + 1
        pixels = pixels.unfold(1 + dim, reach, stride[dim])
        if dilation[dim] > 1:
            pixels = pixels[..., :: dilation[dim]]
    return pixels.permute([*range(dims + 1), *range(dims + 2, 2 * dims + 2), dims + 1])


def on_cpu(match: Binding, policy: Mapping[str, str]) -> Reason | None:
    """A CPU that multiplies bytes, enough of them for each pixel."""
    x = match.operands["x"]
    if val(x).device.type != "cpu":
        return Reason("device-unsupported", "bytes are multiplied on CPUs", (x,), "cpu", str(val(x).device))
    if policy.get("profit") != "always" and not multiplies_bytes():
        return Reason("kernel-unavailable", "this processor has no instruction for products of bytes", (x,))
    products = prod(shape(match.operands["weight"]))
    if policy.get("profit") == "measured" and products < _FEWEST:
        message = f"{counted(products, 'product')} a pixel take less time than channels take to move to the end"
        return Reason("products-few", message, (x,), f"{_FEWEST} products", describe(match.operands["weight"]))
    return None


def of_bytes(x: Any, weight: Any) -> Reason | None:
    """Both operands are bytes, images and weights of known sizes."""
    for one in (x, weight):
        if dtype(one) not in BYTES:
            return Reason("dtype-not-bytes", f"{describe(one)} has more bits", (one,), "int8 or uint8", describe(one))
        if not all(isinstance(size, int) for size in shape(one)):
            return Reason("size-symbolic", f"sizes of {describe(one)} differ from call to call", (one,))
    if rank(x) not in _RANKS or rank(weight) != rank(x):
        return Reason("rank-too-low", "it is no convolution of images", (x, weight), "1 to 3 dims of space")
    return None


def dense(match: Binding) -> Reason | None:
    """One group, whose sums stay in 32 bits, and a result with elements."""
    x, weight, groups = match.operands["x"], match.operands["weight"], geometry(match, {})[3]
    if groups != 1:
        return Reason("groups", "each group multiplies few channels", (weight,), "1 group", f"{groups} groups")
    depth, result = prod(shape(weight)[1:]), shape(match.matched[0])
    if not 2 <= depth <= DEEPEST or shape(weight)[0] < 2 or 0 in result or 0 in shape(x):
        message = f"sums of {depth} products in {shape(weight)[0]} channels"
        return Reason("kernel-unavailable", message, (weight,), f"2 to {DEEPEST} products")
    return None


def constant_in_sums(match: Binding) -> Reason | None:
    """Scales and zero points are single numbers; those of the weight one for each channel of the result."""
    for name in ("zero", "scale", "weight_zero", "weight_scale"):
        one = match.operands.get(name)
        if not is_tensor(one):
            continue
        sizes = [1] * (rank(match.operands["x"]) - rank(one)) + [*shape(one)]
        wide = [place for place, size in enumerate(sizes) if not known_equal(size, 1)]
        if wide and not (name.startswith("weight") and wide == [0]):
            return Reason("changes-along-depth", f"{describe(one)} changes in a sum", (one,), "one number")
    return None


def borders_are_bytes(match: Binding) -> Reason | None:
    """Beyond images there are zeros, which are bytes: a zero point that is one, and known."""
    padding, x = geometry(match, {})[0], match.operands["x"]
    zero = match.operands.get("zero", match.operands.get("shift", 0))
    if not any(padding):
        return None
    if is_tensor(zero):
        return Reason("zero-unknown", f"{describe(zero)} pads images, and need not be a byte", (zero,), "a number")
    limits = torch.iinfo(dtype(x))
    if zero == int(zero) and limits.min <= zero <= limits.max:
        return None
    return Reason("zero-unknown", f"the zero point {zero} is no byte", (x,), f"{limits.min} to {limits.max}")


_X, _W = T("2 3 6 6", dtype=torch.uint8), T("8 3 3 3", dtype=torch.int8)
_SCALES = T("8 1 1 1", "moderate", torch.float32)
_WIDE_SCALES, _ZEROS = T("8 1 1 1", "moderate", torch.float64), T("8 1 1 1", dtype=torch.int64, below="256")
_BIAS = T("8", dtype=torch.float32)


def _sample(refused: str = "", promoted: str = "", rounded: str = "no", **given: Any) -> Sample:
    """Bytes with these parts beside the casts; the alternatives follow from their names."""
    operands: dict[str, Any] = {"x": _X, "weight": _W, "kind": torch.float32} | given
    tags = {name: tag for name, tag in tags_of(given).items() if name not in ("layout", "merged")}
    tags |= {"weight_rounded": rounded} | dict.fromkeys(filter(None, [promoted]), "promoted")
    return Sample(**operands, tags=tags, refused=refused)


_META: dict[str, Any] = {"device": "meta"}
_NEAR_MISSES = [
    _sample("device-unsupported", x=T("2 3 6 6", dtype=torch.uint8, **_META), weight=T("8 3 3 3", dtype=torch.int8,
            **_META)),
    _sample("dtype-not-bytes", x=T("2 3 6 6", dtype=torch.int16), factor=0.5),
    _sample("kernel-unavailable", weight=T("1 3 3 3", dtype=torch.int8)),
    _sample("changes-along-depth", scale=T("6", dtype=torch.float32)),
    _sample("dtype-narrow", kind=torch.int64, weight_factor=0.5, rounded="cast"),
    _sample("dtype-narrow", kind=torch.int8, weight=T("8 3 3 3", dtype=torch.uint8)),
    _sample("zero-unknown", shift=300),
    _sample("zero-unknown", zero=T("", dtype=torch.int64)),
]  # fmt: skip


@register_pattern(
    "byte_convolution",
    family="product",
    stage="bytes",
    replacement=[Candidate("int_mm", in_bytes, on_cpu)],
    samples=[
        _sample(shift=3, factor=0.05, weight_scale=_SCALES, bias=_BIAS),
        _sample(shift=3, factor=0.05, weight_zero=_ZEROS, weight_scale=_WIDE_SCALES, promoted="weight", rounded="cast"),
        _sample(factor=0.5, weight_factor=0.25, weight=T("8 4 3 3", dtype=torch.int8),
                x=T("2 4 6 6", dtype=torch.int8)),
        _sample(scale=T("", "moderate", torch.float32), weight_shift=2, weight_scale=_SCALES),
        *_NEAR_MISSES,
    ],
    guards=(of_bytes, forward_convolution, dense, constant_in_sums, borders_are_bytes, computed_wider,
            rounded_to_floats),
    numbers=("shift", "factor", "weight_shift", "weight_factor", "kind"),
    derived={"result": result_dtype, "geometry": geometry},
    numerics=Numerics(slack=4.0),
    profitable=True,
    dtypes=BYTES,
    escapes="keep",
)  # fmt: skip
def byte_convolution(  # noqa: PLR0913 - the parts that may be there
    x: Any, zero: Any, shift: Any, scale: Any, factor: Any, weight: Any, weight_zero: Any, weight_shift: Any,
    weight_scale: Any, weight_factor: Any, bias: Any, kind: Any,
) -> Any:  # fmt: skip
    """convolution((to(x) - zero) * scale, (to(weight) - zero) * scale, bias), each part but the casts optional."""
    narrow = widest(kind, scale, bias)

    def computed(kind: Any, rounded: Callable[[Any], Any]) -> Any:
        images = dequantized("x", x, zero, shift, scale, factor, kind)
        right = rounded(dequantized("weight", weight, weight_zero, weight_shift, weight_scale, weight_factor, kind))
        return choose("bias", yes=lambda: convolved(images, right, bias), no=lambda: convolved(images, right, None))

    return choose(
        "weight_rounded",
        no=lambda: computed(widest(narrow, weight_scale), lambda right: right),
        cast=lambda: computed(narrow, lambda right: cast(right, narrow)),
        copied=lambda: computed(narrow, lambda right: copied(right, narrow)),
    )
