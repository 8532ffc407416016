"""Ranges of memory that are looked at again and again: whether any two have a part in common."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import compress

_MOVING = 16  # ranges that may lie elsewhere in each call before all are looked at again


def ranges_meet(places: Iterable[int], sizes: Iterable[int]) -> bool:
    """Whether two of these ranges have a part in common; one that begins at 0 has no memory."""
    reached = 0
    for begin, size in sorted(zip(places, sizes, strict=True)):
        if not begin or not size:
            continue
        if begin < reached:
            return True
        reached = max(reached, begin + size)
    return False


class Ranges:
    """Many ranges of fixed sizes, of which few lie elsewhere than in the call before: only these are looked at.

    Args:
        sizes: in bytes.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self._sizes = list(sizes)
        self._known: Sequence[int] = ()  # where they were last, apart from each other
        self._moving: list[int] = []  # positions of those that lay elsewhere in some call
        self._begins: list[int] = []  # of all others that have memory, in the order of addresses
        self._ends: list[int] = []

    def are_apart(self, places: Sequence[int]) -> bool:
        """Whether no two of the ranges, which begin at these addresses, have a part in common; 0: no memory."""
        if places == self._known:
            return True
        apart = self._few_moved(places) or not ranges_meet(places, self._sizes)
        self._known = places if apart else ()
        return apart

    def _few_moved(self, places: Sequence[int]) -> bool:
        """Whether few ranges have moved, and all are still apart; False where too many have moved to tell cheaply."""
        if not self._known:
            return False
        moved = set(compress(range(len(places)), map(operator.ne, places, self._known)))
        if not moved.issubset(self._moving):
            self._let_move(moved, places)
        if not self._moving:
            return False
        pairs = [(places[k], self._sizes[k]) for k in self._moving]
        return not ranges_meet(*zip(*pairs, strict=True)) and not any(self._meets(*pair) for pair in pairs)

    def _let_move(self, moved: set[int], places: Sequence[int]) -> None:
        """Count these among the ranges that move, and put the others in order; forget all if too many move."""
        moving = moved.union(self._moving)
        self._moving = list(moving) if len(moving) <= _MOVING else []
        if not self._moving:
            return
        others = [
            (place, size) for k, (place, size) in enumerate(zip(places, self._sizes, strict=True)) if k not in moving
        ]
        ordered = sorted((place, place + size) for place, size in others if place and size)
        self._begins, self._ends = [begin for begin, _ in ordered], [end for _, end in ordered]

    def _meets(self, begin: int, size: int) -> bool:
        """Whether a range meets one of those that stay, which are apart from each other."""
        if not begin or not size:
            return False
        after = bisect_right(self._begins, begin)
        before = after > 0 and self._ends[after - 1] > begin
        return before or (after < len(self._begins) and self._begins[after] < begin + size)
