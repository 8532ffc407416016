"""Tensors of a sample: how one may look (its layout in memory, its values), and how that is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from ....rewrites.sample import Sample, T

# By what a `T` holds; the plainest first, which is what counterexamples are brought to.
VALUES = {
    "normal": (
        "plain", "constant", "zeros", "ties", "negative", "large", "small", "large-row", "signed-zeros", "denormal",
        "huge", "extreme", "nan", "inf", "-inf",
    ),
    "moderate": ("plain", "constant", "zeros", "ties", "negative", "large", "small", "signed-zeros", "denormal", "nan"),
    "finite": ("plain", "constant", "zeros", "ties", "negative", "large", "small", "signed-zeros", "denormal"),
    "positive": ("plain", "constant", "large"),
    "mask": ("plain", "masked-row", "lowest", "lowest-row", "open"),
    "bool": ("plain", "masked-row", "open"),
}  # fmt: skip
NUMBERS = ("normal", "moderate", "finite")
SINGULAR = ("huge", "extreme", "nan", "inf", "-inf")  # values at which derivatives are conventions, or overflow
# Values at which functions have kinks, and their derivative is any number in between, or saturate: all rounding.
KINKS = ("signed-zeros", "zeros", "ties", "large-row")
_HUGE = 3000.0  # squares of it overflow in float16
_SMALL = 2.0**-12  # beside 1, most digits of it are lost; float16 has it exactly
_INTEGERS = ("plain", "zeros", "extreme")
_ANY_INTEGERS = ("plain", "zeros", "signed", "extreme")


@dataclass(frozen=True)
class Look:
    """How one tensor is drawn: a name of `LAYOUTS`, a name of `VALUES`, and whether gradients flow to it."""

    layout: str = "contiguous"
    values: str = "plain"
    gradient: bool = False

    def __str__(self) -> str:
        odd = [w for w, plain in ((self.layout, "contiguous"), (self.values, "plain")) if w != plain]
        return " ".join([*odd, *(["gradient"] if self.gradient else [])]) or "plain"


def tensors(sample: Sample) -> dict[str, T]:
    """The tensor operands of a sample, by parameter of the pattern."""
    return {name: given for name, given in sample.operands.items() if isinstance(given, T)}


def placed(sample: Sample, device: str) -> Sample:
    """A sample on another device; what stands for an unknown one stays there."""
    operands = {
        name: replace(given, device=device) if isinstance(given, T) and given.device == "cpu" else given
        for name, given in sample.operands.items()
    }
    sizes = sample.given_sizes | sample.ranges
    return Sample(tags=sample.tags, sizes=sizes, refused=sample.refused, **operands)


def dim_names(sample: Sample) -> list[str]:
    """The named dims of a sample's tensors."""
    return sorted(frozenset[str]().union(*(spec.names for spec in tensors(sample).values())))


def looks_of(spec: T, dtype: torch.dtype = torch.float32) -> tuple[str, ...]:
    """The kinds of values that may be drawn for a tensor; `dtype` where it fixes none."""
    fixed = spec.dtype is not None and not spec.dtype.is_floating_point
    if takes_any_integer(spec) and spec.device == "cpu":  # an index out of range ends a process on a GPU
        return _ANY_INTEGERS
    if fixed or not (dtype.is_floating_point or dtype.is_complex):
        numbers = not fixed and spec.values in NUMBERS and dtype != torch.bool
        return VALUES["bool"] if spec.values == "bool" else _INTEGERS if numbers else ("plain",)
    return VALUES[spec.values]


def takes_any_integer(spec: T) -> bool:
    """Whether a tensor is one of integers that are no counts or indices."""
    return spec.dtype is not None and spec.kind == "integer" and spec.values in NUMBERS and not spec.below


def differentiable(spec: T, dtype: torch.dtype = torch.float32) -> bool:
    """Whether gradients may flow to a tensor; `dtype` where it fixes none."""
    return spec.gradient and spec.values in NUMBERS and (spec.dtype or dtype).is_floating_point


def make(spec: T, sizes: Mapping[str, int], dtype: torch.dtype, look: Look, seed: int) -> torch.Tensor:
    """A tensor as `spec` declares it and `look` says; `dtype` where the spec leaves that open."""
    values = _values(spec, sizes, spec.dtype or dtype, look.values, seed)
    return laid_out(values.to(spec.device), look.layout).requires_grad_(look.gradient)


