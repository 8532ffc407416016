"""The checker's view of one kernel: which iterations touch which elements, by enumeration.

    for i < 8 parallel: t[i] = ...; y[i] = t[i] + t[0]   ->   race: t[0] is written where i is 0, read elsewhere

Nothing symbolic here: offsets are computed for all iterations, as tensors. Spaces of more than `MOST` iterations are
looked at in the first and last iterations of their outer loops; symbolic sizes take a value within their bounds. An
index read from memory is one more loop, over all that it can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..ir.index.index import Atom, Loaded, Size, atoms, evaluate
from ..ir.kernel import Assign, Fold, Kernel, Loop, Statement, Update
from ..ir.value import Guarded, Load, operands, walk

MOST = 1 << 17  # iterations of one statement
_SAMPLES = (7, 5, 11, 3, 13)  # for symbolic sizes


@dataclass(frozen=True)
class ScheduleFault:
    """One thing that is wrong.

    Args:
        code: ``"stale-read"``, ``"wrong-store"``, ``"missing"``, ``"effects"``, ``"unwritten"``, ``"outside"``,
            ``"crossing"``, ``"race"`` or ``"unproven"``.
        where: the kernel, call or buffer.
        message: a description of the fault, for a person.
    """

    code: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.code} in {self.where}: {self.message}"


@dataclass(frozen=True, eq=False)
class _TreeAccess:
    """One access in a loop tree.

    Args:
        buffer: its name.
        offset: its index.
        write: whether it writes.
        loops: around it, outermost first.
        statement: its number, in order.
        guarded: whether it need not happen in each iteration.
        mode: of a store.
    """

    buffer: str
    offset: Any
    write: bool
    loops: tuple[Loop, ...]
    statement: int
    guarded: bool = False
    mode: str | None = None


def loop_findings(kernel: Kernel, *, atomic: bool = False) -> list[ScheduleFault]:
    """All that is wrong within a kernel; `atomic`: stores that combine with memory in one way, or by data, may meet."""
    return list(_Kernel(kernel, atomic).findings())


def _touches(body: tuple[Statement, ...], loops: tuple[Loop, ...], number: list[int]) -> Iterator[_TreeAccess]:
    for statement in body:
        if isinstance(statement, Loop):
            yield from _touches(statement.body, (*loops, statement), number)
            continue
        if isinstance(statement, Fold):
            yield from _touches(statement.body, loops, number)
            continue
        number[0] += 1
        yield from _of_statement(statement, loops, number[0])


def _of_statement(statement: Assign | Update, loops: tuple[Loop, ...], number: int) -> Iterator[_TreeAccess]:
    roots: list[Any] = list(statement.reduction.values) if isinstance(statement, Update) else []
    if isinstance(statement, Assign):
        roots = [statement.store.value]
        roots += [a.value for i in statement.store.indices for a in atoms(i) if isinstance(a, Loaded)]
    sure = _unguarded(roots)
    for value in walk(roots):
        if isinstance(value, Load) and value.indices:
            yield _TreeAccess(value.buffer, value.indices[0], False, loops, number, value not in sure)
    if isinstance(statement, Assign):
        store = statement.store
        yield _TreeAccess(store.buffer, store.indices[0], True, loops, number, mode=store.mode)


def _unguarded(roots: list[Any]) -> set[Any]:
    """The values that are evaluated whatever guards say."""
    found: set[Any] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack += [value.condition] if isinstance(value, Guarded) else operands(value)
    return found


class _Kernel:
    def __init__(self, kernel: Kernel, atomic: bool) -> None:
        self._kernel, self._atomic = kernel, atomic
        self._scratch = {b.name: b for b in kernel.scratch}
        self._sizes = {s.name: _sample(s, k) for k, s in enumerate(kernel.sizes)}
        self._offsets: dict[_TreeAccess, torch.Tensor] = {}
        self._iterations: dict[int, torch.Tensor] = {}  # by loop: two that are alike may be looked at differently
        self._grids: dict[tuple[Any, ...], dict[Atom, torch.Tensor]] = {}  # by loops and data

    def findings(self) -> Iterator[ScheduleFault]:
        by_buffer: dict[str, list[_TreeAccess]] = {}
        for touch in _touches(self._kernel.body, (), [0]):
            self._bound(touch.loops)
            by_buffer.setdefault(touch.buffer, []).append(touch)
        for name, touches in by_buffer.items():
            writes = [t for t in touches if t.write]
            if not writes:
                continue
            yield from self._scratch_findings(name, touches) if name in self._scratch else self._real(name, touches)

    # -- real buffers: an element is touched in one iteration of shared loops -------------------------------------

    def _real(self, name: str, touches: list[_TreeAccess]) -> Iterator[ScheduleFault]:
        for write in (t for t in touches if t.write):
            for other in touches:
                if self._atomic and _may_meet(write, other):
                    continue
                same = other.statement == write.statement
                shared = _shared(write.loops, other.loops)
                if other is write:
                    shared = _parallel_part(shared)
                if shared and not self._meet(write, other, shared):
                    code = "race" if any(loop.parallel for loop in shared) else "crossing"
                    known = not _by_data(write) and not _by_data(other)
                    how = "writes" if other.write else "reads"
                    where = "itself" if same else f"statement {other.statement}"
                    yield ScheduleFault(
                        code if known else "unproven", self._kernel.name,
                        f"statement {write.statement} writes {name}, {where} {how} it in another iteration of "
                        f"{shared[-1].var.name}",
                    )  # fmt: skip

    def _meet(self, write: _TreeAccess, other: _TreeAccess, shared: tuple[Loop, ...]) -> bool:
        """Whether elements that both touch are touched in the same iteration of the `shared` loops."""
        written, touched = self._offset(write), self._offset(other)
        if not written.numel() or not touched.numel():
            return True
        low, high = int(written.min()), int(written.max())
        owner = torch.full((high - low + 1,), -1)  # the iteration that touches an element, if any
        mine = self._iteration(write, shared)
        owner[written - low] = mine
        several = owner[written - low] != mine
        if other is write:
            return not bool(several.any())
        owner[(written - low)[several]] = -2  # touched in several
        inside = (touched >= low) & (touched <= high)
        owners, its = owner[(touched - low)[inside]], self._iteration(other, shared)[inside]
        return bool(((owners == -1) | (owners == its)).all())

    # -- scratch: elements that are read were written before, in the same iteration -------------------------------

    def _scratch_findings(self, name: str, touches: list[_TreeAccess]) -> Iterator[ScheduleFault]:
        outside = [t for t in touches if not any(loop.parallel for loop in t.loops)]
        if outside and any(loop.parallel for t in touches for loop in t.loops):
            yield ScheduleFault("race", self._kernel.name, f"scratch {name} is used outside of the parallel loops")
        size = int(self._number(self._scratch[name].sizes[0], {}))
        if any(self._leaves(t, size) for t in touches if not t.guarded):
            yield ScheduleFault("outside", self._kernel.name, f"scratch {name} has {size} elements, others are used")
        for read in (t for t in touches if not t.write):
            before = [t for t in touches if t.write and t.statement < read.statement]
            if read.guarded or self._covered(read, before):
                continue
            yield ScheduleFault(
                "unwritten", self._kernel.name,
                f"statement {read.statement} reads elements of {name} that nothing wrote in that iteration",
            )  # fmt: skip

    def _leaves(self, touch: _TreeAccess, size: int) -> bool:
        offset = self._offset(touch)
        return bool(((offset < 0) | (offset >= size)).any())

    def _covered(self, read: _TreeAccess, writes: list[_TreeAccess]) -> bool:
        wanted = self._offset(read)
        missing = torch.ones(wanted.shape, dtype=torch.bool)
        for write in writes:
            if _by_data(write):
                return True  # anything may have been written
            written = self._offset(write)
            shared = _shared(write.loops, read.loops)
            span = 1 + max(int(written.max()) if written.numel() else 0, int(wanted.max()) if wanted.numel() else 0)
            have = self._iteration(write, shared) * span + written
            missing &= ~torch.isin(self._iteration(read, shared) * span + wanted, have)
        return not bool(missing.any())

    # -- enumeration ----------------------------------------------------------------------------------------------

    def _offset(self, touch: _TreeAccess) -> torch.Tensor:
        """The offset in each iteration."""
        if touch not in self._offsets:
            grid = self._grid(touch)
            shape = torch.broadcast_shapes((1,), *(v.shape for v in grid.values()))
            self._offsets[touch] = torch.as_tensor(self._number(touch.offset, grid)).expand(shape).reshape(-1)
        return self._offsets[touch]

    def _iteration(self, touch: _TreeAccess, shared: tuple[Loop, ...]) -> torch.Tensor:
        """A number for each combination of the `shared` loops' iterations, in each iteration of the touch."""
        grid = self._grid(touch)
        shape = torch.broadcast_shapes((1,), *(v.shape for v in grid.values()))
        number = torch.zeros(shape, dtype=torch.int64)
        for loop in shared:
            number = number * (self._extent(loop) + 1) + grid[loop.var]
        return number.expand(shape).reshape(-1)

    def _grid(self, touch: _TreeAccess) -> dict[Atom, torch.Tensor]:
        """The values of variables, and of indices read from memory, one dim for each."""
        data = _data(touch)
        key = (*map(id, touch.loops), *data)
        if key not in self._grids:
            ranges: dict[Atom, torch.Tensor] = {loop.var: self._iterations[id(loop)] for loop in touch.loops}
            room = MOST // max(1, math.prod(len(r) for r in ranges.values()))
            for atom in data:
                ranges[atom] = _ends(int(self._number(atom.size, {})), max(4, room))
                room //= max(1, len(ranges[atom]))
            rank = len(ranges)
            self._grids[key] = {
                atom: values.reshape([-1 if d == depth else 1 for d in range(rank)])
                for depth, (atom, values) in enumerate(ranges.items())
            }
        return self._grids[key]

    def _bound(self, loops: tuple[Loop, ...]) -> None:
        """Note the iterations to look at: all, or where they are too many, the first and last of outer loops."""
        for loop in loops:
            self._iterations.setdefault(id(loop), torch.arange(self._extent(loop)))
        for depth, loop in enumerate(loops):
            sizes = [len(self._iterations[id(x)]) for x in loops]
            if math.prod(sizes) > MOST:
                few = max(1, MOST // max(1, 2 * math.prod(sizes[:depth] + sizes[depth + 1 :])))
                ends = self._iterations[id(loop)]
                self._iterations[id(loop)] = torch.cat([ends[:few], ends[-few:]]).unique()

    def _extent(self, loop: Loop) -> int:
        return int(self._number(loop.var.extent, {}))

    def _number(self, number: Any, grid: Mapping[Atom, torch.Tensor]) -> Any:
        def leaf(atom: Any) -> Any:
            return self._sizes[atom.name] if isinstance(atom, Size) else grid[atom]

        return evaluate(
            number, leaf, lambda a, b: _choose(torch.minimum, a, b), lambda a, b: _choose(torch.maximum, a, b)
        )


def _choose(function: Any, a: Any, b: Any) -> torch.Tensor:
    return function(torch.as_tensor(a), torch.as_tensor(b))


def _sample(size: Size, position: int) -> int:
    wanted = max(_SAMPLES[position % len(_SAMPLES)], size.low or 0)
    return wanted if size.high is None else min(wanted, size.high)


def _data(touch: _TreeAccess) -> tuple[Loaded, ...]:
    """The indices read from memory that an offset depends on."""
    return tuple(dict.fromkeys(a for a in atoms(touch.offset) if isinstance(a, Loaded)))


def _by_data(touch: _TreeAccess) -> bool:
    return bool(_data(touch))


def _may_meet(write: _TreeAccess, other: _TreeAccess) -> bool:
    """Whether two touches of one element, side by side, are in the program: additions, a store by data."""
    if write.mode is not None:
        return write.mode == other.mode
    return other is write and _by_data(write)


def _ends(count: int, most: int) -> torch.Tensor:
    """All of ``range(count)``, or its first and last numbers."""
    if count <= most:
        return torch.arange(count)
    return torch.cat([torch.arange(most // 2), torch.arange(count - most // 2, count)])


def _shared(a: tuple[Loop, ...], b: tuple[Loop, ...]) -> tuple[Loop, ...]:
    depth = 0
    while depth < min(len(a), len(b)) and a[depth] is b[depth]:
        depth += 1
    return a[:depth]


def _parallel_part(loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """The loops down to the innermost parallel one."""
    last = max((depth for depth, loop in enumerate(loops) if loop.parallel), default=-1)
    return loops[: last + 1]
