"""Members and groups: definitions over axes that they share, the units of fusion.

A member is a definition (or the fold, or the stores, of one that reduces) whose loops have become axes. Members that
iterate over the same axis can share its loop. Values stay in the definition's own variables until a kernel is built:
`where` says what those are in terms of axes, and `accesses` what is touched, as offsets over axes.

    mean: for i < 8: fold j < 768   ->   fold member: outer (a0,), reduced (a1,);  store member: outer (a0,)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any, Literal

from ..ir.index.index import Var, mul, rebuild
from ..ir.iteration_space import extent_of, number_of
from ..ir.program import Definition, Extern
from ..ir.value import Load, Number, Result, Value, walk
from .affine import ascending, digits, joint_runs
from .dependences import values_in

Part = Literal["map", "fold", "store", "scan"]

FEW = 4  # elements of a fold from which on loads decide about the order of loops
_PIECE = 16  # elements side by side that are folded together from which on they do not


@dataclass(frozen=True)
class AxisAccess:
    """A touch of memory: `offset` over axes (None: the one element of a number passed by value)."""

    buffer: str
    offset: Any
    write: bool


@dataclass(frozen=True, eq=False)
class Member:
    """A definition, or a part of one, over axes.

    Args:
        definition: flat (see `flat_access`).
        part: all of a pointwise one (``"map"``), the folding (``"fold"``) or storing (``"store"``) part of one that
            reduces, or all of a ``"scan"``.
        place: where it stands in the program; parts of one definition in order.
        outer: axes whose iterations are independent, in the order preferred, outermost first.
        reduced: axes folded or scanned, in order.
        where: the definition's variables in terms of axes.
        accesses: the accesses of memory.
        numbers: further indices in it, whose values matter.
    """

    definition: Definition
    part: Part
    place: int
    outer: tuple[Var, ...]
    reduced: tuple[Var, ...]
    where: Mapping[Var, Any]
    accesses: tuple[AxisAccess, ...]
    numbers: tuple[Any, ...] = ()
    folds: frozenset[str] = frozenset()  # reductions that it folds
    uses: frozenset[str] = frozenset()  # reductions whose results it reads
    touched: Mapping[str, tuple[AxisAccess, ...]] = field(default_factory=dict)

    @property
    def axes(self) -> tuple[Var, ...]:
        """All axes that it iterates over."""
        return (*self.outer, *self.reduced)

    @property
    def values(self) -> Iterator[Value]:
        """Its values, in the definition's variables."""
        return _values(self.definition, self.part)

    def writes(self, buffer: str) -> bool:
        """Whether the member stores to a buffer."""
        return any(a.write for a in self.touched.get(buffer, ()))

    def over(self, by: Mapping[Var, Any], outer: tuple[Var, ...], reduced: tuple[Var, ...]) -> Member:
        """The member with axes replaced by indices over others, which become `outer` and `reduced`."""
        accesses = tuple(AxisAccess(a.buffer, rebuild(a.offset, by.get), a.write) for a in self.accesses)  # type: ignore[arg-type]
        return replace(
            self,
            outer=outer,
            reduced=reduced,
            where={v: rebuild(n, by.get) for v, n in self.where.items()},  # type: ignore[arg-type]
            accesses=accesses,
            numbers=tuple(rebuild(n, by.get) for n in self.numbers),  # type: ignore[arg-type]
            touched=by_buffer(accesses),
        )


def by_buffer(accesses: Iterable[AxisAccess]) -> dict[str, tuple[AxisAccess, ...]]:
    """Accesses by the buffer they touch."""
    found: dict[str, tuple[AxisAccess, ...]] = {}
    for access in accesses:
        found[access.buffer] = (*found.get(access.buffer, ()), access)
    return found


class Axes:
    """Gives out axes, each with a name of its own."""

    def __init__(self) -> None:
        self._names = count()

    def fresh(self, extent: Any) -> Var:
        """A new axis."""
        return Var(f"a{next(self._names)}", extent)


def members_of(definition: Definition, place: int, axes: Axes) -> tuple[Member, ...]:
    """The members of a flat definition: one, or two where it reduces.

    Loops of extent 1 vanish, loops that run over memory without a gap become one axis, and outer axes are ordered by
    stride: 4-d elementwise operations on contiguous memory have one axis.
    """
    outer, reduced, where = _axes_of(definition, axes)
    if definition.scan:
        return (_member(definition, "scan", place, outer, reduced, where),)
    if not definition.reductions:
        return (_member(definition, "map", place, outer, (), where),)
    fold = _member(definition, "fold", place, outer, reduced, where)
    return (fold, _member(definition, "store", place + 1, outer, (), where))


def _member(
    definition: Definition, part: Part, place: int, outer: tuple[Var, ...], reduced: tuple[Var, ...],
    where: Mapping[Var, Any],
) -> Member:  # fmt: skip
    seen = _seen(definition, part)
    own = frozenset(r.name for r in definition.reductions)
    folds = own if part in ("fold", "scan") else frozenset()
    start = {v: v.index() for v in where}
    made = Member(definition, part, place, (), (), start, seen.accesses, seen.numbers, folds, seen.uses - folds)
    return made.over(where, outer, reduced)


@dataclass(frozen=True)
class _Seen:
    """The accesses of memory, indices, and reductions whose results are used within values."""

    accesses: tuple[AxisAccess, ...]
    numbers: tuple[Any, ...]
    uses: frozenset[str]


