"""The axes that two groups have in common: matched by stride through a buffer that both touch.

    writer  t[768*a0 + a1], a0 < 256, a1 < 768
    reader  t[a2],          a2 < 196608           ->   a2 split into 256 and 768, then a2' = a0, a2" = a1

Strides tell more than positions: permuted, collapsed and split loops over the same memory all align. Loops that do not
occur in the buffer are the same where both groups have as many of them, of the same lengths, in order:

    u[768*a0 + a1] = f(x[a1]),  v[768*a2 + a3] = g(x[a3])      a1 = a3 by x, then a0 = a2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..ir.index.index import Index, Var, mul, quotient, remainder
from ..ir.iteration_space import extent_of
from .affine import Digit, Offset, ascending, at_most, digits, less
from .groups import Axes, AxisAccess, Group, Member, split_axes
from .profit import guess

_TRIES = 4  # buffers that two groups share, by which alignment is tried


@dataclass
class Aligned:
    """Two groups over common axes: their members, chains, and the axes known to be the same."""

    a: tuple[Member, ...]
    b: tuple[Member, ...]
    chain_a: tuple[Var, ...]
    chain_b: tuple[Var, ...]
    shared: frozenset[Var]


@dataclass
class _Match:
    """Splits of axes of either side, and pairs of pieces that are the same."""

    pieces: tuple[dict[Var, list[Var]], dict[Var, list[Var]]] = field(default_factory=lambda: ({}, {}))
    pairs: list[tuple[Var, Var]] = field(default_factory=list)


def alignments(a: Group, b: Group, buffers: list[str], axes: Axes) -> Iterator[Aligned]:
    """Ways to see two groups over common axes, by the first of the `buffers` that they share, best match first."""
    matches = []
    for name in buffers[:_TRIES]:
        left, right = _telling(a, name), _telling(b, name)
        if left is not None and right is not None:
            match = matched(digits(left.offset), digits(right.offset), axes)
            if match.pairs:
                _match_others(match, a.chain, b.chain)
                matches.append(match)
    for match in sorted(matches, key=lambda m: -guess(extent_of(x for x, _ in m.pairs))):
        yield _applied(a, b, match)


def _telling(group: Group, name: str) -> AxisAccess | None:
    """The access to a buffer that steps most axes, writes first."""
    found = [a for m in group.members for a in m.touched.get(name, ()) if a.offset is not None]
    return max(found, key=lambda a: (sum(map(_is_step, digits(a.offset).digits)), a.write), default=None)


def matched(a: Offset, b: Offset, axes: Axes) -> _Match:
    """Axes of equal stride and extent, the longer of two split where the shorter divides it."""
    match, left, right = _Match(), _steps(a), _steps(b)
    while left and right:
        (s, x), (t, y) = left[-1], right[-1]
        if s != t:
            if not (at_most(s, t) or at_most(t, s)):
                break
            (left if at_most(s, t) else right).pop()
        elif x.extent == y.extent:
            match.pairs.append((x, y))
            left.pop()
            right.pop()
        else:
            _cut(match, left, right, axes)
    return match


def _match_others(match: _Match, a: Sequence[Var], b: Sequence[Var]) -> None:
    """Pair the loops of chains that the buffer says nothing of."""
    known = {v for pair in match.pairs for v in pair}
    left, right = (
        [v for v in chain if v not in known and v not in pieces]
        for chain, pieces in zip((a, b), match.pieces, strict=True)
    )
    if [v.extent for v in left] == [v.extent for v in right]:
        match.pairs.extend(zip(left, right, strict=True))


def _steps(offset: Offset) -> list[tuple[Any, Var]]:
    """Strides and axes, largest first; none where strides cannot be compared."""
    steps: list[tuple[Any, Var]] = [
        (d.stride, d.monomial[0])  # type: ignore[misc]
        for d in offset.digits
        if _is_step(d)
    ]
    order = ascending({stride for stride, _ in steps})
    return [] if order is None else sorted(steps, key=lambda step: -order.index(step[0]))


def _is_step(digit: Digit) -> bool:
    return len(digit.monomial) == 1 and isinstance(digit.monomial[0], Var) and less(0, digit.stride)


def _cut(match: _Match, left: list[tuple[Any, Var]], right: list[tuple[Any, Var]], axes: Axes) -> None:
    """Split the longer of the innermost axes and match its inner piece; drop both where neither divides the other."""
    (s, x), (_, y) = left.pop(), right.pop()
    for side, steps, long, short in ((0, left, x, y), (1, right, y, x)):
        times = exact(long.extent, short.extent)
        if times is not None:
            outer, inner = axes.fresh(times), axes.fresh(short.extent)
            _replace(match.pieces[side], long, [outer, inner])
            match.pairs.append((inner, y) if side == 0 else (x, inner))
            steps.append((mul(s, inner.extent), outer))
            return


def _replace(pieces: dict[Var, list[Var]], axis: Var, by: list[Var]) -> None:
    for parts in pieces.values():
        if axis in parts:
            at = parts.index(axis)
            parts[at : at + 1] = by
            return
    pieces[axis] = by


def exact(a: Any, b: Any) -> Any:
    """``a / b`` where `b` divides `a` for sure and `a` is larger, else None."""
    if b in (0, 1) or a == b or a == 0:
        return None
    if isinstance(a, Index) or isinstance(b, Index):
        return quotient(a, b) if remainder(a, b) == 0 else None
    return a // b if a % b == 0 else None


def _applied(a: Group, b: Group, match: _Match) -> Aligned:
    pieces = tuple({v: tuple(p) for v, p in side.items()} for side in match.pieces)
    members_a, members_b = (split_axes(g.members, p) for g, p in zip((a, b), pieces, strict=True))
    chains = [tuple(p for v in g.chain for p in side.get(v, (v,))) for g, side in zip((a, b), pieces, strict=True)]
    same = {y: x for x, y in match.pairs}
    by = {y: x.index() for y, x in same.items()}

    def renamed(axes: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(same.get(v, v) for v in axes)

    members_b = tuple(m.over(by, renamed(m.outer), renamed(m.reduced)) for m in members_b)
    return Aligned(members_a, members_b, chains[0], renamed(chains[1]), frozenset(same.values()))
