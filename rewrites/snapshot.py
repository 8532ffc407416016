"""Snapshots: a graph as plain data after each stage, with the regions that the next stage found something in.

    before:  q k^T -> scale -> softmax -> dropout -> v        region: applied[0], these five nodes
    after:   sdpa                                             its rule: "sdpa"

They are taken only while a coverage block is open: reports draw them, nothing else reads them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .graph import nodes_in, op_name, val
from .memo import key_of_sizes
from .reason import Site, site_of
from .record import Region, Snapshot, SnapshotNode

if TYPE_CHECKING:
    from .legality import CompleteMatch
    from .mirror import Mirror
    from .record import GraphRecord

_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def snapshot(graph: fx.Graph, name: str, stage: str, regions: Iterable[Region] = ()) -> Snapshot:
    """The graph as it is now; `name` and `stage` as in `Snapshot`."""
    tables = _Tables()
    position: dict[fx.Node, int] = {}
    nodes = []
    for node in graph.nodes:
        nodes.append(
            SnapshotNode(
                name=node.name,
                op=_operator(node),
                inputs=tuple(position[n] for n in node.all_input_nodes),
                type=tables.type(node),
                site=tables.site(node),
                module=tables.module(node),
                rule=node.meta.get("regraft_rule") or "",
            )
        )
        position[node] = len(position)
    return Snapshot(name, stage, tuple(nodes), tuple(tables.sites), tuple(tables.modules), tuple(regions))


def _operator(node: fx.Node) -> str:
    """The operator's name; what this package generated is named as a kernel."""
    generated = node.op == "call_function" and getattr(node.target, "__module__", "") == "regraft"
    return f"kernel.{op_name(node)}" if generated else op_name(node)


class _Tables:
    """Source lines and modules, each once; nodes of one line share a stack trace, which is read once."""

    def __init__(self) -> None:
        self.sites: dict[Site, int] = {}
        self.modules: dict[str, int] = {}
        self._by_trace: dict[str, int] = {}
        self._types: dict[Hashable, str] = {}

    def type(self, node: fx.Node) -> str:
        """`type_text`, once for each dtype and shape: symbolic sizes may be long."""
        value = val(node)
        if not isinstance(value, torch.Tensor):
            return type_text(value)
        key = (value.dtype, key_of_sizes(value.shape))
        if key not in self._types:
            self._types[key] = type_text(value)
        return self._types[key]

    def site(self, node: fx.Node) -> int:
        trace = node.meta.get("stack_trace") or ""
        if trace not in self._by_trace:
            site = site_of(node)
            self._by_trace[trace] = -1 if site is None else self.sites.setdefault(site, len(self.sites))
        return self._by_trace[trace]

    def module(self, node: fx.Node) -> int:
        name = module_of(node)
        return self.modules.setdefault(name, len(self.modules)) if name else -1


def module_of(node: fx.Node) -> str:
    """Qualified name of the module instance that a node comes from, or an empty string."""
    stack = node.meta.get("nn_module_stack")
    return list(stack.values())[-1][0] if stack else ""


def type_text(value: Any) -> str:
    """Dtype and shape of a value: ``"f32[1, 128, 768]"``; of several, joined by commas; ``""`` of anything else."""
    if isinstance(value, torch.Tensor):
        return f"{_dtype(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (list, tuple)):
        return ", ".join(filter(None, map(type_text, value)))
    return type(value).__name__.lower() if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else ""


def _dtype(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    letters = name.rstrip("0123456789")
    return _SHORT[letters] + name[len(letters) :] if letters in _SHORT else name


def regions_by_name(taken: Snapshot, record: GraphRecord, known: tuple[int, int]) -> Snapshot:
    """`taken`, and the regions of those matches of `record` whose nodes have names in it.

    Args:
        taken: the graph before a stage that tells what it replaced by the names of nodes.
        record: what the stage told.
        known: how many matches had been applied, and how many declined, before that stage.
    """
    position = {node.name: i for i, node in enumerate(taken.nodes)}
    regions = []
    for kind, matches, start in (("applied", record.applied, known[0]), ("declined", record.declined, known[1])):
        for index, match in list(enumerate(matches))[start:]:
            inside = tuple(sorted(position[name] for name in match.nodes if name in position))
            regions.extend([Region(kind, index, inside)] if inside else [])
    return replace(taken, regions=(*taken.regions, *regions))


def keep_start(record: GraphRecord, taken: Snapshot) -> None:
    """Keep the start of a stage in place of the end of the one before, which it is, but for what came in between."""
    last = record.snapshots[-1] if record.snapshots else None
    if last is None or last.graph != taken.graph:
        record.snapshots.append(taken)
        return
    same = [node.name for node in last.nodes] == [node.name for node in taken.nodes]
    regions = (*last.regions, *taken.regions) if same else taken.regions
    record.snapshots[-1] = replace(taken, stage=last.stage, regions=regions)


class Drawing:
    """The snapshot before a run of the driver, and the regions that the run finds in it."""

    def __init__(self, mirror: Mirror, name: str, stage: str) -> None:
        self._mirror = mirror
        self._before = snapshot(mirror.real, name, stage)
        self._position = {node: i for i, node in enumerate(mirror.real.nodes)}
        self._backwards = list(reversed(mirror.real.nodes))
        self._regions: list[Region] = []

    def note_match(self, found: CompleteMatch, kind: str, index: int) -> None:
        """Note what a match covers in the program; to be called before it is applied."""
        self._note(kind, index, self._covered(found))

    def note_near_miss(self, root: fx.Node, index: int) -> None:
        """Note where a near miss has its root."""
        self._note("near_misses", index, self._mirror.sources(root))

    def before(self) -> Snapshot:
        """The graph before the run, with all regions noted so far."""
        return replace(self._before, regions=tuple(self._regions))

    def after(self, graph: fx.Graph, stage: str) -> Snapshot:
        """The graph after the run."""
        return snapshot(graph, self._before.graph, stage)

    def _note(self, kind: str, index: int, nodes: Iterable[fx.Node]) -> None:
        positions = sorted(self._position[node] for node in nodes if node in self._position)
        if positions:
            self._regions.append(Region(kind, index, tuple(positions)))

    def _covered(self, found: CompleteMatch) -> set[fx.Node]:
        """The real nodes that exist for a match alone: its outputs, and all between them and its operands.

        Matches are made of mirror nodes, most of which normal form put there; the program's own nodes are found from
        the values that both have: outputs and operands.
        """
        outputs = {real for node in found.outputs for real in self._mirror.sources(node)}
        operands = _nearest(nodes_in(found.operands()), self._mirror)
        covered = set(outputs)
        for node in self._backwards:
            if node in operands or node in covered or node.op != "call_function" or not node.users:
                continue
            if all(user in covered for user in node.users):
                covered.add(node)
        return covered - operands


def _nearest(nodes: Iterable[fx.Node], mirror: Mirror) -> set[fx.Node]:
    """The real nodes that mirror nodes stand for, or else those that they are computed from."""
    found: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        sources = mirror.sources(node)
        found.update(sources)
        pending.extend([] if sources else node.all_input_nodes)
    return found
