"""Contraction: buffers that one kernel alone uses shrink to scratch or vanish.

    for i: for j: t[768*i + j] = ...            for i: for j: t[j] = ...            (t: scratch of 768)
           for j: u[..] = f(t[768*i + j])   ->         for j: u[..] = f(t[j])

No memory is needed at all if the reading statement stands in the very loop body that stores: the load becomes the
value stored, and equal values are one node, computed once. Values in scratch, and values
that vanish, are not rounded to 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..ir.index.index import Index, add, mul
from ..ir.program import Buffer
from ..ir.value import compute_dtype
from .affine import OPAQUE, digits, variables_of
from .groups import AxisAccess, Member
from .loop_tree import Nest, Tree, leaves
from .target import CPU, Target

Path = tuple[Nest, ...]
Touch = tuple[int, Path, Member, AxisAccess]


@dataclass(frozen=True)
class Contraction:
    """How a buffer that is local to a kernel shrinks to the memory of one iteration.

    Args:
        scratch: the buffer that holds the values.
        base: the part of offsets that is dropped: the loops around all uses account for it.
    """

    scratch: Buffer
    base: Any


@dataclass(frozen=True)
class Forwarding:
    """Loads that may become the value stored, if nothing that the value reads is overwritten in between.

    Args:
        until: number of the last member that such loads stand in.
        all_in_body: whether all loads of the buffer stand in the loop body that stores, at the element stored.
        all_inside: whether all stand there or in loops inside of it.
    """

    until: int
    all_in_body: bool
    all_inside: bool


def touches_of(trees: Sequence[Tree]) -> dict[str, list[Touch]]:
    """Every touch of every buffer, in order."""
    found: dict[str, list[Touch]] = {}
    for number, (path, member) in enumerate(leaves(trees)):
        for access in member.accesses:
            found.setdefault(access.buffer, []).append((number, path, member, access))
    return found


def contractions(
    touches: Mapping[str, list[Touch]], buffers: Mapping[str, Buffer], local: frozenset[str], target: Target = CPU
) -> dict[str, Contraction]:
    """The `local` buffers of a kernel that can be scratch."""
    found, room = {}, target.scratch_bytes
    serial = not any(nest.parallel for all_of_one in touches.values() for _, path, _, _ in all_of_one for nest in path)
    for name in sorted(local & touches.keys()):
        made = _scratch(buffers[name], touches[name], serial, target.scratch)
        if made is not None and (taken := made.scratch.sizes[0] * made.scratch.dtype.itemsize) <= room:
            found[name], room = made, room - taken
    return found


def forward_of(touches: list[Touch]) -> Forwarding | None:
    """The loads of a buffer that may become the value stored; None where there are none."""
    stores = [t for t in touches if t[3].write]
    if len(stores) != 1:
        return None
    at, path, member, access = stores[0]
    if any(s.mode is not None for s in member.definition.stores):
        return None
    if OPAQUE in variables_of(access.offset):  # offsets that depend on data are not over axes throughout
        return None
    loads = [t for t in touches if not t[3].write]
    inside = [t for t in loads if t[0] > at and t[1][: len(path)] == path and t[3].offset == access.offset]
    if loads and not inside:
        return None
    all_inside = len(inside) == len(loads)
    last = max((t[0] for t in inside), default=at)
    return Forwarding(last, all_inside and all(t[1] == path for t in inside), all_inside)


def _scratch(buffer: Buffer, touches: list[Touch], serial: bool, most: int) -> Contraction | None:
    """Memory for one iteration of the loops around all touches; for the whole kernel if the buffer is `serial`."""
    around = _common([path for _, path, _, _ in touches])
    fixed = frozenset(nest.axis for nest in around)
    parts = [_parted(access.offset, fixed) for _, _, _, access in touches]
    if not (around or serial) or None in parts or len({part[0] for part in parts}) > 1:  # type: ignore[index]
        return None
    spans = [part[1:] for part, touch in zip(parts, touches, strict=True) if touch[3].write]  # type: ignore[index]
    lows, highs = [low for low, _ in spans], [high for _, high in spans]
    if not spans or any(isinstance(end, Index) for end in (*lows, *highs)):
        return None
    size = max(highs) - min(lows) + 1
    if not 0 < size <= most:
        return None
    made = replace(buffer, dtype=compute_dtype(buffer.dtype), sizes=(size,), strides=(1,), kind="made")
    return Contraction(made, add(parts[0][0], min(lows)))  # type: ignore[index]


def _common(paths: Sequence[Path]) -> Path:
    shortest = min(paths, key=len)
    for depth, nest in enumerate(shortest):
        if any(path[depth] is not nest for path in paths):
            return shortest[:depth]
    return shortest


def _parted(offset: Any, fixed: frozenset[Any]) -> tuple[Any, Any, Any] | None:
    """The part of an offset that loops `fixed` account for, and the range of the rest; None where they mix."""
    seen = digits(offset)
    base: Any = 0
    low = high = seen.constant
    for digit in seen.digits:
        if digit.variables and digit.variables <= fixed:
            base = add(base, mul(digit.stride, Index(((digit.monomial, 1),))))
        elif digit.variables & fixed or digit.reach is None or isinstance(digit.stride, Index):
            return None
        else:
            first, last = digit.stride * digit.low, digit.stride * (digit.low + digit.reach)
            first, last = (last, first) if digit.stride < 0 else (first, last)
            low, high = add(low, first), add(high, last)
    return base, low, high
