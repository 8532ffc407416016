"""Work that is the last to read much memory stands where its operands are known, not after later calls.

    z  = mm(h1, w)                           z  = mm(h1, w)
    z2 = mm(h2, w)                           a[:n] = f(z)          z's memory is free for z2
    a[:n], a[n:] = f(z), f(z2)       ->      z2 = mm(h2, w)
                                             a[n:] = f(z2)

A part of a joined tensor is computed where the tensor is joined. If its operand is large, that would keep the operand
until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir.program import Buffer, Definition, Extern, Item
from .dependences import effects, order_of
from .profit import bytes_of

_MUCH = 16 << 20  # bytes, as many as fusion lets stay allocated in any case
_ROUNDS = 4  # two that read the same memory last move one after the other


def end_early(items: Sequence[Item], buffers: Mapping[str, Buffer], outputs: Sequence[str]) -> list[Item]:
    """The items of a program, in an order that frees memory before later calls."""
    found = [*items]
    if not any(isinstance(item, Extern) for item in items):
        return found
    large = {name: size for name, b in buffers.items() if b.kind == "made" and (size := bytes_of(b)) >= _MUCH}
    large = {name: size for name, size in large.items() if name not in outputs}
    for _ in range(_ROUNDS if large else 0):
        moved = _moved(found, large)
        if moved == found:
            break
        found = moved
    return found


def _moved(items: list[Item], large: Mapping[str, int]) -> list[Item]:
    all_effects = [effects(item) for item in items]
    last = {name: at for at, one in enumerate(all_effects) for name in one.reads | one.writes if name in large}
    calls = [at for at, item in enumerate(items) if isinstance(item, Extern)]
    keys: list[tuple[int, ...]] = []
    for at, before in enumerate(order_of(all_effects)):
        keys.append((at,))
        one, item = all_effects[at], items[at]
        freed = {name for name in one.reads - one.writes if last.get(name) == at}
        made = sum(large.get(name, 0) for name in one.writes)
        if not isinstance(item, Definition) or sum(large[name] for name in freed) <= made or not before:
            continue
        after = max(keys[other] for other in before)
        if any(after < keys[call] for call in calls if call < at):
            keys[at] = (*after, at)
    return [items[at] for at in sorted(range(len(items)), key=keys.__getitem__)]


__all__ = ["end_early"]
