"""Second stages of split reductions that have the same loops become one definition: a launch instead of several.

a:  for j < 768: fold sum over s < 32 of p[s, j]                  a, b:  for j < 768:
b:  for j < 768: fold sum over s < 32 of q[s, j]        ->                  fold sum of p[s, j], sum_1 of q[s, j]

Each moves down to the next one of its shape, if nothing in between reads its results or writes its operands.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ..ir.program import Definition, Item
from .dependences import effects

_MOST = 8  # reductions of one definition


def join_second_stages(items: Sequence[Item], names: Collection[str]) -> list[Item]:
    """Items with second stages joined that have the same loops.

    Args:
        items: of a program, in order.
        names: of the second stages; no other definition moves.
    """
    waiting: list[Definition] = []
    found: list[Item] = []
    for item in items:
        mine = effects(item)
        for other in [w for w in waiting if effects(w).conflicts(mine)]:
            waiting.remove(other)
            found.append(other)
        if not isinstance(item, Definition) or item.name not in names:
            found.append(item)
            continue
        sibling = next((w for w in waiting if _alike(w, item)), None)
        if sibling is None:
            waiting.append(item)
        else:
            waiting[waiting.index(sibling)] = _joined(sibling, item)
    return [*found, *waiting]


def _alike(a: Definition, b: Definition) -> bool:
    """Whether one nest can hold both: the same loops, and not too much."""
    same = (a.loops, a.reduced, a.scan) == (b.loops, b.reduced, b.scan)
    return same and len(a.reductions) + len(b.reductions) <= _MOST


def _joined(a: Definition, b: Definition) -> Definition:
    nodes = tuple(dict.fromkeys((*a.nodes, *b.nodes)))
    return replace(b, stores=(*a.stores, *b.stores), reductions=(*a.reductions, *b.reductions), nodes=nodes)


__all__ = ["join_second_stages"]
