"""The independent checker: does every read of a schedule see the write that it saw in the program?

Shares nothing with the scheduler but the IR. Two questions, each with typed findings:

    between statements   every buffer has versions, one more with each store. What a store is computed from, through all
                         scratch, must be versions that the program's definition sees, itself or through what needs
                         no memory here, or through partial results, buffers that the program does not have (this file).
                         One store may fill a buffer that the program fills part by part. A number that a call makes
                         known is a read of that call's token
    within loops         the element that is read was written in the same iteration of all shared loops, and parallel
                         iterations touch no element in common (`check_loops`)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..ir.index.index import Index, Late, Loaded, Var, atoms
from ..ir.kernel import Assign, Fold, Kernel, Loop, Statement, Update
from ..ir.program import Definition, Extern, Program, Store
from ..ir.value import Load, Result, Value, indices_of, walk
from .affine import never_meet
from .check_loops import ScheduleFault, loop_findings

if TYPE_CHECKING:
    from .result import Schedule

Version = tuple[str, int]


def check_schedule(program: Program, schedule: Schedule) -> list[ScheduleFault]:
    """All that is wrong with a schedule of `program`; nothing where every dependence is kept."""
    found = _VersionCheck(program, schedule).run()
    for step in schedule.steps:
        if isinstance(step, Kernel):
            found += loop_findings(step, atomic=schedule.target.atomic)
            found += _side_by_side(step)
    return list(dict.fromkeys(found))


def _side_by_side(kernel: Kernel) -> Iterator[ScheduleFault]:
    """The faults of a kernel of parts: parts that are not its body, or that touch a buffer that another part writes."""
    if kernel.parts and tuple(s for part in kernel.parts for s in part.body) != kernel.body:
        yield ScheduleFault("missing", kernel.name, "its parts are not its body")
    for k, part in enumerate(kernel.parts):
        written = {s.store.buffer for s in _assigns(part.body)}
        for other in (*kernel.parts[:k], *kernel.parts[k + 1 :]):
            for name in sorted(written & _touched(other.body)):
                if _are_pieces(part, other, name):
                    continue
                yield ScheduleFault(
                    "race", kernel.name, f"{part.name} writes {name}, which {other.name} touches beside it"
                )


def _are_pieces(one: Kernel, other: Kernel, name: str) -> bool:
    """Whether two kernels only store to a buffer, no element of which both touch."""
    both = [[s.store for s in _assigns(kernel.body) if s.store.buffer == name] for kernel in (one, other)]
    read = any(p.buffer.name == name and p.access != "write" for kernel in (one, other) for p in kernel.params)
    return not read and all(never_meet(a.indices[0], b.indices[0]) for a in both[0] for b in both[1])


def _touched(body: Sequence[Statement]) -> set[str]:
    """The buffers that statements read or write."""
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, (Loop, Fold)):
            found |= _touched(statement.body)
            continue
        store = statement.store if isinstance(statement, Assign) else None
        values = [store.value] if store is not None else list(statement.reduction.values)  # type: ignore[union-attr]
        found |= {v.buffer for v in _inputs(values, store) if isinstance(v, Load)}
        found |= {store.buffer} if store is not None else set()
    return found


def _inputs(values: Iterable[Value], store: Store | None = None) -> list[Value]:
    """Loads and results that values, and the place of a store, depend on."""
    inside = [a.value for i in store.indices for a in atoms(i) if isinstance(a, Loaded)] if store is not None else []
    return [v for v in walk([*values, *inside]) if isinstance(v, (Load, Result))]


class _Expected:
    """The versions of buffers that the program's stores may be computed from."""

    def __init__(self, program: Program) -> None:
        self._items = program.items
        self.stores: dict[str, list[int]] = {}  # by buffer, the items that write it, in order
        self.places = {item.name: place for place, item in enumerate(program.items) if isinstance(item, Extern)}
        needed = {*program.outputs, *(b.name for b in program.buffers.values() if b.kind != "made")}
        self._needed = self._backwards(needed)
        for place, item in enumerate(program.items):
            if place in self._needed:
                for name in _writes(item):
                    self.stores.setdefault(name, []).append(place)

    def _backwards(self, wanted: set[str]) -> set[int]:
        needed = set()
        for place in reversed(range(len(self._items))):
            item = self._items[place]
            effect = isinstance(item, Extern) and (not item.pure or not item.writes)
            if effect or wanted & set(_writes(item)):
                needed.add(place)
                wanted |= {*_reads(item), *_known_by(item)}
        return needed

    @property
    def calls(self) -> list[str]:
        """Names of the calls that must run."""
        return [item.name for k, item in enumerate(self._items) if isinstance(item, Extern) and k in self._needed]

    def fills(self, name: str) -> bool:
        """Whether several definitions one after the other, and nothing between them, make a buffer part by part."""
        places = self.stores.get(name, [])
        between = [self._items[place] for place in range(places[0], places[-1] + 1)] if places else []
        if len(places) < 2 or any(isinstance(item, Extern) for item in between):
            return False
        stores = [s for item in between for s in item.stores if s.buffer == name]  # type: ignore[union-attr]
        return all(s.mode is None for s in stores) and not any(name in _reads(item) for item in between)

    def version(self, name: str, place: int) -> int:
        """How many stores to a buffer come before an item."""
        return sum(at < place for at in self.stores.get(name, ()))

    def seen(self, place: int, within: Callable[[str, int], bool], known: dict[int, frozenset[Version]]) -> Any:
        """Every version that the item at `place` sees, directly or through stores `within` its computation.

        Args:
            place: of the item.
            within: whether the value that an item stores to a buffer may have been taken from there, not from memory.
            known: versions found already, by place, for the same `within`.
        """
        if place not in known:
            direct = {(name, self.version(name, place)) for name in _reads(self._items[place])}
            found = frozenset(direct)
            for name, _ in direct:
                for at in self.stores.get(name, ()):
                    if at < place and isinstance(self._items[at], Definition) and within(name, at):
                        found |= self.seen(at, within, known)
            known[place] = found
        return known[place]


