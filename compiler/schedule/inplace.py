"""The buffers that may share memory: a kernel's results may take the place of its operands, element by element.

for k: y[k] = x[k] + 1      y may be x, if x is dead afterwards
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..ir.kernel import Assign, Fold, Kernel, Loop, Statement
from ..ir.program import Buffer
from ..ir.value import Load, walk
from .kernels import values_of

Place = tuple[int, ...]


@dataclass(frozen=True)
class _BodyAccess:
    """A read or write: the body that it stands in (a path of statement numbers), the statement, the index."""

    body: Place
    statement: int
    index: object
    write: bool


def overwrites(kernel: Kernel) -> tuple[tuple[str, str], ...]:
    """Pairs (written buffer, read buffer) that may be one piece of memory if the read one is not needed afterwards.

    Every load of the read buffer stands in the body that stores the written one, not after the store, at the element
    stored. Element sizes and layouts are equal. Of parts that run side by side, no other may touch either.
    """
    if kernel.parts:
        users = Counter(p.buffer.name for part in kernel.parts for p in part.params)
        found = [pair for part in kernel.parts for pair in overwrites(part)]
        return tuple((new, old) for new, old in found if users[new] == users[old] == 1)
    touches: dict[str, list[_BodyAccess]] = {}
    for name, touch in _touches(kernel.body, ()):
        touches.setdefault(name, []).append(touch)
    written = [p.buffer for p in kernel.params if p.access == "write"]
    read = [p.buffer for p in kernel.params if p.access == "read"]
    return tuple(
        (w.name, r.name) for w in written for r in read if _alike(w, r) and _in_step(touches[w.name], touches[r.name])
    )


def _alike(w: Buffer, r: Buffer) -> bool:
    return (
        w.dtype.itemsize == r.dtype.itemsize
        and (w.sizes, w.strides, w.device) == (r.sizes, r.strides, r.device)
        and not w.scalar
        and not r.scalar
    )


def _in_step(stores: list[_BodyAccess], loads: list[_BodyAccess]) -> bool:
    if len(stores) != 1:
        return False
    store = stores[0]
    return all(t.body == store.body and t.statement <= store.statement and t.index == store.index for t in loads)


def _touches(body: tuple[Statement, ...], place: Place) -> Iterator[tuple[str, _BodyAccess]]:
    for number, statement in enumerate(body):
        if isinstance(statement, (Loop, Fold)):
            yield from _touches(statement.body, (*place, number))
            continue
        for value in walk(values_of(statement)):
            if isinstance(value, Load):
                yield value.buffer, _BodyAccess(place, number, value.indices, False)
        if isinstance(statement, Assign):
            store = statement.store
            yield store.buffer, _BodyAccess(place, number, store.indices, True)
