"""How a reshape regroups dimensions.

[2, 3, 4, 5] -> [6, 4, 5]      groups ([0, 1] -> [0]), ([2] -> [1]), ([3] -> [2])      a merge
[6, 4] -> [2, 3, 4]            groups ([0] -> [0, 1]), ([1] -> [2])                    a split
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...rewrites.symbolic import hint, known_equal


@dataclass(frozen=True)
class ReshapedDims:
    """Dimensions `old` that a reshape turns into the dimensions `new`; either may be empty (sizes of 1)."""

    old: tuple[int, ...]
    new: tuple[int, ...]

    @property
    def is_split(self) -> bool:
        """One or no old dimension becomes any number of new ones."""
        return len(self.old) <= 1

    @property
    def is_merge(self) -> bool:
        """Any number of old dimensions become one or no new one."""
        return len(self.new) <= 1


def regroup(old: Sequence[Any], new: Sequence[Any]) -> list[ReshapedDims] | None:
    """The finest grouping of the sizes `old` and `new`, in order; None if it cannot be proven.

    Sizes of 1 that appear or disappear are separate groups.
    """
    groups: list[ReshapedDims] = []
    i = j = 0
    while i < len(old) or j < len(new):
        found = _single(old, new, i, j) or _several(old, new, i, j)
        if found is None:
            return None
        groups.append(found)
        i, j = i + len(found.old), j + len(found.new)
    return groups


def _single(old: Sequence[Any], new: Sequence[Any], i: int, j: int) -> ReshapedDims | None:
    """A dimension that stays, appears or disappears."""
    if i < len(old) and j < len(new) and known_equal(old[i], new[j]):
        return ReshapedDims((i,), (j,))
    if j < len(new) and known_equal(new[j], 1):
        return ReshapedDims((), (j,))
    if i < len(old) and known_equal(old[i], 1):
        return ReshapedDims((i,), ())
    return None


def _several(old: Sequence[Any], new: Sequence[Any], i: int, j: int) -> ReshapedDims | None:
    """The shortest runs from `i` and `j` with equal products; example sizes only decide which run to extend."""
    if i == len(old) or j == len(new):
        return None
    a, b, end_a, end_b = old[i], new[j], i + 1, j + 1
    while not known_equal(a, b):
        left, right = hint(a), hint(b)
        if left is None or right is None:
            return None
        if left < right and end_a < len(old):
            a, end_a = a * old[end_a], end_a + 1
        elif end_b < len(new):
            b, end_b = b * new[end_b], end_b + 1
        else:
            return None
    return ReshapedDims(tuple(range(i, end_a)), tuple(range(j, end_b)))


def keeps_last(groups: list[ReshapedDims], count: int, old_rank: int, new_rank: int) -> bool:
    """Whether the last `count` dimensions stay unchanged."""
    kept = [ReshapedDims((old_rank - k,), (new_rank - k,)) for k in range(count, 0, -1)]
    return min(old_rank, new_rank) >= count and groups[-count:] == kept


def unmerged(
    groups: list[ReshapedDims], merged: Sequence[Any], full: Sequence[Any], sizes: Sequence[Any]
) -> list[Any] | None:
    """The sizes with which an operand that broadcasts to `merged` broadcasts to `full`.

    Args:
        groups: the groups of the reshape from `merged` to `full`, all of them splits.
        merged: the shape with merged dimensions.
        full: the shape with these dimensions split.
        sizes: the sizes of the operand, which may have fewer dimensions than `merged`.

        merged [B*H, S, T], full [B, H, S, T]:   [B*H, 1, T] -> [B, H, 1, T],   [1, S, T] -> [1, 1, S, T],   [S, T]
    """
    offset = len(merged) - len(sizes)
    result: list[Any] = []
    for group in groups:
        if not group.old:
            result.extend([1] * len(group.new) if result or not offset else [])
            continue
        if group.old[0] < offset:
            continue
        size = sizes[group.old[0] - offset]
        if known_equal(size, 1):
            result.extend([1] * len(group.new))
        elif known_equal(size, merged[group.old[0]]):
            result.extend(full[d] for d in group.new)
        else:
            return None
    return result


def inverted(groups: list[ReshapedDims]) -> list[ReshapedDims]:
    """The groups of the inverse reshape."""
    return [ReshapedDims(g.new, g.old) for g in groups]
