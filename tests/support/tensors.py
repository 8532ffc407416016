"""Hypothesis strategies for tensors: any rank, sizes 0 and 1, strides, ties, NaN and infinities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

NAN, INF = float("nan"), float("inf")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.int32, torch.uint8, torch.bool)


@st.composite
def tensors(
    draw: Any,
    dtypes: Sequence[torch.dtype] = FLOATS,
    *,
    min_rank: int = 0,
    max_rank: int = 3,
    min_size: int = 0,
    special: bool = True,
) -> torch.Tensor:
    """A tensor of small numbers with ties, some NaN or infinite where `special`, of any layout."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.lists(st.integers(min_size, 5), min_size=min_rank, max_size=max_rank))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    values = torch.randint(-4, 5, shape, generator=generator).double()
    if dtype.is_floating_point:
        values += torch.rand(shape, generator=generator, dtype=torch.double) * draw(st.booleans())
        if special:
            values = _sprinkled(values, draw(st.lists(st.sampled_from([NAN, INF, -INF]), max_size=2)), generator)
    return _laid_out(values.abs().to(dtype) if dtype == torch.uint8 else values.to(dtype), draw(LAYOUTS))


def not_finite(x: torch.Tensor) -> torch.Tensor:
    """The infinities and NaN among elements, for comparisons with ``equal_nan``; 0 for the others."""
    return x.double().where(~x.isfinite(), 0)


LAYOUTS = st.sampled_from(["contiguous", "reversed", "strided", "expanded"])


def _sprinkled(values: torch.Tensor, specials: list[float], generator: torch.Generator) -> torch.Tensor:
    flat = values.reshape(-1)
    for special in specials:
        if flat.numel():
            flat[int(torch.randint(flat.numel(), (), generator=generator))] = special
    return flat.reshape(values.shape)


def _laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "reversed":
        order = list(range(x.dim()))[::-1]
        return x.permute(order).contiguous().permute(order)
    if layout == "strided" and x.dim():
        return torch.stack([x, x], -1)[..., 0]
    if layout == "expanded" and x.dim() and x.shape[0]:
        return x[:1].expand(x.shape)
    return x


@st.composite
def tensor_and_dim(draw: Any, *args: Any, **more: Any) -> tuple[torch.Tensor, int]:
    """A tensor, and one of its dims, possibly negative."""
    x = draw(tensors(*args, **more))
    rank = max(x.dim(), 1)
    return x, draw(st.integers(-rank, rank - 1))


@st.composite
def tensor_and_dims(draw: Any, *args: Any, **more: Any) -> tuple[torch.Tensor, list[int]]:
    """A tensor, and some of its dims, possibly none."""
    x = draw(tensors(*args, **more))
    dims = draw(st.lists(st.integers(0, max(x.dim() - 1, 0)), unique=True, max_size=x.dim()))
    return x, [d - x.dim() if draw(st.booleans()) else d for d in dims]