@lru_cache(maxsize=1 << 12)
def _seen(definition: Definition, part: Part) -> _Seen:
    accesses, numbers, uses = [], [], set()
    for value in walk(_values(definition, part)):
        if isinstance(value, Load):
            accesses.append(AxisAccess(value.buffer, value.indices[0] if value.indices else None, False))
        elif isinstance(value, Number):
            numbers.append(value.index)
        elif isinstance(value, Result):
            uses.add(value.reduction)
    if part != "fold":
        accesses += [AxisAccess(s.buffer, s.indices[0], True) for s in definition.stores]
    return _Seen(tuple(accesses), tuple(numbers), frozenset(uses))


def _values(definition: Definition, part: Part) -> Iterator[Value]:
    if part in ("fold", "scan"):
        for reduction in definition.reductions:
            yield from reduction.values
    if part != "fold":
        for store in definition.stores:
            yield from values_in(store.indices)
            yield store.value


def _axes_of(definition: Definition, axes: Axes) -> tuple[tuple[Var, ...], tuple[Var, ...], dict[Var, Any]]:
    """Outer axes, reduced axes, and the definition's variables over them."""
    parts: tuple[Part, ...] = (
        ("map",) if not definition.reductions else ("scan",) if definition.scan else ("fold", "store")
    )
    seen = [_seen(definition, part) for part in parts]
    stores = [a.offset for s in seen for a in s.accesses if a.write]
    loads = [a.offset for s in seen for a in s.accesses if not a.write and a.offset is not None]
    loops = [v for v in definition.loops if v.extent != 1]
    folded = [v for v in definition.reduced if v.extent != 1]
    where: dict[Var, Any] = {v: 0 for v in (*definition.loops, *definition.reduced) if v.extent == 1}
    tied = [*stores, *loads, *(n for s in seen for n in s.numbers)]
    across = None if definition.scan else read_across(loops, folded, loads)  # scans write as much as they read
    first, then = (stores, loads) if across is None else (loads, stores)
    outer = _joined(by_stride(loops, first + then), tied, axes, where)
    reduced = _joined(folded if definition.scan else by_stride(folded, loads), tied, axes, where)
    return outer, reduced, where


def read_across(loops: Sequence[Var], folded: Sequence[Var], loads: Sequence[Any]) -> Var | None:
    """The loop along which what is folded lies closest; None if pieces of memory are folded that are long themselves.

    Then memory is read in order, rather than that results, of which there are fewer, are written in order:

        for p < 512, c < 64: fold k < 16 of x[1024*p + 64*k + c];  y[512*c + p] = ...
    """
    many = extent_of(folded)
    if isinstance(many, int) and many < FEW:
        return None
    for load in loads:
        strides = {v: digits(load).stride(v) for v in (*loops, *folded)}
        order = ascending(set(strides.values())) if 0 not in strides.values() else None
        if order is None or not loops:
            continue
        piece: Any = 1
        for v in sorted(folded, key=lambda v: order.index(strides[v])):
            piece = mul(piece, v.extent) if strides[v] == piece else piece
        if isinstance(piece, int) and piece < _PIECE:
            return min(loops, key=lambda v: order.index(strides[v]))
        return None
    return None


def by_stride(loops: Iterable[Var], offsets: Iterable[Any]) -> list[Var]:
    """Loops ordered for contiguity: by their stride in the first of `offsets` that they all step, largest outermost."""
    given = list(loops)
    for offset in offsets:
        seen = digits(offset)
        strides = {v: seen.stride(v) for v in given}
        if 0 in strides.values():
            continue
        order = ascending(set(strides.values()))
        if order is not None:
            return sorted(given, key=lambda v: -order.index(strides[v]))
    return given


def _joined(loops: list[Var], offsets: list[Any], axes: Axes, where: dict[Var, Any]) -> tuple[Var, ...]:
    """Fresh axes for `loops`, one for each run of loops that only occur joined; puts into `where` what loops are."""
    found = []
    for run in joint_runs(loops, offsets):
        extent: Any = 1
        for var in run:
            extent = mul(extent, var.extent)
        found.append(axes.fresh(extent))
        # Proportional everywhere: what the last one stands for may be all of the run's, the others then count nothing.
        where.update({**dict.fromkeys(run[:-1], 0), run[-1]: found[-1].index()})
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Group:
    """Members that become one kernel.

    Args:
        members: in an order that computes them.
        chain: axes whose loops all members share, outermost first; at least these become loops around everything.
        key: a number of its own.
    """

    members: tuple[Member, ...]
    chain: tuple[Var, ...]
    key: int

    @property
    def name(self) -> str:
        """The name of its last definition."""
        return self.members[-1].definition.name

    @property
    def first(self) -> int:
        """The position of its first member in the program."""
        return self.members[0].place

    @property
    def last(self) -> int:
        """The position of its last member in the program."""
        return self.members[-1].place


Step = Group | Extern


def split_axes(members: Iterable[Member], pieces: Mapping[Var, tuple[Var, ...]]) -> tuple[Member, ...]:
    """Members with axes split: each into its `pieces`, outermost first."""
    by = {axis: number_of(parts) for axis, parts in pieces.items()}
    return tuple(m if not by.keys() & set(m.axes) else _split(m, pieces, by) for m in members)


def _split(member: Member, pieces: Mapping[Var, tuple[Var, ...]], by: Mapping[Var, Any]) -> Member:
    outer, reduced = (tuple(p for v in side for p in pieces.get(v, (v,))) for side in (member.outer, member.reduced))
    return member.over(by, outer, reduced)