def _assigns(body: Sequence[Statement]) -> Iterator[Assign]:
    for statement in body:
        if isinstance(statement, Assign):
            yield statement
        elif isinstance(statement, (Loop, Fold)):
            yield from _assigns(statement.body)


def _elements(sizes: Sequence[Any]) -> int | None:
    """How many there are; None where that depends on symbols."""
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None


def _writes(item: Any) -> list[str]:
    return list(item.writes) if isinstance(item, Extern) else [s.buffer for s in item.stores]


def _reads(item: Any) -> list[str]:
    if isinstance(item, Extern):
        return list(item.reads)
    values = [v for r in item.reductions for v in r.values] + [s.value for s in item.stores]
    loads = [v for s in item.stores for v in _inputs(values, s)] or _inputs(values)
    return [v.buffer for v in loads if isinstance(v, Load)] + [s.buffer for s in item.stores if s.mode is not None]


def _known_by(item: Any) -> set[str]:
    """The tokens of all numbers in a definition that calls make known: what it is, over what it runs, where it is."""
    if isinstance(item, Extern):
        return set()
    numbers = [v.extent for v in (*item.loops, *item.reduced)]
    numbers += [i for store in item.stores for i in store.indices]
    values = [v for r in item.reductions for v in r.values] + [s.value for s in item.stores]
    inside = [a.value for i in numbers for a in atoms(i) if isinstance(a, Loaded)]
    numbers += [i for v in walk([*values, *inside]) for i in indices_of(v)]
    return {token for number in numbers for token in _late(number)}


def _late(number: Any) -> Iterator[str]:
    for atom in atoms(number):
        if isinstance(atom, Late):
            yield from atom.tokens
        elif isinstance(atom, (Loaded, Var)):
            bound = atom.size if isinstance(atom, Loaded) else atom.extent
            yield from _late(bound) if isinstance(bound, Index) else ()


