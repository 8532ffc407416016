"""Folding: what repeats in a snapshot is drawn once, and what no rule touched can be drawn as one box.

    embed, [norm, qkv, attend, mlp] x 12, norm, head      ->      embed, Block([norm, qkv, attend, mlp], 12), norm, head

A graph's nodes stand in the order in which they run, so equal layers are equal runs of it, one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

SHORTEST = 4
"""Nodes of the shortest run whose repetitions are folded."""
DEEPEST = 2
"""How deep blocks may lie in blocks."""
UNTOUCHED = 3
"""Nodes of the shortest run that is drawn as one box where no rule touched it."""


@dataclass(frozen=True)
class Line:
    """One node to be placed: its position in the snapshot, and those of the nodes that it reads."""

    node: int
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """Nodes drawn as one: a single operator, or a run of them that no rule touched."""

    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """A run of boxes and blocks that occurs `count` times; `items` are those of the first, `twins` maps the others.

    Args:
        items: what one occurrence consists of.
        count: how often it occurs.
        twins: the node of the first occurrence for each node of the others.
    """

    items: tuple[Box | Block, ...]
    count: int
    twins: dict[int, int]


Item = Box | Block


def fold(lines: Sequence[Line], colours: Sequence[Hashable]) -> list[Item]:
    """Boxes of one node each, and blocks where runs of at least `SHORTEST` nodes repeat.

    Args:
        lines: the nodes in order.
        colours: of each line; lines of different colours are never equal.
    """
    number: dict[Hashable, int] = {}
    codes = np.array([number.setdefault(colour, len(number)) for colour in colours], dtype=np.int64)
    return _folded(list(lines), codes, 0)


def _folded(lines: list[Line], codes: np.ndarray, depth: int) -> list[Item]:
    found = _best_run(lines, codes) if depth < DEEPEST else None
    if found is None:
        return [Box((line.node,)) for line in lines]
    start, period, count = found
    stop = start + period * count
    inside = _folded(lines[start : start + period], codes[start : start + period], depth + 1)
    firsts = [line.node for line in lines[start : start + period]]
    twins = {line.node: firsts[i % period] for i, line in enumerate(lines[start:stop]) if i >= period}
    return [
        *_folded(lines[:start], codes[:start], depth),
        Block(tuple(inside), count, twins),
        *_folded(lines[stop:], codes[stop:], depth),
    ]


def _best_run(lines: list[Line], codes: np.ndarray) -> tuple[int, int, int] | None:
    """(start, period, count) of the repetition that saves most nodes, or None."""
    best, saved = None, 0
    for period in range(SHORTEST, len(codes) // 2 + 1):
        start, length = _longest(codes[period:] == codes[:-period])
        if length // period * period <= saved:
            continue
        start, count = _aligned(lines, start, period, length)
        if (count - 1) * period > saved:
            best, saved = (start, period, count), (count - 1) * period
    return best


def _longest(equal: np.ndarray) -> tuple[int, int]:
    """Start and length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.view(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(lengths.argmax())
    return int(edges[2 * longest]), int(lengths[longest])


def _aligned(lines: list[Line], start: int, period: int, length: int) -> tuple[int, int]:
    """The best cut, which the fewest values cross, and how many occurrences from there are wired alike."""
    slack = length % period
    crossing = _crossings(lines, start, start + slack + 1)
    start += min(range(slack + 1), key=lambda i: (crossing[i], i))
    return start, _alike(lines, start, period, length // period + 1)


def _crossings(lines: list[Line], first: int, last: int) -> list[int]:
    place = {line.node: i for i, line in enumerate(lines)}
    reads = [(place[n], i) for i, line in enumerate(lines) for n in line.reads if n in place]
    return [len({made for made, read in reads if made < cut <= read}) for cut in range(first, last)]


def _alike(lines: list[Line], start: int, period: int, count: int) -> int:
    """How many of `count` runs have the wiring of the first."""

    def wiring(number: int) -> list[tuple[int, ...]]:
        run = lines[start + number * period : start + (number + 1) * period]
        place = {line.node: i for i, line in enumerate(run)}
        return [tuple(place[n] for n in line.reads if n in place) for line in run]

    first = wiring(0)
    return next((number for number in range(1, count) if wiring(number) != first), count)


def fold_untouched(items: Sequence[Item], touched: Sequence[bool]) -> list[Item]:
    """Runs of at least `UNTOUCHED` boxes that no rule touched become one box each; `touched` is by node."""
    made: list[Item] = []
    run: list[Box] = []

    def close() -> None:
        made.extend([Box(tuple(n for box in run for n in box.nodes))] if len(run) >= UNTOUCHED else run)
        run.clear()

    for item in items:
        if isinstance(item, Box) and not any(touched[n] for n in item.nodes):
            run.append(item)
            continue
        close()
        made.append(_inside_untouched(item, touched) if isinstance(item, Block) else item)
    close()
    return made


def _inside_untouched(block: Block, touched: Sequence[bool]) -> Block:
    return Block(tuple(fold_untouched(block.items, touched)), block.count, block.twins)


def boxes(items: Sequence[Item]) -> list[Box]:
    """All boxes, those inside blocks too."""
    return [box for item in items for box in ([item] if isinstance(item, Box) else boxes(item.items))]


def cut(items: Sequence[Item], limit: int) -> list[Item]:
    """The first items that have `limit` boxes together, the rest as one box; blocks are not cut through."""
    total = 0
    for i, item in enumerate(items):
        total += len(boxes([item]))
        if total > limit and i:
            rest = tuple(n for box in boxes(items[i:]) for n in box.nodes)
            return [*items[:i], Box(rest)]
    return list(items)


def summary(ops: Sequence[str], shown: int = 3) -> str:
    """The commonest operators of a run: ``"view ×4, add ×2, …"``."""
    counts = Counter(ops).most_common()
    text = ", ".join(f"{op} ×{n}" if n > 1 else op for op, n in counts[:shown])
    return text + (", …" if len(counts) > shown else "")
