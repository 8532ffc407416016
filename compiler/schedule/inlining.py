"""Inlining: pointwise definitions are computed where they are read.

    t[i, j] = x[j, i] * 2
    u[i] = sum over j of t[i, j]     ->    u[i] = sum over j of x[j, i] * 2

A definition is inlined into all of its readers, so that its buffer is removed, or into none. Cheap definitions are
always inlined. Others are inlined into a single reader that reads each element once, so that they are computed as often
as before. They are also inlined into several such readers, if computing takes less time than writing and reading: on
GPUs, and on CPUs where a value is large and what it is computed from is not, as of all pairs of elements. On a GPU, a
value of inputs alone is also computed again and again, if that takes less time than a launch of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch

from ...rewrites.switches import allowed
from ..ir.index.bounds import bounds
from ..ir.index.index import Index, Loaded, Var, atoms, terms
from ..ir.index.ranges import in_range
from ..ir.iteration_space import extent_of
from ..ir.ops import OPS
from ..ir.program import Buffer, Definition, Extern, Item
from ..ir.simplify import Simplifier
from ..ir.value import HALVES, Const, Guarded, Load, Op, Rewriter, Value, substitute, walk
from ..ir.value import variables as variables_in
from .affine import variables_of
from .dependences import checked, effects, loads, order_of, roots, values_in
from .few_folds import without_constants, written_out
from .flat_access import rewritten
from .one_hot import without_one_hot
from .profit import guess
from .target import CPU, Target

_CHEAP = 8  # most operations of a value that several readers may compute
_LARGEST = 128  # most operations of a value after inlining
_MOST_LOADS = 16
_LARGE = 1 << 20  # bytes of a value that does not stay in the cache of a core
_PAIRS_WORTH = 2  # operations on values of pairs in the time of moving one byte of a large buffer
LAUNCH = 4 << 20  # bytes moved in the time of another launch of a GPU that reads from caches
_SEVERAL = 64  # times that each element is read by several readers that compute it
_OVERLAP = 4  # most reads per element of a definition that is not cheap: for windows of pooling

NOT_INLINED = {
    "not-pointwise": "it reduces, scatters, or writes a part of its buffer",
    "kept": "its buffer is an output, or a call reads it",
    "rewritten": "its buffer has several writers",
    "overwritten": "what it reads is overwritten before a reader would read it",
    "checked": "it is the same at any index, and a reader's must be in range",
    "large": "the readers would become too large",
    "switched-off": "option `without` or a bisection leaves it out",
    "recomputed": "readers would compute it again, and it is not cheap",
}


@dataclass(frozen=True)
class ValueCost:
    """The cost of a value: operations, loads of as many elements as there are iterations, and slow operations."""

    ops: int
    loads: int
    slow: bool
    work: int = 0  # operations, with weights for slow ones
    loaded: int = 0  # bytes that an iteration loads

    @property
    def cheap(self) -> bool:
        """Whether computing the value several times costs less than storing it."""
        return self.ops <= _CHEAP and self.loads <= 1 and not self.slow


def cost_of(value: Value, loops: Sequence[Var], buffers: Mapping[str, Buffer]) -> ValueCost:
    """The cost of a value in a nest over `loops`. Memory may hold narrower values than those that are computed."""
    ops, full, slow, work, loaded = 0, 0, False, 0, 0
    for part in walk([value]):
        if isinstance(part, Op) and _limits(part):
            continue
        if isinstance(part, (Op, Guarded)):
            ops += 1
            slow |= isinstance(part, Op) and OPS[part.name].slow
            work += _work(part)
        elif isinstance(part, Load) and _steps_all(part, loops):
            full, loaded = full + 1, loaded + buffers[part.buffer].dtype.itemsize
    return ValueCost(ops, full, slow, work, loaded)


def _limits(value: Op) -> bool:
    """Whether a value is an integer that is clamped or widened, as indices from tables are instead of being checked."""
    if value.dtype.is_floating_point or value.dtype == torch.bool:
        return False
    if value.name == "cast":
        return not value.args[0].dtype.is_floating_point
    return value.name in ("maximum", "minimum") and isinstance(value.args[1], Const)


def _work(value: Op | Guarded) -> int:
    """The approximate number of machine operations of one operation."""
    return 1 if isinstance(value, Guarded) else OPS[value.name].work


def _steps_all(load: Load, loops: Sequence[Var]) -> bool:
    """Whether each iteration loads a different element."""
    seen = frozenset().union(*map(variables_of, load.indices)) if load.indices else frozenset()
    return all(v in seen or v.extent == 1 for v in loops)


def inline(
    items: Sequence[Item], buffers: Mapping[str, Buffer], outputs: Iterable[str], target: Target = CPU
) -> tuple[list[Item], list[tuple[str, str]]]:
    """The items, with pointwise definitions inlined into their readers.

    Returns:
        the remaining items, and for each pointwise definition with a buffer of the program's own, its name and the
        reason why it was not inlined (a key of `NOT_INLINED`), or an empty text if it was.
    """
    return _Inliner(items, buffers, frozenset(outputs), target).run()


class _Inliner:
    def __init__(
        self, items: Sequence[Item], buffers: Mapping[str, Buffer], outputs: frozenset[str], target: Target
    ) -> None:
        self._items, self._buffers, self._target = items, buffers, target
        self._effects = [effects(item) for item in items]
        self._writes: dict[str, list[int]] = {}
        self._readers: dict[str, list[int]] = {}
        for place, found in enumerate(self._effects):
            for name in found.writes:
                self._writes.setdefault(name, []).append(place)
            for name in found.reads:
                self._readers.setdefault(name, []).append(place)
        called = {n for i in items if isinstance(i, Extern) for n in (*i.reads, *i.writes)}
        self._kept = outputs | called
        self._bodies: dict[str, tuple[tuple[Any, ...], Value]] = {}  # the replacements of loads: store indices, value
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._loads: dict[int, Sequence[Load]] = {}
        self._sizes: dict[int, int] = {}
        self._above: list[int] = []  # the items before each item, as bits; computed at first use
        self._done: dict[Load, Value] = {}
        # Buffers of the program may become scratch, which is not rounded.
        self._simplify = Simplifier({n: b.dtype for n, b in buffers.items() if b.kind != "made" and b.dtype in HALVES})

    def run(self) -> tuple[list[Item], list[tuple[str, str]]]:
        left: list[Item] = []
        log: list[tuple[str, str]] = []
        for place, item in enumerate(self._items):
            if isinstance(item, Extern):
                left.append(item)
                continue
            now = without_constants(without_one_hot(self._rewritten(item)))
            reason = self._why_not(now, place)
            few = written_out(now) if reason and self._target.operations else None
            if few is not None and not self._why_not(few, place):
                now, reason = few, ""
            if reason:
                left.append(now)
            else:
                store = now.stores[0]
                self._bodies[store.buffer] = (store.indices, substitute(store.value, _once(now)))
                self._nodes[store.buffer] = now.nodes
            if reason != "not-pointwise":
                log.append((item.name, reason))
        return left, log

    def _rewritten(self, item: Definition) -> Definition:
        """`item` with inlined values in place of its loads, simplified."""
        taken = [n for n in dict.fromkeys(load.buffer for load in loads(item)) if n in self._bodies]
        if not taken:
            return self._simplified(item)
        nodes = dict.fromkeys(n for name in taken for n in self._nodes[name])
        made = self._simplified(rewritten(item, Rewriter(value=self._body_of)))
        return replace(made, nodes=tuple(dict.fromkeys((*nodes, *item.nodes))))

    def _simplified(self, item: Definition) -> Definition:
        """`item`, simplified unless an index that must be in range would go with the value that it picks."""
        made, indices = rewritten(item, self._simplify), map(self._simplify.index, (a.index() for a in checked(item)))
        wanted = {a for i in indices if isinstance(i, Index) for a in atoms(i) if isinstance(a, Loaded)}
        return made if all(in_range(a) for a in wanted - checked(made)) else item

    def _body_of(self, value: Value) -> Value | None:
        if not isinstance(value, Load) or value.buffer not in self._bodies:
            return None
        found = self._done.get(value)
        if found is None:
            indices, body = self._bodies[value.buffer]
            by = {
                v: at for index, at in zip(indices, value.indices, strict=True) if (v := _variable(index)) is not None
            }
            found = self._done[value] = substitute(body, by)
        return found

    def _why_not(self, item: Definition, place: int) -> str:
        """Why a definition is not inlined; empty if it is."""
        if not _fills_buffer(item, self._buffers):
            return "not-pointwise"
        name, value = item.stores[0].buffer, item.stores[0].value
        if name in self._kept or self._buffers[name].kind != "made":
            return "kept"
        if self._writes[name] != [place]:
            return "rewritten"
        readers = [p for p in self._readers.get(name, ()) if p > place]
        sources = [v for v in walk([value]) if isinstance(v, Load)]
        wrong = self._wrong(item, sources, place, readers)
        if wrong:
            return wrong
        cost = cost_of(value, item.loops, self._buffers)
        if len(sources) > _MOST_LOADS or any(self._size(r) + cost.ops > _LARGEST for r in readers):
            return "large"
        if not self._affordable(name, value, cost, readers):
            return "recomputed"
        if not allowed("fusion", f"{item.name} into what reads it", item.nodes):
            return "switched-off"
        for reader in readers:
            self._sizes[reader] = self._size(reader) + cost.ops
        return ""

    def _wrong(self, item: Definition, sources: list[Load], place: int, readers: list[int]) -> str:
        """Why a definition that readers compute would not be the same; empty if it is."""
        if any(self._overwritten(item, sources, place, reader) for reader in readers):
            return "overwritten"
        found = [load for reader in readers for load in self._loads_of(reader) if load.buffer == item.stores[0].buffer]
        return "checked" if any(_forgets(item, load) for load in found) else ""

    def _overwritten(self, item: Definition, sources: list[Load], place: int, reader: int) -> bool:
        names = {load.buffer for load in sources}
        if any(place < at < reader for name in names for at in self._writes.get(name, ())):
            return True
        changed = names & self._effects[reader].writes
        return bool(changed) and not self._in_place(item, sources, reader, changed)

    def _in_place(self, item: Definition, sources: list[Load], reader: int, changed: set[str]) -> bool:
        """Whether the reader only reads elements of its output that it leaves alone, or writes in that iteration."""
        target = self._items[reader]
        if not isinstance(target, Definition) or target.reductions or len(target.stores) != 1:
            return False
        store = target.stores[0]
        is_own = _at_places_of_their_own(store.indices, target.loops)
        by_load = [load for load in self._loads_of(reader) if load.buffer == item.stores[0].buffer]
        for load in by_load:
            pairs = zip(item.stores[0].indices, load.indices, strict=True)
            by = _once(item) | {v: at for index, at in pairs if (v := _variable(index)) is not None}
            moved = [substitute(source, by) for source in sources if source.buffer in changed]
            places: list[tuple[Any, ...]] = [s.indices for s in moved]  # type: ignore[attr-defined]
            if not all((is_own and at == store.indices) or _are_apart(at, store.indices) for at in places):
                return False
        return True

    def _affordable(self, name: str, value: Value, cost: ValueCost, readers: list[int]) -> bool:
        sites = [(self._items[r], load) for r in readers for load in self._loads_of(r) if load.buffer == name]
        if cost.cheap or isinstance(value, Const):
            return True
        if sites and self._saves_a_launch(name, value, cost, sites):
            return True
        if len(sites) != 1 and not self._cheaper_than_memory(name, cost, readers):
            return False
        return all(self._reads_each_once(name, reader, load) for reader, load in sites)

    def _saves_a_launch(self, name: str, value: Value, cost: ValueCost, sites: Sequence[tuple[Item, Load]]) -> bool:
        """Whether a launch of its own takes longer than computing a value of the program's inputs at each reading.

        What is computed from another kernel's results is part of that kernel, and needs no launch. A reader that
        chooses would compute all that it chooses from. Of several readers, one may be a kernel with the value: then
        it is only worth something if the value has few elements, each of which is read again and again.
        """
        own = any(isinstance(x, Load) and x.buffer in self._writes for x in walk([value]))
        indirect = any(isinstance(a, Loaded) for _, load in sites for i in load.indices for a in atoms(i))
        if not self._target.operations or own or indirect:
            return False
        each, times = cost.work + self._target.operations * cost.loaded, 0
        for reader, load in sites:
            assert isinstance(reader, Definition)
            if any(isinstance(x, Guarded) and load in walk([x]) for x in walk(roots(reader))):
                return False
            times += self._times(reader, load)
        few = _SEVERAL * guess(math.prod(self._buffers[name].sizes)) <= times
        return (few or len(sites) == 1) and times * each <= self._target.operations * LAUNCH

    def _times(self, reader: Definition, load: Load) -> int:
        """How often programs of a GPU compute what a reader loads: once for all lanes of a row where it is the same.

        for i < 300: for j < 3072: y[i, j] = x[index[i] % 50, j]      once for 1024 columns j
        """
        around = self._around(reader, load)
        used = frozenset[Var]().union(*map(variables_of, load.indices))
        row = guess(extent_of(tuple(takewhile(lambda v: v not in used, reversed(around)))))
        times = guess(extent_of(around))
        return times // min(row, self._target.elements) if row >= self._target.lanes else times

    def _kernels(self, name: str, readers: list[int]) -> int:
        """The number of places in which readers would compute it: similar independent readers become one kernel."""
        if not self._target.operations:
            return sum(load.buffer == name for r in readers for load in self._loads_of(r))
        found: list[tuple[Any, list[int]]] = []
        for reader in readers:
            item = self._items[reader]
            assert isinstance(item, Definition)
            for load in self._loads_of(reader):
                if load.buffer == name:
                    self._join(found, (item.loops, item.reduced, item.scan, load.indices), reader)
        return len(found)

    def _join(self, found: list[tuple[Any, list[int]]], shape: Any, reader: int) -> None:
        for other, together in found:
            if other == shape and not any(self._waits(reader, earlier) for earlier in together):
                together.append(reader)
                return
        found.append((shape, [reader]))

    def _waits(self, item: int, other: int) -> bool:
        """Whether one item depends on another item before it, directly or indirectly."""
        if not self._above:
            for before in order_of(self._effects):
                self._above.append(functools.reduce(lambda bits, at: bits | self._above[at] | 1 << at, before, 0))
        return bool(self._above[item] >> other & 1)

    def _cheaper_than_memory(self, name: str, cost: ValueCost, readers: list[int]) -> bool:
        """Whether computing a value in each kernel takes less time than writing it once and reading it there.

        A first reader with the same loops over the same elements computes the value anyway, and reads nothing.
        """
        worth = self._target.operations or (_PAIRS_WORTH if not cost.loads and self._is_large(name) else 0)
        size, kernels = self._buffers[name].dtype.itemsize, self._kernels(name, readers)
        kept = kernels + (not (readers and self._goes_along(name, readers[0])))
        return (kernels - 1) * (cost.work + worth * cost.loaded) < worth * size * kept

    def _is_large(self, name: str) -> bool:
        buffer = self._buffers[name]
        known = all(isinstance(n, int) for n in buffer.sizes)
        return known and math.prod(buffer.sizes) * buffer.dtype.itemsize > _LARGE

    def _goes_along(self, name: str, reader: int) -> bool:
        """Whether a reader has the loops of what it reads, and a fold has the loop of neighbors in memory inside."""
        item, buffer = self._items[reader], self._buffers[name]
        assert isinstance(item, Definition)
        load = next(load for load in self._loads_of(reader) if load.buffer == name)
        variables = [None if size == 1 else _variable(i) for i, size in zip(load.indices, buffer.sizes, strict=True)]
        if any(size != 1 and (v is None or v.extent != size) for v, size in zip(variables, buffer.sizes, strict=True)):
            return False
        inner = {v for v, stride in zip(variables, buffer.strides, strict=True) if stride == 1}
        return not item.reductions or bool(inner & {*item.reduced})

    def _reads_each_once(self, name: str, reader: Item, load: Load) -> bool:
        assert isinstance(reader, Definition)
        indirect = any(isinstance(a, Loaded) for i in load.indices for a in atoms(i))
        if indirect or name in {v.buffer for v in _inside_indices(reader)}:
            return False
        loops = self._around(reader, load)
        return _steps_all(load, loops) and not self._overlaps(name, loops)

    def _overlaps(self, name: str, loops: Sequence[Var]) -> bool:
        """Whether windows overlap so much that most elements are read many times; false for symbolic sizes."""
        extents, sizes = [v.extent for v in loops], self._buffers[name].sizes
        if not all(isinstance(n, int) for n in (*extents, *sizes)):
            return False
        return math.prod(extents) > _OVERLAP * math.prod(sizes) > 0

    def _around(self, reader: Definition, load: Load) -> tuple[Var, ...]:
        """The loops in which a reader loads: its own, and the reduced loops if the load is reduced."""
        reduced = any(load in walk(r.values) for r in reader.reductions) or reader.scan
        return (*reader.loops, *reader.reduced) if reduced else reader.loops

    def _loads_of(self, place: int) -> Sequence[Load]:
        found = self._loads.get(place)
        if found is None:
            item = self._items[place]
            found = self._loads[place] = loads(item) if isinstance(item, Definition) else ()
        return found

    def _size(self, place: int) -> int:
        if place not in self._sizes:
            item = self._items[place]
            values = walk(roots(item)) if isinstance(item, Definition) else ()
            self._sizes[place] = sum(isinstance(v, (Op, Guarded)) for v in values)
        return self._sizes[place]


def _variable(index: Any) -> Var | None:
    """The loop variable that an index is, if it is one."""
    terms: Any = getattr(index, "terms", ())
    if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 and isinstance(terms[0][0][0], Var):
        return terms[0][0][0]
    return None


def _fills_buffer(item: Definition, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a definition writes each element of its buffer once, element (i, j) in iteration (i, j)."""
    if item.reductions or len(item.stores) != 1 or item.stores[0].mode is not None:
        return False
    store, buffer = item.stores[0], buffers[item.stores[0].buffer]
    variables = []
    for index, size in zip(store.indices, buffer.sizes, strict=True):
        var = _variable(index)
        if var is not None and var.extent == size:
            variables.append(var)
        elif size != 1 or index != 0:
            return False
    return len(set(variables)) == len(variables) and set(variables) == {
        v for v in item.loops if v.extent != 1 or v in variables
    }