def _values(spec: T, sizes: Mapping[str, int], dtype: torch.dtype, kind: str, seed: int) -> torch.Tensor:
    shape, generator = spec.shape(sizes), torch.Generator().manual_seed(seed)
    if spec.values == "bool":
        return _keep(shape, kind, generator).to(spec.dtype or torch.bool)
    if spec.values == "mask" and not dtype.is_floating_point:
        dtype = torch.float32
    if spec.dtype is not None and not dtype.is_floating_point and not dtype.is_complex and kind == "plain":
        return torch.randint(spec.limit(sizes), shape, generator=generator).to(dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        return _integers(shape, kind, dtype, generator, positive=spec.values == "positive")
    if spec.values == "mask":
        low = torch.finfo(dtype).min if kind.startswith("lowest") else -torch.inf
        keep = _keep(shape, kind, generator)
        return torch.zeros(shape, dtype=torch.float64).masked_fill(~keep, low).to(dtype)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if dtype.is_complex:
        return torch.complex(values, torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
    values = values.abs() + 0.1 if spec.values == "positive" else values
    return (_odd(values, kind, dtype) if values.numel() else values).to(dtype)


def _integers(
    shape: tuple[int, ...], kind: str, dtype: torch.dtype, generator: torch.Generator, *, positive: bool
) -> torch.Tensor:
    """Small ones of both signs, zero among them; where extremes are asked for, the least and the greatest too.

    Bytes are any if signs are asked for.
    """
    if dtype == torch.bool:
        return torch.randint(2, shape, generator=generator).to(dtype)
    limits = torch.iinfo(dtype)
    if kind == "signed" and limits.bits == 8:
        return torch.randint(limits.min, limits.max + 1, shape, generator=generator).to(dtype)
    found = torch.randint(1 if positive else max(-4, limits.min), 5, shape, generator=generator).to(dtype)
    if kind == "zeros":
        found.zero_()
    elif kind == "extreme" and found.numel():
        flat = found.view(-1)
        flat[0], flat[flat.numel() // 2], flat[-1] = limits.max // 2 + 1, limits.min, limits.max
    return found


def _keep(shape: tuple[int, ...], kind: str, generator: torch.Generator) -> torch.Tensor:
    """Mostly True, every row keeps something; except the first where a fully masked row is asked for."""
    keep = torch.rand(shape, generator=generator) < (1.0 if kind == "open" else 0.7)
    if keep.dim() == 0 or keep.numel() == 0:
        return keep
    keep[..., 0] = True
    if kind.endswith("-row"):
        keep.view(-1, keep.shape[-1])[0] = False
    return keep


def _odd(values: torch.Tensor, kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Plain numbers made odd, in place. Extremes of float64 stay where float64 itself does not overflow."""
    flat, limits = values.view(-1), torch.finfo(dtype)
    if kind in _ODD:
        flat[:] = _ODD[kind](flat)
    elif kind == "large-row" and values.dim():
        values.view(-1, values.shape[-1])[0] *= 1000
    elif kind == "denormal":  # none is 0, where functions have kinks
        flat *= limits.tiny / 4
        flat[flat.to(dtype) == 0] = limits.smallest_normal * limits.eps
    elif kind == "extreme":
        most = min(limits.max, torch.finfo(torch.float32).max)
        flat[0], flat[flat.numel() // 2], flat[-1] = limits.tiny, -most, most
    elif kind in ("nan", "inf", "-inf"):
        flat[flat.numel() // 2] = float(kind)
    return values


_ODD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "constant": lambda x: x[0].clone(),
    "zeros": torch.zeros_like,
    "ties": torch.round,
    "negative": lambda x: -x.abs(),
    "large": lambda x: x * 30,
    "small": lambda x: x * _SMALL,
    "huge": lambda x: x * _HUGE,
    "signed-zeros": lambda x: torch.where(x.abs() < 0.7, torch.copysign(torch.zeros_like(x), x), x),
}


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """`x` in another layout of memory: the same values where each has its own place, else some of them repeated."""
    if x.numel() == 0 or x.dim() < _LEAST_RANK.get(layout, 1):
        return x.clone()
    return _LAYING_OUT[layout](x)


def _reversed(x: torch.Tensor) -> torch.Tensor:
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def _windows(x: torch.Tensor) -> torch.Tensor:
    """Each row starts one entry after the row before, as `unfold` makes them."""
    rows, columns = x.shape[-2:]
    span, strides = rows + columns - 1, [1, 1]
    for size in reversed(x.shape[:-2]):
        strides.insert(0, span)
        span *= size
    return x.flatten()[:span].clone().as_strided(x.shape, strides)


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


_LEAST_RANK = {"transposed": 2, "overlapping": 2, "channels-last": 3}
_LAYING_OUT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": torch.clone,
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "reversed": _reversed,
    "channels-last": _channels_last,
    "sliced": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "stepped": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "offset": lambda x: torch.cat([x[:1], x])[1:],
    "expanded": lambda x: x[:1].clone().expand(x.shape),
    "broadcast": lambda x: x[..., :1].clone().expand(x.shape),
    "overlapping": _windows,
}
LAYOUTS = tuple(_LAYING_OUT)  # the plainest first
WITH_GAPS = ("sliced", "stepped", "broadcast", "overlapping")  # strides that are no products of sizes
