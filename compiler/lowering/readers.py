"""The outputs of a resampled dim that read an element: its gradient is the sum over them, with nothing scattered.

    linear, 4 -> 8, outputs at 0.5 * o - 0.25    ->    element i is read by outputs 2*i - 1 + r, r < 4

What reads an element lies in a row that moves along evenly. The row is found from a list of what each output reads, so
that it holds for whatever scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from ..ir.index.index import add, mul, quotient

# Longer lists (of two ends for each output) would take longer to make than the gradient.
MOST_OUTPUTS = 16384
# Rows this many times as long as what reads an element on average: the scale is none of the sizes', scattering is less.
MOST_SPARE = 4


@dataclass(frozen=True)
class Readers:
    """Element `i` is read by outputs of ``range(first(i), first(i) + count)`` only, where those are in range."""

    count: int
    step: int
    shift: int
    by: int

    def first(self, i: Any) -> Any:
        """The first output that may read element `i`."""
        return quotient(add(mul(i, self.step), self.shift), self.by)


def readers(reads: Sequence[tuple[int, int]], size: int) -> Readers | None:
    """The rows of outputs by element, of an axis whose output `o` reads elements of ``range(*reads[o])`` at most.

    None: there are too many outputs, or the rows are no shorter than scattering is slow.
    """
    out = len(reads)
    if not 0 < out <= MOST_OUTPUTS or size < 1:
        return None
    ends: list[tuple[int, int] | None] = [None] * size
    for o, (start, stop) in enumerate(reads):
        for i in range(max(start, 0), min(stop, size)):
            seen = ends[i]
            ends[i] = (o, o) if seen is None else (seen[0], o)
    best = min(_rows(ends, size, out), key=lambda row: row.count)
    taken = sum(max(min(stop, size) - max(start, 0), 0) for start, stop in reads)
    return best if best.count * size <= MOST_SPARE * max(taken, size) else None


def _rows(ends: Sequence[tuple[int, int] | None], size: int, out: int) -> Iterator[Readers]:
    """Rows that hold all outputs of each element, by the ratios of the sizes and of the steps between ends."""
    yield _row(ends, out, size)
    if size > 1 and out > 1:
        yield _row(ends, out - 1, size - 1)


def _row(ends: Sequence[tuple[int, int] | None], step: int, by: int) -> Readers:
    """`first(i)` is at most the first reader of `i`:  i * step + shift < (reader + 1) * by."""
    step, by = step // gcd(step, by), by // gcd(step, by)
    found = [(i, *pair) for i, pair in enumerate(ends) if pair is not None]
    shift = min((lo + 1) * by - 1 - i * step for i, lo, _ in found)
    return Readers(max(hi - (i * step + shift) // by for i, _, hi in found) + 1, step, shift, by)
