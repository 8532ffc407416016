"""Windows of pooling: which elements an output sees, and which outputs see an element.

    kernel 3, stride 2, padding 1:    window o sees elements 2*o - 1 + r, r < 3, where those are in range
                                      element i is seen by windows (i + 1) // 2 - r, r < 2, where those reach it

Positions `r` may be integers (unrolled) or loop variables; conditions that always hold are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import torch

from ..ir.index.bounds import known_lt
from ..ir.index.index import Index, add, least, most, mul, quotient, remainder
from ..ir.value import Value
from .arithmetic import plus
from .core import Indices, Lowering, Tensor, Unlowered
from .positions import compared, numel, within

Place = tuple[Any, list[Value]]  # an index, and the conditions under which it is one
# Up to this many terms, a sum over windows is one expression, which fuses with anything; beyond, a reduction.
UNROLLED = 9


class Window(Protocol):
    """The windows along one dim: `out` of them over `size` elements."""

    @property
    def width(self) -> Any:
        """How many elements a window sees at most."""

    @property
    def covers(self) -> Any:
        """How many windows see an element at most."""

    def element(self, o: Any, r: Any) -> Place:
        """The element that window `o` sees at `r`, ``0 <= r < width``."""

    def window(self, i: Any, r: Any) -> Place:
        """A window that sees element `i`, ``0 <= r < covers``."""


@dataclass(frozen=True)
class Sliding:
    """Windows of one width, `stride` apart, over a padded dim."""

    size: Any
    out: Any
    kernel: int
    stride: int
    padding: int = 0
    dilation: int = 1

    @property
    def width(self) -> int:
        """How many elements a window sees at most; one that is wider than the dim sees no more than there are."""
        return self._reached(self.kernel, self.dilation)

    @property
    def covers(self) -> int:
        """How many windows see an element at most."""
        if self.dilation != 1:
            return self._reached(self.kernel, self.dilation)
        return self._reached(-(-self.kernel // self.stride), self.stride)

    def _reached(self, steps: int, length: int) -> int:
        """How many of so many steps end within the dim and one side of its padding."""
        if not isinstance(self.size, int):
            return steps
        return max(1, min(steps, (self.size + self.padding - 1) // length + 1))

    def element(self, o: Any, r: Any) -> Place:
        """The element that window `o` sees at `r`."""
        i = add(add(mul(o, self.stride), mul(r, self.dilation)), -self.padding)
        return i, within(i, self.size)

    def window(self, i: Any, r: Any) -> Place:
        """A window that sees element `i`."""
        o, conditions = self.near(i, r)
        if self.dilation == 1 and self.kernel % self.stride:
            conditions.append(compared("lt", i, add(mul(o, self.stride), self.kernel - self.padding)))
        return o, conditions

    def near(self, i: Any, r: Any) -> Place:
        """`window`, but for windows of no dilation, whether it reaches as far as `i` is not asked."""
        if self.dilation == 1:
            o = add(quotient(add(i, self.padding), self.stride), mul(r, -1))
            return o, within(o, self.out)
        start = add(add(i, self.padding), mul(r, -self.dilation))
        o = quotient(start, self.stride)
        aligned = [compared("eq", remainder(start, self.stride), 0)] if self.stride > 1 else []
        return o, [*within(o, self.out), *aligned]

    def part(self, i: Any, o: Any) -> Any:
        """The place at which window `o` sees element `i`: the inverse of `element`."""
        return quotient(add(add(i, self.padding), mul(o, -self.stride)), self.dilation)

    def count(self, o: Any, with_padding: bool) -> Any:
        """How many elements window `o` sees, those of the padding counted or not."""
        start = add(mul(o, self.stride), -self.padding)
        end = least(add(start, self.kernel), add(self.size, self.padding))
        if with_padding:
            return add(end, mul(start, -1))
        return add(least(end, self.size), mul(most(start, 0), -1))


@dataclass(frozen=True)
class Adaptive:
    """`out` windows that share a dim of `size`: from ``floor(o * size / out)`` to ``ceil((o + 1) * size / out)``."""

    size: Any
    out: Any

    @property
    def width(self) -> Any:
        """How many elements a window sees at most."""
        return _most_covered(self.size, self.out)

    @property
    def covers(self) -> Any:
        """How many windows see an element at most."""
        return _most_covered(self.out, self.size)

    def element(self, o: Any, r: Any) -> Place:
        """The element that window `o` sees at `r`."""
        start, end = _shared(o, self.size, self.out)
        return _part(start, end, r)

    def window(self, i: Any, r: Any) -> Place:
        """A window that sees element `i`."""
        start, end = _shared(i, self.out, self.size)
        return _part(start, end, r)

    def count(self, o: Any) -> Any:
        """How many elements window `o` sees."""
        start, end = _shared(o, self.size, self.out)
        return add(end, mul(start, -1))


def _shared(o: Any, size: Any, parts: Any) -> tuple[Any, Any]:
    """Start and end of part `o` of `size` elements shared by `parts`."""
    parts = most(parts, 1)
    start = quotient(mul(o, size), parts)
    end = quotient(add(mul(add(o, 1), size), add(parts, -1)), parts)
    return start, end


def _part(start: Any, end: Any, r: Any) -> Place:
    """The index at `r` of a part, which has one element at least."""
    i = add(start, r)
    return i, [] if r == 0 or known_lt(i, end) else [compared("lt", i, end)]


def _most_covered(size: Any, parts: Any) -> Any:
    """The most elements that one of the parts has, or a bound of it."""
    if parts == 1:
        return size
    if isinstance(size, Index) or isinstance(parts, Index):
        return add(quotient(add(size, add(parts, -1)), parts), 1)
    spans = (_shared(o, size, parts) for o in range(parts))
    return max((end - start for start, end in spans), default=0)


def places(pairs: Iterable[Place]) -> tuple[Indices, list[Value]]:
    """Indices along several dims, and all their conditions."""
    indices, conditions = zip(*pairs, strict=True)
    return indices, [c for part in conditions for c in part]


def summed(
    low: Lowering,
    sizes: Sequence[Any],
    extents: Sequence[Any],
    term: Callable[[Indices, Indices], Value],
    finish: Callable[[Indices, Value], Value],
    dtype: torch.dtype,
) -> Tensor:
    """A tensor whose element at `at` is ``finish(at, sum of term(at, r) over r)``.

    Few terms are one expression, many a reduction.
    """
    count = numel(extents)
    if isinstance(count, int) and 0 < count <= UNROLLED:
        steps = list(product(*map(range, extents)))
        return low.pointwise(lambda at: finish(at, plus(*[term(at, r) for r in steps])), sizes, dtype)
    return low.reduce("sum", term, sizes, extents, lambda at, parts: finish(at, parts[0]), [dtype])[0]


def require_floating(x: Tensor) -> None:
    """Refuse a mean of integers."""
    if not x.dtype.is_floating_point:
        raise Unlowered("dtype", f"a mean of {x.dtype}")
