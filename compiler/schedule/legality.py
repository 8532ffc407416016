"""Whether two groups may become one kernel. `profit` decides whether they should.

Two groups can be fused if their members can share at least one outermost loop. Every element that one writes and the
other touches must be touched in the same iteration of the shared loops.

    for i: t[i] = ...          for i:                        for i, j: t[i, j] = ...
    for i: u[i] = f(t[i])  ->      t[i] = ...; u[i] = ...     for i, j: u[i, j] = t[j, i]   ->   no: `crossing`
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..ir.index.index import Index, Loaded, Var, atoms
from ..ir.iteration_space import extent_of
from .affine import digits, less, separate
from .align import Aligned, alignments
from .groups import Axes, AxisAccess, Group, Member, read_across
from .profit import guess
from .target import CPU, NARROWEST, Target

MAX_MEMBERS = 128
_LANES = 16  # fewest contiguous results that justify a kernel of their own
_NEIGHBOURS = 8  # fewest columns side by side that programs should process together
MAX_BUFFERS = 128
_SCANNED = 8  # neighbours that a program scans side by side, at least
_FEWER = 8  # programs of short work may be fewer than multiprocessors by this factor
_SHORT = 1 << 20  # iterations that take no longer than a launch
_STEPS = 1 << 13  # iterations of one program that take no longer
_PASSES = 4  # over the longest row of one program: as many as the norm of a row takes

MESSAGES = {
    "switched-off": "option `without` or a bisection leaves it out",
    "cycle": "something between the two needs the first and feeds the second",
    "too-large": f"a kernel of more than {MAX_MEMBERS} parts or {MAX_BUFFERS} buffers",
    "device": "they run on different devices",
    "unaligned": "no loops of one match loops of the other through a buffer that both touch",
    "loop-order": "sharing loops would take away the contiguous innermost loop of one of them",
    "crossing": "an element would be read and written in different iterations of the shared loops",
    "computed-places": "what one stores would be read at computed places, one element after the other",
    "parallelism": "the loops that they can share have too few iterations to keep threads busy",
    "serial": "several loops of one would no longer run side by side, and little memory traffic would be saved",
    "walk": "programs would go through loops step by step, with few lanes at work in each step",
    "pieces": "programs would touch short pieces of memory, whose neighbours in a sector other programs touch",
    "memory": "much that the first reads last would stay in memory until the second runs",
    "across": "a fold or scan would compute neighbours in memory one after the other, walking across its operands",
    "compute": "a fold of columns has few programs, which a map inside of it would keep computing for too long",
    "no-gain": "it would save no memory traffic",
}


@dataclass(frozen=True)
class FusionRefusal:
    """Why two groups cannot be fused.

    Args:
        code: one of `MESSAGES`.
        buffers: the buffers that prevent fusion.
    """

    code: str
    buffers: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The reason as a sentence."""
        return MESSAGES[self.code]

    def __str__(self) -> str:
        blamed = f" ({', '.join(self.buffers)})" if self.buffers else ""
        return f"{self.code}{blamed}: {self.message}"


@dataclass(frozen=True)
class Fusion:
    """Two groups as one: members over common axes, in order, and the loops that all of them share."""

    members: tuple[Member, ...]
    chain: tuple[Var, ...]


def can_fuse(
    a: Group, b: Group, shared: list[str], axes: Axes | None = None, target: Target = CPU
) -> FusionRefusal | None:
    """Why two groups cannot become one kernel; None if they can.

    Args:
        a: the group that comes first in the program.
        b: the other.
        shared: buffers that both touch, the most relevant first.
        axes: creates axes, including those of the groups.
        target: the target of the kernels.
    """
    found = fusion_of(a, b, shared, axes or Axes(), target)
    return found if isinstance(found, FusionRefusal) else None


