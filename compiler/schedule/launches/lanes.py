"""How many elements each lane has: fewer if they lie apart in memory, have long code, or are few in all.

8 by default         a lane then loads and stores 16 bytes at a time
x[2*i], x[2*i + 1]   with 4 elements per lane, a warp touches 8 lines of the cache at a time; with 1 element, 2 lines
sin(x), cos(x)       the code is written out for each element of a lane, and instruction caches are small
few elements         more warps hide the latency of operations and of memory
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...ir.accesses import Access, accesses, values
from ...ir.dependence import Dependence
from ...ir.index.bounds import bounds
from ...ir.index.index import Var, add, mul, terms
from ...ir.iteration_space import is_indirect, number_of
from ...ir.kernel import Statement
from ...ir.ops import OPS
from ...ir.value import Op
from ...ir.verify_launch import THREADS

MOST = 8  # elements of a lane by default
_LINE = 128  # bytes of a line of the cache, of which a multiprocessor reads one in a cycle
_WIDEST = 16  # bytes that a lane accesses at once
_HIDDEN = 1.25  # lines that a warp reads in the time in which memory moves a byte for each of its lanes
_SECTOR = 32  # bytes that memory moves together
_LESS = 1.5  # times fewer lines that are worth narrower accesses
_NARROWEST_STORE = 4  # bytes that a lane stores at least
_COPIES = 16  # copies of long code in one program
_BUSY, _NEARLY = 16, 15  # warps of a multiprocessor that hide latency, of 64; those that do if code is short
_SHORT = 7  # operations of short code
_FUNCTION, _DOUBLE = 3, 4  # operations that take as long as one of them; as one in float64


@dataclass(frozen=True)
class LanePlacement:
    """The loops that lanes run along.

    Args:
        loops: the loops around, outermost first. If they are lanes together, `flat`.
        var: the loop along which neighboring lanes lie.
        inside: whether only accesses inside of the loop `var` count.
    """

    loops: tuple[Var, ...]
    var: Var
    flat: bool = False
    inside: bool = False


@dataclass(frozen=True)
class Few:
    """The elements of a launch that may be too few for the GPU.

    Args:
        elements: the number of elements.
        processors: the multiprocessors of the GPU.
        short: whether the code for an element is short.
    """

    elements: Any
    processors: int
    short: bool = False

    def each(self, most: int) -> int:
        """The most elements of each lane, up to `most`, with which they keep the GPU busy."""
        high = bounds(self.elements)[1]
        while high is not None and most > 1 and high < self._warps(most) * self.processors * THREADS * most:
            most //= 2
        return most

    def _warps(self, each: int) -> int:
        return _NEARLY if self.short and each < MOST else _BUSY


def long_operations(body: Sequence[Statement]) -> int:
    """How many operations have long code."""
    return sum(isinstance(value, Op) and OPS[value.name].gpu == "long" for value in values(body))


def is_short(body: Sequence[Statement]) -> bool:
    """Whether the code for an element is short, so that it waits for memory."""
    return sum(_operations(value) for value in values(body) if isinstance(value, Op)) <= _SHORT


def _operations(value: Op) -> int:
    """Simple operations that take as long as one."""
    kind = OPS[value.name].gpu
    if kind in ("long", "rounds"):
        return _SHORT + 1
    number = _FUNCTION if kind == "function" else 0 if kind == "free" else 1
    return number * (_DOUBLE if value.dtype == torch.float64 else 1)


def elements_of(
    lanes: LanePlacement, body: Sequence[Statement], bytes_of: Mapping[str, int], few: Few | None = None
) -> int:
    """The elements of a lane: 8, 4, 2 or 1.

    Args:
        lanes: where lanes are.
        body: the statements for each element.
        bytes_of: the bytes per element of each buffer in memory, by name.
        few: the elements of the launch, if they may be too few for the GPU.
    """
    found = [a for a in dict.fromkeys(accesses(body)) if a.buffer in bytes_of and not is_indirect(a.offset)]
    found = [a for a in found if not lanes.inside or a.inner == lanes.var]
    stored = min((bytes_of[a.buffer] for a in found if a.stored), default=_NARROWEST_STORE)
    least = max(1, _NARROWEST_STORE // stored)
    each = _by_lines([_Pattern(a, lanes, bytes_of[a.buffer]) for a in found], least)
    copies = long_operations(body)
    while each > least and copies * each > _COPIES:
        each //= 2
    return each if few is None else few.each(each)


def _by_lines(patterns: Sequence[_Pattern], least: int) -> int:
    """The most elements with which few lines of the cache are read."""
    choices = [each for each in (MOST, 4, 2, 1) if each >= least]
    lines = [_lines(patterns, each) for each in choices]
    moved = {pattern.buffer: 0 for pattern in patterns}
    for pattern in patterns:
        moved[pattern.buffer] = max(moved[pattern.buffer], pattern.moved)
    if lines[0] <= _HIDDEN * sum(moved.values()) or lines[0] < _LESS * min(lines):
        return MOST
    return next(each for each, n in zip(choices, lines, strict=True) if n < _LESS * min(lines))


def _lines(patterns: Sequence[_Pattern], each: int) -> float:
    """Lines that a warp touches per element of its lanes; neighbors are in one lane only where an access is wide."""
    each = max((pattern.width(each) for pattern in patterns), default=1)
    return sum(pattern.lines(each) for pattern in patterns)


class _Pattern:
    """How one access moves from lane to lane."""

    def __init__(self, access: Access, lanes: LanePlacement, size: int) -> None:
        dependence = Dependence()
        step = dependence.stride(access.offset, lanes.var, MOST)
        self.buffer = access.buffer
        self._size, self._step = size, 1 if step is None else abs(step) if isinstance(step, int) else THREADS
        self._multiple = 1
        if lanes.flat and isinstance(apart := add(access.offset, mul(number_of(lanes.loops), -1)), int):
            self._multiple = _power_in(apart)
        elif step == 1:
            others = [n for monomial, n in terms(access.offset) if not _moves(monomial, lanes.var, dependence)]
            self._multiple = min(map(_power_in, others), default=MOST)

    @property
    def moved(self) -> int:
        """Bytes that memory moves for each element of a lane."""
        return self._size * min(self._step, _SECTOR // self._size)

    def width(self, each: int) -> int:
        """How many of `each` neighbors one instruction accesses."""
        if self._step != 1:
            return 1
        return min(each, self._multiple, max(1, _WIDEST // self._size))

    def lines(self, each: int) -> float:
        """Lines of the cache for each element of a lane, over all lanes of a warp."""
        if not self._step:
            return 0.0
        width = self.width(each)
        lines = each * self._step * self._size * THREADS / _LINE
        return lines / width if width == each else min(float(THREADS), max(1.0, lines)) / width


def _moves(monomial: Sequence[Any], var: Var, dependence: Dependence) -> bool:
    return any(var in dependence.of(atom.index()) for atom in monomial)


def _power_in(number: int) -> int:
    """The largest power of two, up to `MOST`, that divides a number."""
    return next(power for power in (MOST, 4, 2, 1) if number % power == 0)
