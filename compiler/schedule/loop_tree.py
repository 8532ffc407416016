"""From a group to loops: members share loops as deep as their dependences allow.

    fold a: for i: fold j        for i:
    store a: for i         ->        fold a: for j: ...
    map b: for i, j                  store a
                                     for j: map b

Each member is placed in order. It joins the loop of an earlier member where that iterates over an axis of its own,
nothing between the two is in its way, and whatever one writes and the other touches meets in the same iteration. What
folds takes the stores of its result along.

A reduction over rows for each column, as in gradients of biases, stays ``for j parallel: fold r: x[768*r + j]``: its
contiguous loop is the outer one, and code generators take strips of it through the fold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..ir.dependence import Dependence
from ..ir.index.index import Var
from ..ir.program import Definition, StoreMode
from .affine import OPAQUE, separate, variables_of
from .groups import Group, Member
from .legality import columns_of, conflicts, contiguous_axis, is_small
from .target import CPU, Target


@dataclass(frozen=True, eq=False)
class Leaf:
    """One member in one iteration of the loops around it."""

    member: Member


@dataclass(frozen=True, eq=False)
class Nest:
    """A loop over an axis; accumulators of `folds` start right before it and are done right after.

    Args:
        axis: iterated over.
        body: nests and leaves, in order.
        folds: members that fold over this loop and those in it.
        parallel: whether iterations are independent.
    """

    axis: Var
    body: tuple[Nest | Leaf, ...]
    folds: tuple[Member, ...]
    parallel: bool = False


Tree = Nest | Leaf


@dataclass(frozen=True, eq=False)
class _Pending:
    """A member with the axes that have no loop yet."""

    member: Member
    outer: tuple[Var, ...]
    reduced: tuple[Var, ...]
    columns: frozenset[Var] = frozenset()  # contiguous ones that may be around others

    @property
    def choices(self) -> tuple[Var, ...]:
        """Axes that may be looped over next, the preferred one first."""
        if not self.outer:
            return self.reduced[:1]
        innermost = contiguous_axis(self.member)
        if innermost is self.outer[0] and innermost in self.columns:
            return (innermost,)
        return tuple(v for v in self.outer if v is not innermost) or self.outer

    def inside(self, axis: Var) -> _Pending:
        if axis in self.outer:
            return replace(self, outer=tuple(v for v in self.outer if v is not axis))
        return replace(self, outer=(), reduced=self.reduced[1:])


class _Cluster:
    """Members that share a loop over `axis`; None: a single member that has no loops left."""

    def __init__(self, axis: Var | None, first: _Pending) -> None:
        self.axis, self.members = axis, [first]


def tree_of(group: Group, target: Target = CPU) -> tuple[Tree, ...]:
    """The loops of a group; outermost ones whose iterations are independent are parallel.

    Small loops one after the other are not: the target would gain nothing, and what passes between them can be scratch.
    On GPUs that is what groups without a common loop are.
    """
    columns = columns_of(group.members, target) & frozenset(group.chain)
    pending = [_Pending(m, _chain_first(m, group.chain), m.reduced, columns) for m in group.members]
    trees = _build(pending, frozenset())
    if len(trees) > 1 and is_small(group.members, target):
        return trees
    if target.share and len(trees) > 1 and not group.chain:  # one program does all of it, one thing after the other
        return tuple(trees)
    return tuple(_with_parallel(node, frozenset(), target) for node in trees)


def _chain_first(member: Member, chain: Sequence[Var]) -> tuple[Var, ...]:
    shared = [v for v in chain if v in member.outer]
    return (*shared, *(v for v in member.outer if v not in shared))


def _build(pending: Sequence[_Pending], fixed: frozenset[Var]) -> tuple[Tree, ...]:
    clusters: list[_Cluster] = []
    stores = {p.member.definition: p for p in pending if p.member.part == "store" and p.outer}
    for item in pending:
        home = _home(item, clusters, fixed, stores)
        if home is not None:
            home.members.append(item)
        else:
            clusters.append(_Cluster(item.choices[0] if item.choices else None, item))
    return tuple(_closed(cluster, fixed) for cluster in clusters)


def _home(
    item: _Pending, clusters: list[_Cluster], fixed: frozenset[Var], stores: Mapping[Definition, _Pending]
) -> _Cluster | None:
    """The cluster whose loop a member can share, the last first."""
    kept = next((c for c in clusters if item in _with_stores(c.members, stores)), None)
    if kept is not None:
        return kept
    for cluster in reversed(clusters) if item.choices else ():
        if cluster.axis in item.choices and all(
            _shares(o.member, p.member, cluster.axis, fixed)
            for o in _with_stores(cluster.members, stores)
            for p in _with_stores([item], stores)
        ):
            return cluster
        if any(in_conflict(o.member, item.member) for o in cluster.members):
            return None
    return None


def _with_stores(items: Sequence[_Pending], stores: Mapping[Definition, _Pending]) -> list[_Pending]:
    """Members, and the stores of their folds, which are in the same loops."""
    folds = [p.member.definition for p in items if p.member.part == "fold" and p.outer]
    return list(dict.fromkeys([*items, *(stores[d] for d in folds if d in stores)]))


def _shares(earlier: Member, later: Member, axis: Var, fixed: frozenset[Var]) -> bool:
    """Whether iterations of a loop over `axis` may hold both: no dependence runs from one to another."""
    if earlier.folds & later.uses and axis in earlier.reduced:
        return False
    return all(separate(x, y, axis, fixed) for _, x, y in conflicts((earlier,), (later,)))


def in_conflict(earlier: Member, later: Member) -> bool:
    """Whether the order of two members matters."""
    if earlier.folds & later.uses:
        return True
    shared = earlier.touched.keys() & later.touched.keys()
    return any(earlier.writes(name) or later.writes(name) for name in shared)


def _closed(cluster: _Cluster, fixed: frozenset[Var]) -> Tree:
    axis = cluster.axis
    if axis is None:
        return Leaf(cluster.members[0].member)
    folds = tuple(p.member for p in cluster.members if not p.outer and p.reduced == p.member.reduced)
    body = _build([p.inside(axis) for p in cluster.members], fixed | {axis})
    return Nest(axis, body, folds)


def leaves(trees: Sequence[Tree], path: tuple[Nest, ...] = ()) -> Iterator[tuple[tuple[Nest, ...], Member]]:
    """Every member in order, with the nests around it, outermost first."""
    for node in trees:
        if isinstance(node, Leaf):
            yield path, node.member
        else:
            yield from leaves(node.body, (*path, node))


def _with_parallel(node: Tree, fixed: frozenset[Var], target: Target) -> Tree:
    if isinstance(node, Leaf) or node.folds or not _independent(node, fixed, target):
        return node
    body = node.body
    if len(body) == 1:
        body = (_with_parallel(body[0], fixed | {node.axis}, target),)
    return Nest(node.axis, body, node.folds, True)


def _independent(nest: Nest, fixed: frozenset[Var], target: Target) -> bool:
    members = [m for _, m in leaves((nest,))]
    if any(nest.axis in m.reduced for m in members):
        return False
    met = _combined(members) | _scattered(members, nest.axis) if target.atomic else frozenset()
    pairs = conflicts(members, members)
    return all(name in met or separate(x, y, nest.axis, fixed) for name, x, y in pairs)


def _combined(members: Sequence[Member]) -> frozenset[str]:
    """Buffers that members only combine with, all in one way: in which order makes no difference."""
    modes: dict[str, set[StoreMode | None]] = {}
    for member in members:
        for access in member.accesses:
            stores = [s.mode for s in member.definition.stores if s.buffer == access.buffer]
            modes.setdefault(access.buffer, set()).update(stores if access.write else [None])
    return frozenset(name for name, found in modes.items() if len(found) == 1 and None not in found)


def _scattered(members: Sequence[Member], axis: Var) -> frozenset[str]:
    """Buffers that one store alone touches, at indices that are read from memory for each iteration of `axis`."""
    found: dict[str, list[bool]] = {}
    for member in members:
        for access in member.accesses:
            chosen = access.write and access.offset is not None and OPAQUE in variables_of(access.offset)
            found.setdefault(access.buffer, []).append(chosen and axis in _axes_of(member, access.buffer))
    return frozenset(name for name, stores in found.items() if stores == [True])


def _axes_of(member: Member, buffer: str) -> frozenset[Var]:
    """The axes that the places of a member's stores to a buffer depend on, through memory too."""
    indices = [index for s in member.definition.stores if s.buffer == buffer for index in s.indices]
    own = frozenset().union(*map(Dependence().of, indices))
    return frozenset(v for var, number in member.where.items() if var in own for v in variables_of(number))