def fusion_of(
    a: Group, b: Group, shared: list[str], axes: Axes, target: Target = CPU, *, in_columns: bool = True
) -> Fusion | FusionRefusal:
    """Two groups as one, or a refusal; with `in_columns`, pointwise members may go into folds of columns."""
    if len(a.members) + len(b.members) > MAX_MEMBERS:
        return FusionRefusal("too-large")
    if len({n for g in (a, b) for m in g.members for n in m.touched}) > MAX_BUFFERS:
        return FusionRefusal("too-large")
    if not a.chain and not b.chain:
        return side_by_side(a, b, shared, axes)
    if not (a.chain and b.chain) and _fits_a_program((*a.members, *b.members), target):
        return side_by_side(a, b, shared, axes)
    refusal = FusionRefusal("unaligned", tuple(shared[:1]))
    for aligned in alignments(a, b, shared, axes):
        found = _fused(aligned, target, in_columns)
        if isinstance(found, Fusion):
            return found
        refusal = found
    return refusal


def _fits_a_program(members: tuple[Member, ...], target: Target) -> bool:
    """Whether one program of a GPU runs all members about as fast as several would, so that fusion saves launches.

    for j < 2048: y[j] = ...;  fold j < 2048 of y[j]*y[j];  for j < 2048: z[j] = y[j] * r       the norm of one row
    """
    rows = all(_is_row(m) and guess(extent_of(m.axes)) <= target.share for m in members)
    return rows and work_of(members) <= _PASSES * target.share


def _is_row(member: Member) -> bool:
    """Whether a member has at most one loop, along which there are lanes."""
    return sum(axis.extent != 1 for axis in member.axes) < 2


def side_by_side(a: Group, b: Group, shared: list[str], axes: Axes) -> Fusion:
    """Two groups one after the other, whatever they share; equal loops may still be merged.

    For groups without outer loops, such as reductions to one number, and for small groups.
    """
    aligned = next(alignments(a, b, shared, axes), None)
    left, right = (a.members, b.members) if aligned is None else (aligned.a, aligned.b)
    return Fusion(in_order((*left, *right)), ())


def in_order(members: Iterable[Member]) -> tuple[Member, ...]:
    """Members in program order, which respects all dependences."""
    return tuple(sorted(members, key=lambda m: m.place))


def _fused(aligned: Aligned, target: Target, in_columns: bool) -> Fusion | FusionRefusal:
    everyone = (*aligned.a, *aligned.b)
    common = [v for v in aligned.chain_a if v in aligned.chain_b]
    if not common:
        return FusionRefusal("unaligned")
    columns = columns_of(everyone, target) if in_columns else frozenset()
    if columns & _barred(common, everyone):
        found = _sharing(common, everyone, columns, aligned, target)
        if (
            isinstance(found, Fusion)
            and not _folds_parts(found)
            and _are_enough(guess(extent_of(found.chain)), everyone, target)
        ):
            return found
    return _sharing(common, everyone, frozenset(), aligned, target)


def _barred(common: Collection[Var], members: Iterable[Member]) -> set[Var]:
    """The axes that some member is contiguous along, and has loops of its own inside of."""
    return {v for m in members if (v := contiguous_axis(m)) in common and not set(m.outer) <= set(common)}  # type: ignore[misc]


def _folds_parts(found: Fusion) -> bool:
    """Whether programs would fold the parts of a column one after the other that were split to run side by side."""
    return any(m.part == "fold" and not set(m.outer) <= set(found.chain) for m in found.members)


