"""A layered layout: every box below what it reads, few crossings, short edges (after Sugiyama, Tagawa and Toda).

    layers (longest path)  ->  order within layers (barycentres)  ->  x (averages, kept apart)  ->  edges as polylines

Bands are laid out one below the other, so that the frame around a repeated block holds that block and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

HEIGHT, GAP_Y, GAP_X = 34, 20, 14
ORDERINGS, ALIGNMENTS = 8, 24
BEND = 6.0
"""The width that a long edge takes in each layer."""
MAIN = 6.0
"""How much more than others the main edge into a box pulls it to itself."""

Edge = tuple[int, int]


@dataclass(frozen=True)
class Placed:
    """The positions of all parts, in pixels.

    Args:
        centres: of each box.
        paths: of each edge: the points that it runs through, from the lower side of one box to the upper of the other.
        bands: upper and lower limit of each band.
        width: of the whole; `height` likewise.
    """

    centres: list[tuple[float, float]]
    paths: list[list[tuple[float, float]]]
    bands: list[tuple[float, float]]
    width: float
    height: float


def place(widths: Sequence[float], edges: Sequence[Edge], bands: Sequence[Sequence[int]]) -> Placed:
    """Lay out boxes.

    Args:
        widths: of each box.
        edges: (from, to), of those that lead to one box the main one first: it is drawn straightest. Every edge runs
            forward in the order of `bands`.
        bands: the boxes of each band, in an order in which edges run forward.
    """
    layer, limits = _layers(len(widths), edges, bands)
    net = _Net(list(widths), layer)
    reached: set[int] = set()
    chains = []
    for edge in edges:
        chains.append(net.route(edge, 1.0 if edge[1] in reached else MAIN))
        reached.add(edge[1])
    net.order()
    net.align()
    left = min((net.x[v] - net.width[v] / 2 for v in range(len(net.x))), default=0.0) - GAP_X
    right = max((net.x[v] + net.width[v] / 2 for v in range(len(net.x))), default=0.0) + GAP_X
    pitch = HEIGHT + GAP_Y
    middle = [(net.x[v] - left, net.layer[v] * pitch + pitch / 2) for v in range(len(net.x))]
    return Placed(
        centres=middle[: len(widths)],
        paths=[_path([middle[v] for v in chain]) for chain in chains],
        bands=[(first * pitch, (last + 1) * pitch) for first, last in limits],
        width=right - left,
        height=(max(layer, default=-1) + 1) * pitch,
    )


def _path(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    (x0, y0), (x1, y1) = points[0], points[-1]
    return [(x0, y0 + HEIGHT / 2), *points[1:-1], (x1, y1 - HEIGHT / 2)]


def _layers(
    count: int, edges: Sequence[Edge], bands: Sequence[Sequence[int]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """The layer of each box, and the first and last layer of each band."""
    reads: list[list[int]] = [[] for _ in range(count)]
    users: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        reads[target].append(source)
        users[source].append(target)
    layer, limits, base = [0] * count, [], 0
    for band in bands:
        inside = set(band)
        for v in band:
            layer[v] = max([layer[u] + 1 for u in reads[v] if u in inside], default=base)
        for v in reversed(band):  # what reads nothing here stands right above its first user
            own = [layer[u] for u in users[v] if u in inside]
            if own and not inside.intersection(reads[v]):
                layer[v] = min(own) - 1
        last = max((layer[v] for v in band), default=base - 1)
        limits.append((base, last))
        base = last + 1
    return layer, limits


@dataclass
class _Net:
    """Boxes and the bends of long edges, one a layer, as vertices."""

    width: list[float]
    layer: list[int]
    above: list[list[int]] = field(default_factory=list)
    below: list[list[int]] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)
    x: list[float] = field(default_factory=list)
    pull: dict[Edge, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.above = [[] for _ in self.width]
        self.below = [[] for _ in self.width]

    def route(self, edge: Edge, pull: float) -> list[int]:
        """The vertices of an edge, bends included."""
        source, target = edge
        chain = [source]
        for layer in range(self.layer[source] + 1, self.layer[target]):
            self.width.append(BEND)
            self.layer.append(layer)
            self.above.append([])
            self.below.append([])
            chain.append(len(self.width) - 1)
        chain.append(target)
        for upper, lower in pairwise(chain):
            self.below[upper].append(lower)
            self.above[lower].append(upper)
            self.pull[upper, lower] = pull
        return chain

    def order(self) -> None:
        """Order each row by the average place of its neighbours, downwards and upwards by turns."""
        self.rows = [[] for _ in range(max(self.layer, default=-1) + 1)]
        for v, layer in enumerate(self.layer):
            self.rows[layer].append(v)
        for turn in range(ORDERINGS):
            rows, neighbours = (self.rows, self.above) if turn % 2 == 0 else (self.rows[::-1], self.below)
            place = {v: i / max(len(row) - 1, 1) for row in self.rows for i, v in enumerate(row)}
            for row in rows:
                row.sort(key=_average(neighbours, place))
                place.update((v, i / max(len(row) - 1, 1)) for i, v in enumerate(row))

    def align(self) -> None:
        """Give each vertex an x: near its neighbours, the order kept and boxes apart."""
        self.x = [0.0] * len(self.width)
        for row in self.rows:
            self._spread(row, [0.0] * len(row))
        for turn in range(ALIGNMENTS):
            rows, neighbours = (self.rows, self.above) if turn % 2 == 0 else (self.rows[::-1], self.below)
            for row in rows:
                self._spread(row, [self._wanted(v, neighbours[v]) for v in row])
        for row in self.rows:  # at last straight down, so that a chain is a straight line
            self._spread(row, [self._below_main(v) for v in row])

    def _wanted(self, v: int, neighbours: Sequence[int]) -> float:
        pulls = [(self.pull.get((u, v)) or self.pull[v, u], self.x[u]) for u in neighbours]
        return sum(p * x for p, x in pulls) / sum(p for p, _ in pulls) if pulls else self.x[v]

    def _below_main(self, v: int) -> float:
        """Straight below the main neighbour, if no other box (bends give way) has a claim to that place."""
        main = max(self.above[v], key=lambda u: self.pull[u, v], default=None)
        if main is None:
            return self.x[v]
        rivals = [u for u in self.below[main] if self.width[u] > BEND] or self.below[main]
        return self.x[main] if rivals == [v] else self.x[v]

    def _spread(self, row: Sequence[int], wanted: Sequence[float]) -> None:
        """Place a row as near to `wanted` as its widths allow: averages of the leftmost and rightmost packing."""
        right: list[float] = []
        for i, v in enumerate(row):
            least = right[-1] + self._apart(row[i - 1], v) if i else float("-inf")
            right.append(max(wanted[i], least))
        left: list[float] = []
        for i in range(len(row) - 1, -1, -1):
            most = left[-1] - self._apart(row[i], row[i + 1]) if left else float("inf")
            left.append(min(wanted[i], most))
        for v, a, b in zip(row, right, reversed(left), strict=True):
            self.x[v] = (a + b) / 2

    def _apart(self, a: int, b: int) -> float:
        return (self.width[a] + self.width[b]) / 2 + GAP_X


def _average(neighbours: list[list[int]], place: dict[int, float]) -> Callable[[int], float]:
    def key(v: int) -> float:
        found = [place[u] for u in neighbours[v]]
        return sum(found) / len(found) if found else place[v]

    return key