class _VersionCheck:
    def __init__(self, program: Program, schedule: Schedule) -> None:
        self._program, self._schedule = program, schedule
        self._expected = _Expected(program)
        self._now: dict[str, int] = {}
        self._local: dict[str, frozenset[Version]] = {}  # by scratch buffer or reduction: the versions it comes from
        # The same by buffer that the program does not have, and the stores that were done in the kernel by then.
        self._given = frozenset(name for name, b in program.buffers.items() if b.kind != "made")
        self._partial: dict[str, tuple[frozenset[Version], frozenset[int]]] = {}
        self._scratch: frozenset[str] = frozenset()
        self._mine: set[int] = set()  # the program's items whose stores the kernel has done
        self._known: dict[int, frozenset[Version]] = {}
        self._found: list[ScheduleFault] = []
        kernels = [step for step in schedule.steps if isinstance(step, Kernel)]
        self._statements = Counter(s.store.buffer for kernel in kernels for s in _assigns(kernel.body))

    def run(self) -> list[ScheduleFault]:
        for step in self._schedule.steps:
            if isinstance(step, Extern):
                self._call(step)
            else:
                self._scratch, self._local = frozenset(b.name for b in step.scratch), {}
                self._mine, self._known = set(), {}
                self._numbers(step)
                self._body(step, step.body)
        self._everything_happened()
        return self._found

    def _note(self, code: str, where: str, message: str) -> None:
        self._found.append(ScheduleFault(code, where, message))

    def _numbers(self, kernel: Kernel) -> None:
        """Numbers that a kernel is given, and sizes of the memory that it writes to, are known by then."""
        buffers = [self._schedule.buffers.get(p.buffer.name) for p in kernel.params if p.access == "write"]
        memory = [n for b in buffers if b is not None for n in (*b.sizes, *b.strides) if isinstance(n, Index)]
        given = [token for size in kernel.sizes if isinstance(size, Late) for token in size.tokens]
        for token in dict.fromkeys((*given, *(token for number in memory for token in _late(number)))):
            if not self._now.get(token, 0) and token not in self._given:
                self._note("unwritten", kernel.name, f"runs before a call makes {token}")

    def _call(self, step: Extern) -> None:
        place = self._expected.places[step.name]
        for name in step.reads:
            wanted = self._expected.version(name, place)
            if self._now.get(name, 0) != wanted:
                self._note("stale-read", step.name, f"reads {name} after {self._now.get(name, 0)} stores, not {wanted}")
        for name in step.writes:
            self._stored(step.name, name, place)

    def _stored(self, where: str, name: str, place: int | None = None) -> int | None:
        """Count a store; gives the program's item that makes it."""
        at = self._now.get(name, 0)
        self._now[name] = at + 1
        stores = self._expected.stores.get(name, [])
        if at >= len(stores) or (place is not None and stores[at] != place):
            self._note("wrong-store", where, f"store {at} to {name} is not the program's")
            return None
        return stores[at]

    def _parts(self, kernel: Kernel, store: Store, around: Sequence[Loop]) -> list[int]:
        """The program's items that a store makes: one, or all that fill a buffer where one store does."""
        name, where = store.buffer, kernel.name
        places = self._expected.stores.get(name, [])
        if self._statements[name] > 1 or not self._expected.fills(name):
            place = self._stored(where, name)
            return [] if place is None else [place]
        elements, iterations = _elements(self._program.buffers[name].sizes), _elements([s.var.extent for s in around])
        if None not in (elements, iterations) and iterations != elements:
            self._note("missing", where, f"{iterations} elements of {name} are stored, not {elements}")
        return [place for _ in places if (place := self._stored(where, name)) is not None]

    def _body(self, kernel: Kernel, body: Sequence[Statement], around: tuple[Loop, ...] = ()) -> None:
        for statement in body:
            if isinstance(statement, (Loop, Fold)):
                self._body(kernel, statement.body, (*around, *([statement] if isinstance(statement, Loop) else ())))
            elif isinstance(statement, Update):
                name = statement.reduction.name
                self._local[name] = self._local.get(name, frozenset()) | self._sources(
                    kernel, _inputs(statement.reduction.values)
                )
            else:
                self._assign(kernel, statement, around)

    def _assign(self, kernel: Kernel, statement: Assign, around: Sequence[Loop]) -> None:
        store = statement.store
        sources = self._sources(kernel, _inputs([store.value], store))
        if store.buffer in self._scratch:
            self._local[store.buffer] = self._local.get(store.buffer, frozenset()) | sources
            return
        if store.buffer not in self._program.buffers:
            before, mine = self._partial.get(store.buffer, (frozenset(), frozenset()))
            self._partial[store.buffer] = before | sources, mine | self._mine
            return
        places = self._parts(kernel, store, around)
        seen = [self._expected.seen(place, self._within, self._known) for place in places]
        if not seen:
            return
        for name, version in sorted(sources - frozenset[Version]().union(*seen)):
            self._note("stale-read", kernel.name, f"{store.buffer} is made from {name} after {version} stores")
        if len(seen) > 1 and any(part and not part & sources for part in seen):
            self._note("missing", kernel.name, f"{store.buffer} is made without one of its parts")
        self._mine.update(places)
        self._known = {}

    def _within(self, name: str, place: int) -> bool:
        """Whether a store's value can be had without memory: its buffer vanished, or this kernel does the store."""
        return place in self._mine or not (name in self._schedule.buffers or self._program.buffers[name].kind != "made")

    def _sources(self, kernel: Kernel, inputs: Iterable[Value]) -> frozenset[Version]:
        found: set[Version] = set()
        for value in inputs:
            name = value.reduction if isinstance(value, Result) else value.buffer  # type: ignore[attr-defined]
            if name in self._partial:
                versions, mine = self._partial[name]
                found |= versions
                self._mine, self._known = self._mine | mine, {}
                continue
            if isinstance(value, Result) or name in self._scratch or name not in self._program.buffers:
                if name not in self._local:
                    self._note("unwritten", kernel.name, f"{name} is read before anything is in it")
                found |= self._local.get(name, frozenset())
                continue
            found.add((name, self._now.get(name, 0)))
        return frozenset(found)

    def _everything_happened(self) -> None:
        ran = {s.name for s in self._schedule.steps if isinstance(s, Extern)}
        for name in self._expected.calls:
            if name not in ran:
                self._note("missing", name, "the call does not run")
        given = {b.name for b in self._program.buffers.values() if b.kind != "made"}
        for name in {*self._program.outputs, *given}:
            wanted = len(self._expected.stores.get(name, ()))
            if self._now.get(name, 0) != wanted:
                self._note("missing", name, f"{self._now.get(name, 0)} of {wanted} stores to it happen")
        effects = [s.name for s in self._schedule.steps if isinstance(s, Extern) and not s.pure]
        if effects != sorted(effects, key=self._expected.places.__getitem__):
            self._note("effects", ", ".join(effects), "calls with effects run in another order")
