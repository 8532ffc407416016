"""Fusion in rounds: score all candidates, fuse the best legal ones, until a round finds none.

Two groups are candidates if they touch a common buffer. They are fused if `legality` allows it, `profit` is positive,
and no step in between depends on the first and feeds the second, which would be a cycle.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from ...rewrites.switches import allowed
from ..ir.index.index import add, mul
from ..ir.iteration_space import extent_of
from ..ir.program import Buffer, Extern, Item
from .affine import digits
from .dependences import ItemEffects, effects, order_of
from .groups import Axes, Group, Member, Step, members_of
from .inlining import LAUNCH, cost_of
from .legality import Fusion, FusionRefusal, fusion_of, makes_serial, maps_in_columns, walks_across
from .log import FusionLog
from .loop_tree import Tree, tree_of
from .pieces import are_apart, wasted_bytes
from .profit import bytes_of, guess, score_fusion, touched, written
from .rows import apart_by_rows
from .target import CPU, Target
from .walk import time_of, walks

_ROUNDS = 24
_LAUNCH = 1 << 20  # bytes moved in the time of a launch, approximately
_HELD = 16 << 20  # bytes that may stay allocated for a later kernel in any case
_WORTH_HOLDING = 64  # bytes that may stay allocated for each byte that fusion saves
_BY_LOOPS = frozenset({"loop-order", "parallelism", "across", "serial", "walk", "pieces"})  # refusals for shared loops
_FAR = 1024  # elements between pieces of a buffer that share no sectors to speak of
_NEAREST = 6  # later groups tried with each group, for each buffer


def buffers_of(step: Step) -> frozenset[str]:
    """The buffers that a step reads or writes."""
    if isinstance(step, Group):
        return touched(step)
    found = effects(step)
    return found.reads | found.writes


def local_buffers(steps: Iterable[Step], buffers: Mapping[str, Buffer], outputs: Iterable[str]) -> frozenset[str]:
    """Buffers that only one step reads or writes, and that are not results of the program."""
    uses = Counter(name for step in steps for name in buffers_of(step))
    return frozenset(n for n, count in uses.items() if count == 1 and buffers[n].kind == "made") - {*outputs}


def _are_pieces(one: Group, other: Group, name: str) -> bool:
    """Whether two groups only write a buffer, in places far from each other: sharing loops saves nothing there."""
    both = [[a for m in group.members for a in m.touched.get(name, ())] for group in (one, other)]
    if any(a.offset is None or not a.write for side in both for a in side):
        return False
    return all(_are_far(a.offset, b.offset) for a in both[0] for b in both[1])


def _are_far(a: Any, b: Any) -> bool:
    apart = add(digits(a).constant, mul(digits(b).constant, -1))
    return isinstance(apart, int) and abs(apart) >= _FAR


class Fuser:
    """The groups of a program during fusion.

    Args:
        items: the remaining program, with flat definitions.
        buffers: the buffers of the program.
        kept: buffers that must exist in any case: outputs, inputs, operands of calls.
        target: the target of the kernels.
        memory: how much memory each buffer takes; by default as estimates of time take it.
    """

    def __init__(
        self, items: Sequence[Item], buffers: Mapping[str, Buffer], kept: frozenset[str], target: Target = CPU,
        memory: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.log = FusionLog()
        self._target = target
        self.axes = Axes()
        self._keys, self._kept = count(), kept
        self._weights = {name: bytes_of(b) for name, b in buffers.items()}
        self._memory = self._weights if memory is None else memory
        self._buffers = buffers
        self._steps: dict[int, Step] = {}
        self._effects: dict[int, ItemEffects] = {}
        self._users: dict[str, frozenset[int]] = {}
        self._before: dict[int, set[int]] = {}
        self._after: dict[int, set[int]] = {}
        self._above: dict[int, int] = {}  # the steps before each step, as bits
        self._refused: dict[tuple[int, int], str] = {}
        self._in_columns = False
        self._start(items)

    def _start(self, items: Sequence[Item]) -> None:
        for place, item in enumerate(items):
            key = next(self._keys)
            self._steps[key] = item if isinstance(item, Extern) else self._alone(item, place, key)
            self._effects[key] = effects(item)
        for key, before in enumerate(order_of(list(self._effects.values()))):
            self._before[key], self._after[key] = before, set()
            above = 0
            for other in before:
                self._after[other].add(key)
                above |= self._above[other] | 1 << other
            self._above[key] = above
        for key, found in self._effects.items():
            for name in found.reads | found.writes:
                self._users[name] = self._users.get(name, frozenset()) | {key}

    def _alone(self, item: Item, place: int, key: int) -> Group:
        assert not isinstance(item, Extern)
        members = members_of(item, 2 * place, self.axes)
        if self._target.lanes == 1:
            members = apart_by_rows(members, self.axes)
        return Group(members, members[-1].outer, key)

    def run(self, rounds: int | None = None) -> list[Step]:
        """Fuse until nothing changes, then once more with pointwise members inside of folds of columns.

        Returns:
            groups and calls in an order that respects all dependences and is close to that of the program.
        """
        left = iter(range(_ROUNDS if rounds is None else rounds))
        self._in_columns = False
        self._rounds(left)
        if self._target.lanes > 1:
            self._in_columns = True
            self._refused = {pair: code for pair, code in self._refused.items() if code not in _BY_LOOPS}
            self._rounds(left)
        return [self._steps[key] for key in self._ordered()]

    def _rounds(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            if not self._round(number):
                break

    def _round(self, number: int) -> bool:
        gone: set[int] = set()
        for score, a, b in self._candidates():
            if a in gone or b in gone:
                continue
            found = self._allowed(a, b, self._try(a, b, score))
            self.log.candidate(number, self._steps[a], self._steps[b], score, found)
            if isinstance(found, FusionRefusal):
                self._refused[a, b] = found.code
            else:
                self._merge(a, b, found)
                gone |= {a, b}
        return bool(gone)

    def _candidates(self) -> list[tuple[int, int, int]]:
        """(score, key, key), the best first."""
        scored = []
        for a, b in sorted({pair for pair in self._pairs() if pair not in self._refused}):
            one, other = self._steps[a], self._steps[b]
            if isinstance(one, Group) and isinstance(other, Group):
                score = score_fusion(one, other, self._weights, self._users, self._kept)
                if score:
                    scored.append((score, other.first - one.last, a, b))
        scored.sort(key=lambda s: (-s[0], abs(s[1]), s[2], s[3]))
        return [(score, a, b) for score, _, a, b in scored]

    def _pairs(self) -> Iterator[tuple[int, int]]:
        groups = {k: s for k, s in self._steps.items() if isinstance(s, Group)}
        for users in self._users.values():
            near = sorted((k for k in users if k in groups), key=lambda k: groups[k].first)
            for at, a in enumerate(near):
                yield from ((a, b) for b in near[at + 1 : at + 1 + _NEAREST])

    def _try(self, a: int, b: int, score: int) -> Fusion | FusionRefusal:
        if self._between(a, b) or self._between(b, a):
            return FusionRefusal("cycle")
        one, other = self._steps[a], self._steps[b]
        assert isinstance(one, Group) and isinstance(other, Group)
        shared = touched(one) & touched(other)
        writes = written(one) | written(other)
        if len({self._buffers[name].device for name in writes}) > 1:
            return FusionRefusal("device")
        held = self._held(one, other)
        if held > max(_HELD, _WORTH_HOLDING * score):
            return FusionRefusal("memory")
        telling = sorted(shared, key=lambda n: (n not in writes, -self._weights[n], n))
        found = fusion_of(one, other, telling, self.axes, self._target, in_columns=self._in_columns)
        if isinstance(found, Fusion) and all(_are_pieces(one, other, name) for name in shared):
            return FusionRefusal("no-gain", tuple(telling[:1]))
        slow = ""
        if isinstance(found, Fusion) and self._target.serial:
            apart = [name for name in shared if are_apart(one.members, other.members, self._buffers[name])]
            slow = self._slow(found, one, other, max(0, score - sum(self._weights[name] for name in apart)))
        return FusionRefusal(slow, tuple(telling[:1])) if slow else found

    def _allowed(self, a: int, b: int, found: Fusion | FusionRefusal) -> Fusion | FusionRefusal:
        """The fusion that was found, or a refusal if switches forbid it."""
        one, other = self._steps[a], self._steps[b]
        if isinstance(found, FusionRefusal) or not isinstance(one, Group) or not isinstance(other, Group):
            return found
        nodes = dict.fromkeys(n for g in (one, other) for m in g.members for n in m.definition.nodes)
        return found if allowed("fusion", f"{one.name} with {other.name}", nodes) else FusionRefusal("switched-off")

    def _slow(self, found: Fusion, one: Group, other: Group, score: int) -> str:
        """Why a legal fusion would be slower than two kernels; empty if it would not."""
        traffic = sum(self._weights[name] for name in touched(one) | touched(other))
        if walks_across(found):
            return "across"
        if self._walks_long(found, one, other):
            return "walk"
        if traffic <= _LAUNCH:
            return "pieces" if self._wastes(found, one, other) > max(score, _LAUNCH) else ""
        if makes_serial(found, one, other) and score * self._target.serial < traffic:
            return "serial"
        if any(self._computes_long(m) for m in maps_in_columns(found)):
            return "compute"
        return "pieces" if self._wastes(found, one, other) > score else ""

    def _wastes(self, found: Fusion, one: Group, other: Group) -> int:
        """Bytes that memory would move in vain, beyond those of two kernels."""
        together, *apart = (
            wasted_bytes(members, chain, self._buffers, self._target)
            for members, chain in ((found.members, found.chain), *((g.members, g.chain) for g in (one, other)))
        )
        return together - sum(apart)

    def _walks_long(self, found: Fusion, one: Group, other: Group) -> bool:
        """Whether programs would take so many sequential steps that two launches are faster."""
        trees = tree_of(Group(found.members, found.chain, one.key), self._target)
        if not walks(trees):
            return False
        together, *apart = (time_of(t, self._weights, self._target) for t in (trees, *map(self._trees, (one, other))))
        return together > sum(apart) + LAUNCH

    def _trees(self, group: Group) -> tuple[Tree, ...]:
        return tree_of(group, self._target)

    def _held(self, one: Group, other: Group) -> int:
        """Bytes that would stay allocated during calls because the earlier of two groups comes with the later.

        What follows from the earlier one comes later, too.
        """
        first, second = sorted((one, other), key=lambda group: group.last)
        calls = [2 * key for key, step in self._steps.items() if isinstance(step, Extern)]
        calls = [place for place in calls if first.last < place < second.last]
        if not calls:
            return 0
        late = [self._effects[key] for key in self._delayed(first, second)]
        names = frozenset().union(*(one.reads for one in late)) - frozenset().union(*(one.writes for one in late))
        made = {name for name in names - touched(second) if self._buffers[name].kind == "made"}
        free = {name: max(map(self._place, self._users[name])) for name in made}
        return sum(self._memory[name] for name, place in free.items() if place < calls[-1])

    def _delayed(self, first: Group, second: Group) -> set[int]:
        """The keys of a group and of what follows from it, as far as it comes after another then."""
        found, waiting = set[int](), [first.key]
        while waiting:
            key = waiting.pop()
            found.add(key)
            waiting += [k for k in self._after[key] - found if self._place(k) < second.last]
        return found

    def _computes_long(self, member: Member) -> bool:
        """Whether computing a pointwise member takes longer than moving its operands and results."""
        definition = member.definition
        work = sum(cost_of(store.value, definition.loops, self._buffers).work for store in definition.stores)
        moved = sum(self._weights[name] for name in member.touched)
        return work * guess(extent_of(member.outer)) > self._target.operations * moved

    def _between(self, a: int, b: int) -> bool:
        """Whether a path leads from `a` to `b` through another step."""
        return any(self._above[key] >> a & 1 for key in self._before[b] if key != a)

    def _merge(self, a: int, b: int, found: Fusion) -> None:
        key = next(self._keys)
        self._steps[key] = Group(found.members, found.chain, key)
        first, second = self._effects.pop(a), self._effects.pop(b)
        self._effects[key] = ItemEffects(first.reads | second.reads, first.writes | second.writes)
        for name in self._effects[key].reads | self._effects[key].writes:
            self._users[name] = self._users[name] - {a, b} | {key}
        self._reconnect(a, b, key)
        del self._steps[a], self._steps[b]

    def _reconnect(self, a: int, b: int, key: int) -> None:
        self._before[key] = (self._before.pop(a) | self._before.pop(b)) - {a, b}
        self._after[key] = (self._after.pop(a) | self._after.pop(b)) - {a, b}
        for other in self._before[key]:
            self._after[other] = self._after[other] - {a, b} | {key}
        for other in self._after[key]:
            self._before[other] = self._before[other] - {a, b} | {key}
        either = 1 << a | 1 << b
        above = (self._above.pop(a) | self._above.pop(b)) & ~either
        self._above[key] = above
        above |= 1 << key
        for other, bits in self._above.items():
            if bits & either:
                self._above[other] = bits & ~either | above

    def _ordered(self) -> list[int]:
        waiting = {key: len(before) for key, before in self._before.items()}
        ready = [(self._place(key), key) for key, number in waiting.items() if not number]
        heapq.heapify(ready)
        order = []
        while ready:
            _, key = heapq.heappop(ready)
            order.append(key)
            for other in self._after[key]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (self._place(other), other))
        assert len(order) == len(self._steps), "groups depend on each other in a cycle"
        return order

    def _place(self, key: int) -> int:
        step = self._steps[key]
        return step.last if isinstance(step, Group) else 2 * key  # a call keeps its first key: its place