def _are_enough(columns: int, members: Iterable[Member], target: Target) -> bool:
    """Whether programs that process this many columns together keep a GPU busy: scans have fewer in a program.

    A scan has those of a sector of memory: programs of fewer would move the same sectors again.

    One program of few columns for each multiprocessor is enough where the other choice is to read what is folded once
    more, and fewer are where all of it, and what one program does, take no longer than a second launch.
    """
    members = list(members)
    of_a_program = _SCANNED if all(m.part != "fold" for m in members) else NARROWEST
    least, work = target.busy // 2 * of_a_program, work_of(members)
    short = work <= _SHORT and work * of_a_program <= _STEPS * columns
    return columns >= (least // _FEWER if short else least)


def _sharing(
    common: list[Var], everyone: tuple[Member, ...], columns: frozenset[Var], aligned: Aligned, target: Target
) -> Fusion | FusionRefusal:
    kept = _keeping_innermost(common, everyone, _barred(common, everyone) - columns)
    if not kept:
        return FusionRefusal("loop-order")
    chain, culprits = _uncrossed(kept, aligned)
    while chain and (inside := _barred(chain, everyone) - columns):  # what crosses is a loop of their own
        chain, more = _uncrossed([v for v in chain if v not in inside], aligned)
        culprits |= more
    if not chain:
        return FusionRefusal("crossing", tuple(sorted(culprits)))
    if target.lanes > 1 and (found := _gathered(chain, aligned)):
        return FusionRefusal("computed-places", tuple(sorted(found)))
    if not _parallel_enough(chain, aligned, target):
        return FusionRefusal("parallelism")
    return Fusion(in_order(everyone), tuple(_as_folds_read(chain, aligned)))


def _as_folds_read(chain: list[Var], aligned: Aligned) -> list[Var]:
    """Loops around whole folds, the one innermost along which memory is read in order: results are fewer."""
    everyone = (*aligned.a, *aligned.b)
    folds = [m for m in everyone if m.part == "fold"]
    if any(not set(m.outer) <= set(chain) for m in everyone):
        return chain
    loads = {m: [a.offset for a in m.accesses if a.offset is not None] for m in folds}
    across = dict.fromkeys(v for m in folds if (v := read_across(m.outer, m.reduced, loads[m])) is not None)
    if len(across) != 1 or chain[-1] in across:
        return chain
    ordered = [v for v in chain if v not in across] + [v for v in chain if v in across]
    return ordered if _uncrossed(ordered, aligned)[0] == ordered else chain


def _gathered(chain: list[Var], aligned: Aligned) -> set[str]:
    """Buffers of one group that the other's own loops would read at computed positions.

    for i: { for j: t[i, j] = ...;  for p: u[i, p] = t[i, at[p]] }    lanes go along j, and p is sequential
    """
    found: set[str] = set()
    for readers, writers in ((aligned.b, aligned.a), (aligned.a, aligned.b)):
        written = {access.buffer for m in writers for access in m.accesses if access.write}
        for member in readers:
            own = [axis for axis in member.outer if axis not in chain]
            if own and less(_LANES - 1, extent_of(own)):
                found |= {a.buffer for a in member.accesses if a.buffer in written and _is_computed(a)}
    return found


def _is_computed(access: AxisAccess) -> bool:
    return isinstance(access.offset, Index) and any(isinstance(atom, Loaded) for atom in atoms(access.offset))


def _keeping_innermost(common: list[Var], members: tuple[Member, ...], barred: set[Var]) -> list[Var]:
    """Axes that may become outer loops: at most one contiguous axis, and none in `barred`.

    In general, the contiguous axis of a member with other loops of its own is barred. But if programs process neighbors
    in memory together for a fold of columns, they also do so for pointwise members inside of it:

        for c: fold: for r: { y[64*r + c] = ...; update with x[64*r + c] }        rows c, columns r of one tile
    """
    innermost = {v for m in members if (v := contiguous_axis(m)) is not None}
    inner = [v for v in common if v in innermost - barred]
    if len(inner) > 1:
        inner = []
    return [v for v in common if v not in innermost] + inner


def columns_of(members: Iterable[Member], target: Target) -> frozenset[Var]:
    """Axes along which the operands of folds or scans are contiguous, if programs process neighbors together."""
    folds = [m for m in members if m.part in ("fold", "scan") and m.outer] if target.lanes > 1 else []
    ends = [(m, m.outer[-1]) for m in folds if less(_NEIGHBOURS - 1, m.outer[-1].extent)]
    return frozenset(axis for m, axis in ends if any(_step(a.offset, axis) == 1 for a in m.accesses))


def contiguous_axis(member: Member) -> Var | None:
    """The axis that should stay a member's innermost loop: the one with stride 1 in its store. None for folds."""
    if member.part in ("fold", "scan") or not member.outer:
        return None
    offsets = [a.offset for a in member.accesses if a.write] + [a.offset for a in member.accesses if not a.write]
    for offset in offsets:
        for axis in member.outer:
            if offset is not None and digits(offset).stride(axis) == 1 and axis.extent != 1:
                return axis
    return None


def _uncrossed(common: list[Var], aligned: Aligned) -> tuple[list[Var], set[str]]:
    """The axes of `common` whose loops touch no element in more than one iteration."""
    pairs = list(conflicts(aligned.a, aligned.b))
    culprits: set[str] = set()
    chain, before = list(common), None
    while chain != before:
        before = chain
        chain = []
        for axis in before:
            crossing = {name for name, x, y in pairs if not separate(x, y, axis, frozenset(chain))}
            culprits |= crossing
            if not crossing:
                chain.append(axis)
    return chain, culprits


def conflicts(a: Iterable[Member], b: Iterable[Member]) -> Iterator[tuple[str, Any, Any]]:
    """Pairs of accesses to one buffer, at least one of which writes: its name and the two offsets."""
    left, right = touches(a), touches(b)
    for name in left.keys() & right.keys():
        reads, writes = left[name]
        others, stores = right[name]
        yield from ((name, x, y) for x in writes for y in (*others, *stores))
        yield from ((name, x, y) for x in reads for y in stores)


def touches(members: Iterable[Member]) -> dict[str, tuple[set[Any], set[Any]]]:
    """For each buffer, the offsets that are read and those that are written."""
    found: dict[str, tuple[set[Any], set[Any]]] = {}
    for member in members:
        for access in member.accesses:
            found.setdefault(access.buffer, (set(), set()))[access.write].add(access.offset)
    return found


def _parallel_enough(chain: list[Var], aligned: Aligned, target: Target) -> bool:
    """Whether the fused loops keep the machine as busy as those of both groups, or there is little to do anyway."""
    iterations = guess(extent_of(chain))
    if iterations >= target.busy:
        return True
    work = work_of((*aligned.a, *aligned.b))
    if work <= max(target.small, target.share * iterations):
        return True
    return not any(8 * iterations < guess(extent_of(c)) for c in (aligned.chain_a, aligned.chain_b))


def makes_serial(found: Fusion, a: Group, b: Group) -> bool:
    """Whether two groups lose parallel loops, so that one of them has several loops inside of the shared ones.

    A single loop inside is a row: neighbors in memory that one program processes together.
    """
    iterations = extent_of(found.chain)
    if not any(less(iterations, extent_of(g.chain)) for g in (a, b)):
        return False
    shared = set(found.chain)
    return any(len(set(m.outer) - shared) > 1 for m in found.members if m.part == "map")


def walks_across(found: Fusion) -> bool:
    """Whether a fold or scan keeps loops of its own in which neighbors in memory are visited one after the other.

    for i parallel: { for r, c: y[i, r, c] = ...;  for c < 64: fold r: sum of y[i, r, c] }    lanes go along r
    """
    shared = set(found.chain)
    for member in found.members:
        own = [axis for axis in member.outer if axis not in shared] if member.part in ("fold", "scan") else []
        several = less(_NEIGHBOURS - 1, extent_of(own)) if own else False
        if several and any(_step(a.offset, axis) == 1 for a in member.accesses if not a.write for axis in own):
            return True
    return False


def maps_in_columns(found: Fusion) -> list[Member]:
    """Pointwise members that are computed inside of a fold of columns: their contiguous loop is an outer one."""
    shared = set(found.chain)
    return [m for m in found.members if contiguous_axis(m) in shared and not set(m.outer) <= shared]


def _step(offset: Any, axis: Var) -> Any:
    """The distance in memory of neighbors along an axis; 0 if it is not constant."""
    return next((factor for atoms, factor in getattr(offset, "terms", ()) if atoms == (axis,)), 0)


def is_small(members: Iterable[Member], target: Target) -> bool:
    """Whether all members together have so few iterations that parallelism gains nothing."""
    return work_of(members) <= target.small


def work_of(members: Iterable[Member]) -> int:
    """The number of iterations of members; symbolic extents are estimated."""
    return sum(guess(extent_of(m.axes)) for m in members)
