"""How the outputs of resampling lie among the elements of one dim."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..ir.index.bounds import known_lt
from ..ir.index.index import Index, Loaded, add, most, mul
from ..ir.value import Number, Value
from .arithmetic import minus, op, over, plus, size_value, times, where
from .core import cast, const
from .positions import compared
from .readers import MOST_OUTPUTS, Readers, readers

_FITS = 1 << 30  # places below it, and one more, are integers of 32 bits


@dataclass(frozen=True)
class Scale:
    """How outputs lie among `size` elements.

    Args:
        size, out: elements and outputs.
        factor: outputs for each element, where not ``out / size``.
        align_corners: whether first and last outputs lie on first and last elements.
        dtype: in which positions are computed.
        copies_same: whether as many outputs as elements are the elements, whatever `factor` says.
    """

    size: Any
    out: Any
    factor: float | None
    align_corners: bool
    dtype: torch.dtype
    copies_same: bool = False

    @property
    def is_static(self) -> bool:
        """Whether both sizes are integers."""
        return isinstance(self.size, int) and isinstance(self.out, int)

    @property
    def is_consistent(self) -> bool:
        """Whether the factor is known to be the ratio of the sizes."""
        if self.factor is None or self.factor != round(self.factor):
            return self.factor is None
        return bool(self.out == mul(self.size, round(self.factor)))

    @property
    def is_same(self) -> bool | Value:
        """Whether there are as many outputs as elements: a value of the loop program where only a run tells."""
        if self.is_static or self.out == self.size:
            return bool(self.out == self.size)
        if known_lt(self.size, self.out) or known_lt(self.out, self.size):
            return False
        return compared("eq", self.out, self.size)

    @property
    def step(self) -> Value:
        """How far two neighbouring outputs lie apart."""
        if self.align_corners:
            return self._ratio(add(self.size, -1), add(self.out, -1))
        if not self.factor:
            return self._ratio(self.size, self.out)
        step, same = const(1 / self.factor, self.dtype), self.copies_same and self.is_same
        if isinstance(same, bool):
            return const(1.0, self.dtype) if same else step
        return where(same, const(1.0, self.dtype), step)

    def _ratio(self, size: Any, out: Any) -> Value:
        if isinstance(size, int) and isinstance(out, int):
            return const(size / out if out > 0 else 0.0, self.dtype)
        return over(size_value(size, self.dtype), size_value(most(out, 1), self.dtype))

    def place(self, o: Any) -> Value:
        """The position of output `o`: positions of elements are integers."""
        at = Number(o, torch.int64) if isinstance(o, Index) else const(o, torch.int64)
        if self.align_corners:
            return times(self.step, cast(at, self.dtype))
        return minus(times(self.step, plus(cast(at, self.dtype), 0.5)), 0.5)

    def readers(self, left: int, right: int) -> Readers | None:
        """The outputs that read an element, where an output reads from `left` before its place to `right` after it."""
        if not self.is_static or self.out > MOST_OUTPUTS or not self.out:
            return None
        # Positions are rounded: what might be read is among the readers, with the weight that it then has.
        spare = 8 * self.size * torch.finfo(self.dtype).eps
        return readers([self._reads(o, left, right, spare) for o in range(self.out)], self.size)

    def _reads(self, o: int, left: int, right: int, spare: float) -> tuple[int, int]:
        """The range of the elements at which output `o` has a weight: those less than `left` or `right` away."""
        step = (self.size - 1) / (self.out - 1) if self.align_corners and self.out > 1 else 0.0
        step = step if self.align_corners else 1 / self.factor if self.factor else self.size / self.out
        place = step * o if self.align_corners else step * (o + 0.5) - 0.5
        start, stop = math.floor(place - left - spare) + 1, math.ceil(place + right + spare)
        # What lies outside is read at the nearest end.
        return min(start, self.size - 1), max(stop, 1)

    def whole(self, place: Value) -> Value:
        """A place without its fraction, in 32 bits if these are known to hold it: twice as many fill a vector."""
        step = 1 / self.factor if self.factor else 1.0
        fits = self.is_static and abs(step) * (max(self.out, self.size) + 1) < _FITS
        return cast(place, torch.int32 if fits else torch.int64)

    def element(self, position: Value) -> Any:
        """The index nearest to an integral position that is in range."""
        within = op("maximum", op("minimum", position, size_value(add(self.size, -1), position.dtype)), 0)
        return Loaded(within, self.size, False).index()
