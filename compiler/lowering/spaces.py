"""Iteration spaces of reductions: which dims of a tensor are folded, and how the indices of both sides relate.

x: [N, C, H, W] over dims 2, 3, keepdim:    outer [N, C]   inner [H, W]   shape [N, C, 1, 1]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from ..ir.index.bounds import known_le
from ..ir.index.index import add, mul
from ..ir.value import Value
from .core import Indices, Lowering, Tensor, Unlowered

# Rows up to this many elements stay in a core's cache, so that reading them twice costs little.
CACHED_EXTENT = 16384


@dataclass(frozen=True)
class Space:
    """A tensor's index space, split by a reduction.

    Args:
        sizes: of the tensor.
        dims: those reduced, ascending; none folds each element by itself.
        keepdim: whether the result has size 1 there rather than no dim.
    """

    sizes: Indices
    dims: tuple[int, ...]
    keepdim: bool = False

    @property
    def outer(self) -> Indices:
        """Sizes of the dims kept."""
        return tuple(s for d, s in enumerate(self.sizes) if d not in self.dims)

    @property
    def inner(self) -> Indices:
        """Sizes of the dims reduced: one loop at least."""
        return tuple(self.sizes[d] for d in self.dims) or (1,)

    @property
    def shape(self) -> Indices:
        """The sizes of the result."""
        kept = tuple(1 if d in self.dims else s for d, s in enumerate(self.sizes))
        return kept if self.keepdim else self.outer

    @property
    def count(self) -> Any:
        """How many elements are folded into one."""
        return reduce(mul, self.inner)

    @property
    def cached(self) -> bool:
        """Whether a row is known to be small enough to be read twice from cache."""
        return isinstance(self.count, int) and self.count <= CACHED_EXTENT

    def indices(self, outer: Indices, inner: Indices) -> Indices:
        """The tensor's indices of an iteration."""
        folded, kept = iter(inner), iter(outer)
        return tuple(next(folded) if d in self.dims else next(kept) for d in range(len(self.sizes)))

    def result(self, indices: Indices) -> Indices:
        """The result's indices of the row that the tensor's element at `indices` is folded into."""
        kept = tuple(0 if d in self.dims else i for d, i in enumerate(indices))
        return kept if self.keepdim else tuple(i for d, i in enumerate(indices) if d not in self.dims)

    def row(self, outer: Indices) -> Indices:
        """The result's indices of an outer iteration."""
        return self.result(self.indices(outer, (0,) * len(self.dims)))

    def position(self, inner: Indices) -> Any:
        """The flattened position in a row."""
        return reduce(lambda total, part: add(mul(total, part[0]), part[1]), zip(self.inner, inner, strict=True), 0)


def space(x: Tensor, dim: Any, keepdim: bool = False) -> Space:
    """The space of a reduction as ATen spells it: a dim or several, negative ones too; none or ``[]`` is all."""
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    rank = len(x.sizes)
    wrapped = sorted({int(d) % rank for d in dims}) if rank else []
    return Space(x.sizes, tuple(wrapped) if dims else tuple(range(rank)), keepdim)


def require_elements(of: Space) -> None:
    """Refuse rows that may be empty, where eager raises.

    Raises:
        Unlowered: they may.
    """
    if not known_le(1, of.count):
        raise Unlowered("arguments", "reduces rows that may be empty and have no identity")


def fold(
    low: Lowering,
    of: Space,
    reducer: str,
    compute: Callable[[Indices], Value | tuple[Value, ...]],
    finish: Callable[..., Value | tuple[Value, ...]],
    *dtypes: torch.dtype,
    output: int | None = None,
) -> tuple[Tensor, ...]:
    """New tensors from one reduction over a space.

    Args:
        low: the lowering in progress.
        of: the space.
        reducer: one of `REDUCERS`.
        compute: its operands, given the tensor's indices.
        finish: the stored values, given the result's indices, then the components.
        dtypes: of the tensors made.
        output: which of the node's outputs the first of them is.
    """
    return low.reduce(
        reducer,
        lambda outer, inner: compute(of.indices(outer, inner)),
        of.outer,
        of.inner,
        lambda outer, components: finish(of.row(outer), *components),
        dtypes,
        shapes=[of.shape] * len(dtypes),
        output=output,
    )


def total(low: Lowering, of: Space, compute: Callable[[Indices], Value], dtype: torch.dtype, **more: Any) -> Tensor:
    """The sum over a space, as a tensor."""
    return fold(low, of, "sum", compute, lambda _, x: x, dtype, **more)[0]


def promised(low: Lowering, output: int | None = None) -> torch.dtype:
    """The dtype that tracing promised for the current node, or for one of its outputs."""
    val, output = low.current.meta["val"], low.output if output is None else output
    return (val if output is None else val[output]).dtype


def asked(low: Lowering, output: int) -> bool:
    """Whether the current node has this output (else None stands there)."""
    return low.current.meta["val"][output] is not None


def stored(low: Lowering, x: Tensor, output: int) -> Tensor:
    """`x` as an output of the node, in the dtype promised; itself where that is its dtype."""
    dtype = promised(low, output)
    return x if x.dtype == dtype else low.pointwise(x.at, x.sizes, dtype, output=output)
