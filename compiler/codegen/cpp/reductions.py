"""Reductions as C++: accumulators are scalars or vectors; they are folded, and joined over copies, lanes and blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...ir.folds import NO_POSITION, component_dtypes, identity
from ...ir.program import Reduction
from ...ir.reducers import REDUCERS, algebra_of
from ..source_writer import Writer
from .dtypes import lane_type, literal, scalar_type

_NO_PLACE = torch.iinfo(torch.int32).max  # `NO_POSITION` in 32 bits


class Accumulators:
    """The state of one reduction, `names[copy][component]`: a vector for each copy, or one scalar.

    Args:
        writer: takes the lines.
        reduction: the reduction.
        lanes: the lanes of each accumulator; None for scalars.
        copies: the number of independent accumulators.
    """

    def __init__(self, writer: Writer, reduction: Reduction, lanes: int | None, copies: int = 1) -> None:
        self._writer, self._reducer, self.lanes = writer, algebra_of(reduction.reducer), lanes
        self._element = "up" if self._reducer == reduction.reducer else "co"  # the contribution of an iteration
        self.reduction = reduction
        dtype = reduction.values[0].dtype
        self._truth = dtype == torch.bool
        self.dtypes = component_dtypes(reduction.reducer, dtype, reduction.values[-1].dtype)
        self.names = [[writer.fresh("a") for _ in self.dtypes] for _ in range(copies)]

    def start(self) -> None:
        """Declare the accumulators, at the identity."""
        neutral = identity(self._reducer, self.reduction.values[0].dtype)
        for names in self.names:
            for name, dtype, number in zip(names, self.dtypes, neutral, strict=True):
                number = _NO_PLACE if number == NO_POSITION and dtype == torch.int32 else number
                kind = scalar_type(dtype) if self.lanes is None else f"V<{lane_type(dtype)}, {self.lanes}>"
                self._writer.line(f"{kind} {name} = {self._spelled(literal(number, dtype), dtype)};")

    def update(self, values: Sequence[str], copy: int, mask: str | None) -> None:
        """Fold the values of one iteration into the state, in the lanes of `mask` only."""
        names = self.names[copy]
        old = [self._writer.define("auto", name) for name in names] if mask else []
        self._fold(self._element, names, values)
        for name, before in zip(names, old, strict=bool(mask)):
            self._writer.line(f"{name} = sel({mask}, {name}, {before});")

    def join(self, other: Accumulators, copy: int) -> None:
        """Fold another state of the same reduction into this one."""
        self._fold("co", self.names[copy], other.names[copy])

    def join_copies(self) -> None:
        """Fold all copies into the first."""
        others = self.names[1:]
        if self._short or len(others) < 2:
            for names in others:
                self._fold("co", self.names[0], names)
            return
        arrays = [self._writer.fresh() for _ in self.dtypes]
        for array, same in zip(arrays, zip(*others, strict=True), strict=True):
            self._writer.line(f"const decltype({same[0]}) {array}[] = {{{', '.join(same)}}};")
        self._writer.line("#pragma GCC unroll 1")
        with self._writer.block(f"for (int k = 0; k < {len(others)}; ++k)"):
            self._fold("co", self.names[0], [f"{array}[k]" for array in arrays])

    def join_lanes(self) -> list[str]:
        """The components, joined over the lanes of the first copy, as scalars."""
        if self.lanes is None:
            return self.names[0]
        if self._short:
            by = self.lanes // 2
            while by:
                self._join_turned(f"{by}")
                by //= 2
        else:
            self._writer.line("#pragma GCC unroll 1")
            with self._writer.block(f"for (int by = {self.lanes // 2}; by; by /= 2)"):
                self._join_turned("by")
        ends = zip(self.names[0], self.dtypes, strict=True)
        return [self._writer.define(scalar_type(d), f"{name}[0]{' != 0' * (d == torch.bool)}") for name, d in ends]

    @property
    def _short(self) -> bool:
        """Whether joining takes so few instructions that a loop around it would take more."""
        return REDUCERS[self._reducer].simple

    def _join_turned(self, by: str) -> None:
        turned = [self._writer.define("auto", f"rotate({name}, {by})") for name in self.names[0]]
        self._fold("co", self.names[0], turned)

    def _fold(self, how: str, names: Sequence[str], values: Sequence[str]) -> None:
        if REDUCERS[self._reducer].cpp:
            self._writer.line(f"{names[0]} = {self._simple(names[0], values[0])};")
        else:
            self._writer.line(f"{how}_{self._reducer}({', '.join([*names, *values])});")

    def _simple(self, a: str, b: str) -> str:
        info = REDUCERS[self._reducer]
        return (info.cpp_truths if self._truth else info.cpp).format(a, b)

    def _spelled(self, text: str, dtype: torch.dtype) -> str:
        if self.lanes is None:
            return text
        if dtype == torch.bool:
            return f"truth<{self.lanes}>({text})"
        return f"splat<V<{lane_type(dtype)}, {self.lanes}>>({text})"