def _forgets(item: Definition, load: Load) -> bool:
    """Whether an index that must be in range would not be there in place of a load."""
    store = item.stores[0]
    kept = variables_in([store.value])
    lost = [at for own, at in zip(store.indices, load.indices, strict=True) if _variable(own) not in kept]
    return any(isinstance(a, Loaded) and not in_range(a) for at in lost if isinstance(at, Index) for a in atoms(at))


def _once(item: Definition) -> dict[Var, Any]:
    """0 for each loop of one iteration that a store does not name: where it is inlined, there is no such loop.

    for i < 7, j < 1: y[i, 0] = x[i, j];  z[k] = y[k, 0]     ->     z[k] = x[k, 0]
    """
    named = {v for store in item.stores for index in store.indices for v in variables_of(index)}
    return {v: 0 for v in item.loops if v.extent == 1 and v not in named}


def _inside_indices(item: Definition) -> list[Load]:
    """Loads whose values are used as indices."""
    numbers = [i for load in loads(item) for i in load.indices] + [i for s in item.stores for i in s.indices]
    return [v for v in walk(values_in(numbers)) if isinstance(v, Load)]


def _at_places_of_their_own(indices: Iterable[Any], loops: Iterable[Var]) -> bool:
    """Whether no two iterations touch the same element: each loop moves along its own dim."""
    moving = {found[0] for index in indices if len(found := tuple(variables_of(index))) == 1 and _is_affine(index)}
    return moving >= {loop for loop in loops if loop.extent != 1}


def _are_apart(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Whether no iteration of one touches an element of the other: in one dim, all indices are below the other's.

    x[i, j + 56], x[k, l] with l < 2   ->   True
    """
    for a, b in zip(one, other, strict=True):
        for (_, high), (low, _) in ((bounds(a), bounds(b)), (bounds(b), bounds(a))):
            if high is not None and low is not None and high < low:
                return True
    return False


def _is_affine(index: Any) -> bool:
    return all(len(monomial) == 1 and isinstance(monomial[0], Var) for monomial, _ in terms(index) if monomial)
