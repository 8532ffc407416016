"""On GPUs, kernels that do not depend on each other share a launch: many small loops, as over parameters of a model.

k0: for i < 768: p[i] = f(p[i], g[i])                k0 and 2 more:   beside each other   for i < 768: p[i] = ...
k1: for i < 10: q[i] = f(q[i], h[i])         ->                                           for i < 10: q[i] = ...
mm                                                                                        for i < 3072: r[i] = ...
k2: for i < 3072: r[i] = f(r[i], k[i])               mm

Those of one computation (up to names, the number of iterations and where in a buffer they begin) share one whatever
they move, up to the target's `shared`, and so do those that store pieces of one result (`cat`); different ones if they
are light: a launch takes longer than they do. Each runs as late as the last of them. Nothing joins where a kernel needs
another, directly or through others, where it would no longer find in a cache what was written just before it, or where
memory that waits would raise the peak.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...rewrites.switches import allowed
from ..ir.accesses import roots, statements
from ..ir.canonical import beginnings, sized
from ..ir.index.index import Index, Late
from ..ir.kernel import Assign, Fold, Kernel, Loop, Param, Statement
from ..ir.program import Buffer, Extern
from ..ir.value import Load, walk
from .affine import never_meet
from .dependences import ItemEffects, effects, order_of, tokens_of_memory
from .profit import bytes_of, guess
from .target import Target

_LIGHT = 1 << 20  # bytes of traffic: a quarter of a microsecond, where a launch takes one or two
_CACHED = 32 << 20  # bytes that may be moved between two nests of one launch: caches of 40 MB and more still hold them
_SLACK = 2 << 20  # bytes that the peak may rise by: what the allocator takes at a time for small tensors
_OPEN = 16  # groups that a kernel is tried with: those of layers that follow each other are many, and take none

Step = Kernel | Extern
_State = tuple[dict[int, tuple[int, ...]], list[int], list[int], dict[int, int]]


def share_launches(
    steps: Sequence[Step], buffers: Mapping[str, Buffer], outputs: Iterable[str], target: Target
) -> tuple[tuple[Step, ...], list[tuple[str, ...]]]:
    """Steps in an order that runs, kernels that may share a launch joined; and the names of those that were.

    Args:
        steps: of a schedule, in order.
        buffers: the program's and those of split reductions.
        outputs: names of buffers that live to the end.
        target: the device that the kernels are for.
    """
    order = _Order(steps, buffers, frozenset(outputs))
    peak = order.peak() + _SLACK
    for keys in (*_alike(steps, buffers, target), *_of_one_result(order.pieces, steps, buffers, target)):
        before = order.state()
        if order.join(keys) and order.peak() > peak:
            order.restore(before)
    made = tuple(_joined([steps[k] for k in group]) for group in order.groups())
    return made, [tuple(part.name for part in m.parts) for m in made if isinstance(m, Kernel) and m.parts]


def _alike(steps: Sequence[Step], buffers: Mapping[str, Buffer], target: Target) -> list[list[int]]:
    """Positions of kernels that may share launches if they are independent: of one computation, then light ones."""
    found: dict[object, list[int]] = {}
    light: dict[object, list[int]] = {}
    kinds: dict[object, set[object]] = {}
    devices = {buffer.device.type for buffer in buffers.values()}
    for place, step in enumerate(steps):
        traffic = _traffic(step, buffers) if isinstance(step, Kernel) and _may_join(step, devices) else None
        if traffic is None or traffic > target.shared:
            continue
        assert isinstance(step, Kernel), step
        key = sized(step, moved=beginnings(step))[0]
        found.setdefault(key, []).append(place)
        if traffic <= _LIGHT:
            light.setdefault(key.params[0].buffer.device, []).append(place)
            kinds.setdefault(key.params[0].buffer.device, set()).add(key)
    many = [places for device, places in light.items() if len(kinds[device]) > 1]
    return [places for places in (*many, *found.values()) if len(places) > 1]


def _may_join(kernel: Kernel, devices: Collection[str]) -> bool:
    """Whether sizes are numbers and memory lies on one device, which is not the host of a program for another."""
    held = [p.buffer for p in kernel.params]
    known = not any(isinstance(n, Index) for b in held for n in b.sizes)
    places = {b.device for b in held if not b.scalar}
    at_home = len(devices) > 1 and {place.type for place in places} == {"cpu"}
    return known and not kernel.sizes and len(places) == 1 and not at_home


def _traffic(step: Step, buffers: Mapping[str, Buffer]) -> int:
    if isinstance(step, Extern):
        return sum(bytes_of(buffers[n]) for n in {*step.reads, *step.writes} if n in buffers)
    touched = _touched(step.body)
    moved = {p: min(bytes_of(p.buffer), touched.get(p.buffer.name, 0) * p.buffer.dtype.itemsize) for p in step.params}
    return sum(count * (2 if p.access == "update" else 1) for p, count in moved.items())


def _touched(body: Iterable[Statement], times: int = 1) -> Counter[str]:
    """How many elements of each buffer a body reads and writes, those that it comes back to more than once."""
    found = Counter[str]()
    for statement in body:
        if isinstance(statement, Loop):
            found += _touched(statement.body, times * guess(statement.var.extent))
        elif isinstance(statement, Fold):
            found += _touched(statement.body, times)
        else:
            names = {value.buffer for value in walk(roots(statement)) if isinstance(value, Load)}
            names |= {statement.store.buffer} if isinstance(statement, Assign) else set()
            found.update(dict.fromkeys(names, times))
    return found


def _effects(step: Step, buffers: Mapping[str, Buffer]) -> ItemEffects:
    if isinstance(step, Extern):
        return effects(step)
    late = {token for size in step.sizes if isinstance(size, Late) for token in size.tokens}
    writes = frozenset(p.buffer.name for p in step.params if p.access != "read")
    memory = {token for name in writes if name in buffers for token in tokens_of_memory(buffers[name])}
    reads = {p.buffer.name for p in step.params if p.access != "write"} | late | memory
    return ItemEffects(frozenset(reads), writes)


def _of_one_result(
    pieces: Mapping[str, list[int]], steps: Sequence[Step], buffers: Mapping[str, Buffer], target: Target
) -> list[list[int]]:
    """Positions of kernels that store pieces of one buffer."""
    devices = {buffer.device.type for buffer in buffers.values()}

    def joins(step: Step) -> bool:
        return isinstance(step, Kernel) and _may_join(step, devices) and _traffic(step, buffers) <= target.shared

    return [places for places in pieces.values() if all(joins(steps[k]) for k in places)]


def _all_pieces(steps: Sequence[Step], found: Sequence[ItemEffects]) -> dict[str, list[int]]:
    """By buffer, the steps that store pieces of it before anything else touches it; of at least two pieces."""
    counts = Counter(name for one in found for name in one.writes)
    often = [name for name, count in counts.items() if count > 1]
    return {name: places for name in often if len(places := _pieces(name, steps, found)) > 1}


def _with_pieces(found: Sequence[ItemEffects], pieces: Mapping[str, list[int]]) -> list[ItemEffects]:
    """Effects by which kernels that store pieces of one buffer, with no element in common, may come in any order.

    k0 writes t[x];  k1 writes t[x + 512];  k2 reads t     ->     k0 writes t, t[0];  k1 writes t, t[1];  k2 reads both
    """
    made = []
    for place, effects_ in enumerate(found):
        reads, writes = set(effects_.reads), set(effects_.writes)
        for name, places in pieces.items():
            if place in places:
                writes = writes - {name} | {f"{name}[{places.index(place)}]"}
            elif name in reads | writes:
                both = {f"{name}[{k}]" for k in range(len(places))}
                reads, writes = (reads | both, writes) if name not in writes else (reads, writes | both)
        made.append(replace(effects_, reads=frozenset(reads), writes=frozenset(writes)))
    return made


def _pieces(name: str, steps: Sequence[Step], found: Sequence[ItemEffects]) -> list[int]:
    """The first steps that touch a buffer, if they are kernels that store pieces of it apart from each other."""
    places: list[int] = []
    offsets: list[list[Any]] = []
    for place in (k for k, one in enumerate(found) if name in one.reads | one.writes):
        step = steps[place]
        if isinstance(step, Extern) or name in found[place].reads:
            break
        mine = _stored(step, name)
        if not mine or not all(never_meet(a, b) for other in offsets for a in mine for b in other):
            break
        places.append(place)
        offsets.append(mine)
    return places


def _stored(kernel: Kernel, name: str) -> list[Any]:
    """The stores of a kernel into a buffer that it only stores to; none if it combines with the values there."""
    stores = [s.store for s in statements(kernel.body) if isinstance(s, Assign) and s.store.buffer == name]
    return [] if any(store.mode is not None for store in stores) else [store.indices[0] for store in stores]


class _Order:
    """Steps as groups that run at one time, and the groups that must come before each."""

    def __init__(self, steps: Sequence[Step], buffers: Mapping[str, Buffer], outputs: frozenset[str]) -> None:
        self._steps, self._buffers = steps, buffers
        self._effects = [_effects(step, buffers) for step in steps]
        self._traffic = [_traffic(step, buffers) for step in steps]
        self.pieces = _all_pieces(steps, self._effects)
        self._before = order_of(_with_pieces(self._effects, self.pieces))
        self._members: dict[int, tuple[int, ...]] = {k: (k,) for k in range(len(steps))}  # by the first of them
        self._of = list(range(len(steps)))  # the group of each step, by its first
        self._above: list[int] = []  # by group: all steps that come before it, as bits
        for before in self._before:
            above = 0
            for other in before:
                above |= self._above[other] | 1 << other
            self._above.append(above)
        self._made = {n: bytes_of(b) for n, b in buffers.items() if b.kind == "made" and n not in outputs}
        self._bits = {k: 1 << k for k in self._members}

    # -- joining --------------------------------------------------------------------------------------------------

    def join(self, places: Sequence[int]) -> bool:
        """Join groups of these steps, each with the first before it that it can join; whether any was."""
        seen: list[int] = []  # a member of each group so far
        for place in places:
            group = self._of[place]
            others = dict.fromkeys(self._of[k] for k in seen[-_OPEN:])
            other = next((g for g in others if g != group and self._can_join(g, group)), None)
            if other is not None:
                self._merge(other, group)
            elif group not in others:
                seen.append(place)
        return len(seen) < len(places)

    def _can_join(self, a: int, b: int) -> bool:
        if self._above[a] & self._bits[b] or self._above[b] & self._bits[a] or not self._near(a, b):
            return False
        one, other = self._steps[a], self._steps[b]
        assert isinstance(one, Kernel) and isinstance(other, Kernel), (one, other)
        return allowed("fusion", f"{one.name} beside {other.name}", dict.fromkeys((*one.nodes, *other.nodes)))

    def _near(self, a: int, b: int) -> bool:
        """Whether buffers that both read are still in a cache if one waits for the other; inputs are in none anyway."""
        members = sorted((*self._members[a], *self._members[b]))
        fresh = max(sum(self._made.get(n, 0) for n in self._effects[k].reads) for k in members)
        if fresh <= _LIGHT:
            return True
        mine = set(members)
        between = sum(self._traffic[k] for k in range(members[0], members[-1]) if k not in mine)
        return between <= _CACHED

    def _merge(self, a: int, b: int) -> None:
        first, other = min(a, b), max(a, b)
        self._members[first] = tuple(sorted((*self._members[first], *self._members.pop(other))))
        for k in self._members[first]:
            self._of[k] = first
        bits = self._bits[first] = self._bits[a] | self._bits[b]
        above = self._above[a] | self._above[b]
        self._above[first] = above
        for group in self._members:
            if self._above[group] & bits:
                self._above[group] |= bits | above

    def state(self) -> _State:
        """A state that `restore` takes."""
        return dict(self._members), list(self._of), list(self._above), dict(self._bits)

    def restore(self, state: _State) -> None:
        """Undo all joins since."""
        self._members, self._of, self._above, self._bits = state

    # -- the order ------------------------------------------------------------------------------------------------

    def groups(self) -> list[tuple[int, ...]]:
        """Groups in an order that runs, near that of the steps: a group stands where the last of it did."""
        before = {
            g: {self._of[b] for k in members for b in self._before[k]} - {g} for g, members in self._members.items()
        }
        after: dict[int, list[int]] = {g: [] for g in before}
        for group, others in before.items():
            for other in others:
                after[other].append(group)
        waiting = {g: len(others) for g, others in before.items()}
        ready = [(self._members[g][-1], g) for g, number in waiting.items() if not number]
        heapq.heapify(ready)
        found = []
        while ready:
            _, group = heapq.heappop(ready)
            found.append(self._members[group])
            for other in after[group]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (self._members[other][-1], other))
        assert len(found) == len(self._members), "groups depend on each other in a cycle"
        return found

    def peak(self) -> int:
        """The most bytes of made buffers that live at once, from the group that first touches each to the last."""
        order = self.groups()
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for at, group in enumerate(order):
            for name in {n for k in group for n in self._effects[k].reads | self._effects[k].writes}:
                if name in self._made:
                    first.setdefault(name, at)
                    last[name] = at
        change = [0] * (len(order) + 1)
        for name, at in first.items():
            change[at] += self._made[name]
            change[last[name] + 1] -= self._made[name]
        live = peak = 0
        for step in change:
            live += step
            peak = max(peak, live)
        return peak


def _joined(steps: Sequence[Step]) -> Step:
    """One step, or kernels as one whose parts may run side by side."""
    if len(steps) == 1:
        return steps[0]
    kernels = [step for step in steps if isinstance(step, Kernel)]
    params: dict[str, Param] = {}
    for kernel in kernels:
        params.update((p.buffer.name, p) for p in kernel.params)
    return Kernel(
        f"{kernels[0].name}_and_{len(kernels) - 1}_more", tuple(params.values()), (),
        tuple(buffer for kernel in kernels for buffer in kernel.scratch),
        tuple(statement for kernel in kernels for statement in kernel.body),
        tuple(dict.fromkeys(node for kernel in kernels for node in kernel.nodes)), tuple(kernels),
    )  # fmt: skip


__all__ = ["share_launches"]
