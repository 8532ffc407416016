"""How families tell of places where one expects a match and no rule matches: `*_overlooked.py` has a search for each.

    activations    a value that equals an activation at a few points
    attention      a product that reads the weights of a softmax of scores, and what is done to them before
    cross_entropy  logarithms of probabilities of which one of a row is picked by other ways than a gather
    normalization  a value that is divided by its own deviation
    rotary         halves that are turned and written in place, pairs that are turned by matrices

A search is the option `overlooked` of a rule: it gives nodes and reasons. The driver drops those where anything else is
told of the family.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import fx

from ..rewrites.graph import describe
from ..rewrites.reason import Reason

_MOST_VISITED = 64  # nodes that a search looks at from one place


def reached(start: Any, following: Callable[[fx.Node], Iterable[Any]]) -> Iterator[fx.Node]:
    """Nodes from `start` on, nearest first and none twice, up to a limit; `following` gives those after a node."""
    todo, seen = deque([start]), set[fx.Node]()
    while todo and len(seen) < _MOST_VISITED:
        node = todo.popleft()
        if isinstance(node, fx.Node) and node not in seen:
            seen.add(node)
            yield node
            todo.extend(following(node))


def differs(code: str, message: str, expected: str, culprit: fx.Node, *others: fx.Node) -> Reason:
    """Why there is no match: `expected` in place of `culprit`."""
    return Reason(code, message, (culprit, *others), expected, describe(culprit))
