"""Snapshots as drawings: plain data that the page's script turns into SVG when somebody looks at it.

    snapshot  ->  without weights  ->  repetitions folded  ->  laid out  ->  boxes, edges, regions, frames

Weights are left out (each product has some), of what is computed from weights alone only the last step is drawn, and
the parts of a tuple are drawn as the call that gave it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..reason import Site
from ..record import GraphRecord, Snapshot, SnapshotNode
from ..words import counted
from .folding import Block, Box, Item, Line, boxes, cut, fold, fold_untouched, summary
from .layout import Edge, place

LIMIT = 260
"""Boxes of a drawing beyond which what no rule touched is drawn as one box, and beyond which the rest is left out."""

RESULTS = 6
"""Results of a graph beyond which they are not drawn: a forward graph saves dozens of values for its backward."""

_SOURCES = ("placeholder", "get_attr")
_WEIGHT = re.compile(r"^l_self_(\w*_)?(parameters|buffers)_")
_TURNED = ("aten.t", "aten.permute", "aten.transpose", "aten.numpy_T")


class Strings:
    """A table of strings, each once; drawings hold positions in it."""

    def __init__(self) -> None:
        self.table: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """The position of `text`."""
        return self.table.setdefault(text, len(self.table))


@dataclass
class _Sketch:
    """A snapshot on its way to a drawing; see `draw`."""

    taken: Snapshot
    alias: dict[int, int] = field(default_factory=dict)  # what stands for a node that is not drawn
    lines: list[Line] = field(default_factory=list)


def draw(taken: Snapshot, record: GraphRecord, strings: Strings, brief: bool = False) -> dict[str, Any]:
    """One snapshot as a drawing.

    Args:
        taken: what to draw.
        record: the record that it belongs to, whose matches its regions name.
        strings: the table that all drawings of a page share.
        brief: draw what no rule touched as one box, however small the graph.

    Returns:
        ``width`` and ``height`` in pixels; ``boxes`` as lists (x, y, width, label, shape, operator, type, source line,
        module, rule, nodes), strings by position; ``edges`` as lists of coordinates; ``regions`` as lists (kind, rule,
        boxes, count, index in the record's list); ``frames`` around blocks as lists (top, bottom, count, depth);
        ``total`` nodes.
    """
    sketch = _visible(taken)
    items = _folded(sketch, _colours(taken, record))
    touched = _touched(taken)
    if (brief and any(touched)) or len(boxes(items)) > LIMIT:
        items = fold_untouched(items, touched)
    items = cut(items, LIMIT)
    return _drawn(sketch, items, record, strings)


def _visible(taken: Snapshot) -> _Sketch:
    """The nodes to draw, in order; what reads nothing comes right before its first reader."""
    sketch, users = _Sketch(taken), _users(taken)
    hidden = _weights(taken.nodes, users)
    waiting: dict[int, Line] = {}
    for i, node in enumerate(taken.nodes):
        if i in hidden or (not users[i] and node.op in _SOURCES):
            continue
        if node.op == "output" and len(node.inputs) > RESULTS:
            continue
        reads = tuple(dict.fromkeys(sketch.alias.get(n, n) for n in node.inputs if n not in hidden))
        if node.op == "getitem" and len(reads) == 1:
            sketch.alias[i] = reads[0]
            continue
        line = Line(i, reads)
        if not reads and node.op != "output":
            waiting[i] = line
            continue
        sketch.lines.extend(waiting.pop(n) for n in reads if n in waiting)
        sketch.lines.append(line)
    return sketch


def _users(taken: Snapshot) -> list[list[int]]:
    users: list[list[int]] = [[] for _ in taken.nodes]
    for i, node in enumerate(taken.nodes):
        for n in node.inputs:
            users[n].append(i)
    return users


def _weights(nodes: Sequence[SnapshotNode], users: Sequence[Sequence[int]]) -> set[int]:
    """Inputs and constants, perhaps turned, that are only read together with something computed, or just returned."""
    given: set[int] = set()
    for i, node in enumerate(nodes):
        if node.op in _SOURCES or (node.op in _TURNED and given.issuperset(node.inputs)):
            given.add(i)
    of_weights = _of_weights(nodes)
    hidden = {i for i in of_weights if users[i] and of_weights.issuperset(users[i])}
    read = given | of_weights
    for i in sorted(given, reverse=True):
        readers = [n for n in users[i] if n not in hidden and nodes[n].op != "output"]
        if users[i] and all(not read.issuperset(nodes[n].inputs) for n in readers):
            hidden.add(i)
    return hidden


def _of_weights(nodes: Sequence[SnapshotNode]) -> set[int]:
    """Weights and what is computed from them alone: ``w * rsqrt(var + eps)`` of a folded normalization is one box."""
    of_weights: set[int] = set()
    for i, node in enumerate(nodes):
        is_weight = node.op in _SOURCES and (node.op == "get_attr" or bool(_WEIGHT.search(node.name)))
        if is_weight or (node.inputs and node.op != "output" and of_weights.issuperset(node.inputs)):
            of_weights.add(i)
    return of_weights


def _touched(taken: Snapshot) -> list[bool]:
    inside = {n for region in taken.regions for n in region.nodes}
    return [i in inside or bool(node.rule) for i, node in enumerate(taken.nodes)]


def _folded(sketch: _Sketch, colours: Sequence[Hashable]) -> list[Item]:
    """Repetitions folded, in the graph's order or by depth, whichever leaves less to draw.

    In the graph's order the first of many layers may hold what all of them read (a mask); by depth it does not, but
    what runs side by side (an encoder and a decoder) is mixed up.
    """
    plain = fold(sketch.lines, [colours[line.node] for line in sketch.lines])
    depth: dict[int, int] = {}
    for line in sketch.lines:
        depth[line.node] = max((depth.get(n, 0) + 1 for n in line.reads), default=0)
    lines = sorted(sketch.lines, key=lambda line: depth[line.node])
    sorted_ = fold(lines, [colours[line.node] for line in lines])
    return min(plain, sorted_, key=lambda items: len(boxes(items)))


def _colours(taken: Snapshot, record: GraphRecord) -> list[Hashable]:
    """The facts that must be equal in two nodes for one to be drawn for both; by node."""
    regions: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for region in taken.regions:
        if region.kind != "near_misses":
            for n in region.nodes:
                regions[n].add((region.kind, _rule(record, region.kind, region.index)))
    return [
        (plain_name(node.op), node.type, node.site, node.rule, frozenset(regions.get(n, ())))
        for n, node in enumerate(taken.nodes)
    ]


def _rule(record: GraphRecord, kind: str, index: int) -> str:
    found: Any = getattr(record, kind)
    return found[index].rule if index < len(found) else ""


def plain_name(op: str) -> str:
    """An operator's name for a person: ``"matmul"``; generated kernels without their numbers."""
    if op.startswith("kernel."):
        return re.sub(r"^kernel\.(k\d+_)?|(_\d+)*_?$|_[0-9a-f]{10,}$", "", op) or op
    return re.sub(r"^(aten|prims|mkldnn)\.", "", op).strip("_") or op


def _drawn(sketch: _Sketch, items: Sequence[Item], record: GraphRecord, strings: Strings) -> dict[str, Any]:
    made = _Bands(items)
    box_of = _box_of(made.boxes, made.twins, sketch.alias)
    edges = _edges(sketch, box_of, made.boxes)
    usual = _usual_dtype(sketch.taken)
    labels = [_label(sketch.taken, box, usual) for box in made.boxes]
    placed = place([_width(*label) for label in labels], edges, made.bands)
    return {
        "width": round(placed.width),
        "height": round(placed.height),
        "total": len(sketch.taken.nodes),
        "boxes": [
            [round(x), round(y), round(_width(*label)), *map(strings, label), *_facts(sketch.taken, box, strings)]
            for (x, y), label, box in zip(placed.centres, labels, made.boxes, strict=True)
        ],
        "edges": [
            [*edge, *(round(c) for point in path for c in point)]
            for edge, path in zip(edges, placed.paths, strict=True)
        ],
        "regions": _regions(sketch.taken, box_of, record, strings),
        "frames": [
            [round(placed.bands[first][0]), round(placed.bands[last][1]), count, depth]
            for first, last, count, depth in made.frames
        ],
    }


class _Bands:
    """Items flattened: boxes, numbered; bands of them; frames as (first band, last band, count, depth)."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.boxes: list[Box] = []
        self.bands: list[list[int]] = []
        self.frames: list[tuple[int, int, int, int]] = []
        self.twins: dict[int, int] = {}
        self._add(items, 0)

    def _add(self, items: Sequence[Item], depth: int) -> None:
        self.bands.append([])
        for item in items:
            if isinstance(item, Box):
                self.bands[-1].append(len(self.boxes))
                self.boxes.append(item)
                continue
            self._frame(item, depth)
            self.bands.append([])

    def _frame(self, block: Block, depth: int) -> None:
        self.twins.update(block.twins)
        first = len(self.bands)
        self._add(block.items, depth + 1)
        self.frames.append((first, len(self.bands) - 1, block.count, depth))


def _box_of(made: Sequence[Box], twins: dict[int, int], alias: dict[int, int]) -> dict[int, int]:
    """The box that stands for each node that is drawn, itself or by a twin."""
    found = {n: i for i, box in enumerate(made) for n in box.nodes}

    def stands(node: int) -> int | None:
        while node not in found and node in twins:
            node = twins[node]
        return found.get(node)

    for node in list(twins):
        box = stands(node)
        if box is not None:
            found.setdefault(node, box)
    for node, source in alias.items():
        if source in found:
            found[node] = found[source]
    return found


def _edges(sketch: _Sketch, box_of: dict[int, int], made: Sequence[Box]) -> list[Edge]:
    drawn = {n for box in made for n in box.nodes}
    found: dict[Edge, None] = {}
    for line in sketch.lines:
        if line.node not in drawn:
            continue
        target = box_of[line.node]
        for n in line.reads:
            source = box_of.get(n)
            if source is not None and source < target:
                found[source, target] = None
    return list(found)


def _usual_dtype(taken: Snapshot) -> str:
    counts = Counter(node.type.partition("[")[0] for node in taken.nodes if node.type)
    return next((name for name, _ in counts.most_common()), "")


def _label(taken: Snapshot, box: Box, usual: str) -> tuple[str, str]:
    """Two short lines: the operator and the shape, the dtype only where it is not the usual one."""
    if len(box.nodes) > 1:
        ops = [plain_name(taken.nodes[n].op) for n in box.nodes]
        return counted(len(ops), "operator"), summary(ops, 2)
    node = taken.nodes[box.nodes[0]]
    if node.op in _SOURCES:
        return _input_name(node.name), _shape(node.type, usual)
    return plain_name(node.op), _shape(node.type, usual)


def _input_name(name: str) -> str:
    """The user's name of an input: Dynamo's name without where it found it, its last part if it is long."""
    short = re.sub(r"^l_(kwargs_|args_|self_)?", "", name).strip("_") or name
    return short if len(short) <= 24 else "…" + short[-22:]


def _shape(kind: str, usual: str) -> str:
    if kind.count("[") != 1:
        return "" if not kind else counted(kind.count("["), "tensor") if "[" in kind else kind
    dtype, _, sizes = kind.partition("[")
    shape = sizes.rstrip("]").replace(", ", "×") or "scalar"
    return shape if dtype == usual else f"{dtype} {shape}"


def _width(label: str, shape: str) -> float:
    return max(56.0, 7.0 * min(len(label), 32) + 20, 5.7 * min(len(shape), 36) + 18)


def _facts(taken: Snapshot, box: Box, strings: Strings) -> list[int]:
    """Operator, type, source line, module, rule (positions in the table), and how many nodes."""
    node = taken.nodes[box.nodes[0]]
    rules = dict.fromkeys(taken.nodes[n].rule for n in box.nodes if taken.nodes[n].rule)
    if len(box.nodes) > 1:
        node = SnapshotNode("", summary([plain_name(taken.nodes[n].op) for n in box.nodes], 12))
    site = taken.sites[node.site] if node.site >= 0 else None
    module = taken.modules[node.module] if node.module >= 0 else ""
    texts = (node.op, node.type, source_text(site), module_name(module), next(iter(rules), ""))
    return [*map(strings, texts), len(box.nodes)]


def source_text(site: Site | None) -> str:
    """File (its last two parts), line and code, on two lines."""
    return "" if site is None else f"{'/'.join(site.file.split('/')[-2:])}:{site.line}\n{site.code}"


def module_name(name: str) -> str:
    """A module's name as the user writes it: ``"encoder.layer.0"``."""
    return name.removeprefix("L['self']").removeprefix(".")


def _regions(taken: Snapshot, box_of: dict[int, int], record: GraphRecord, strings: Strings) -> list[list[Any]]:
    """Regions by the boxes that stand for them; equal ones (of folded layers) once, with their number."""
    found: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for region in taken.regions:
        inside = tuple(sorted({box_of[n] for n in region.nodes if n in box_of}))
        if inside:
            rule = _rule(record, region.kind, region.index)
            found.setdefault((region.kind, rule, inside), []).append(region.index)
    return [
        [kind, strings(rule), list(inside), len(indices), indices[0]] for (kind, rule, inside), indices in found.items()
    ]
