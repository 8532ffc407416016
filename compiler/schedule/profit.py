"""Does fusing two groups pay? Profit alone; whether it is allowed is `legality`'s question.

The score is the memory traffic saved, in bytes: a buffer that one writes and the other reads need not be read back, and
where nobody else wants it, not be written; one that both read is read once. Of equal scores the nearer in order wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..ir.index.bounds import bounds
from ..ir.index.index import Index, Least, Most, Quotient, Remainder, Size, atoms, evaluate, mul
from ..ir.program import Buffer
from .groups import Group

_GUESS = 256  # for symbolic sizes without an upper bound
_TRUSTED = 1 << 20  # an upper bound below this is taken for the size itself
_LEAST = 4096  # bytes of shared reads below which sharing them is not worth a fusion


_EXAMPLES: ContextVar[Mapping[str, int]] = ContextVar("examples")


@contextmanager
def guessing(examples: Mapping[str, int]) -> Iterator[None]:
    """Within the block, estimates use the sizes of an example, by name."""
    token = _EXAMPLES.set(examples)
    try:
        yield
    finally:
        _EXAMPLES.reset(token)


def bytes_of(buffer: Buffer) -> int:
    """How much memory a buffer covers, symbolic sizes guessed."""
    total: Any = buffer.dtype.itemsize
    for size, stride in zip(buffer.sizes, buffer.strides, strict=True):
        total = mul(total, size if stride != 0 else 1)
    return guess(total)


def guess(number: Any) -> int:
    """An index of sizes as an integer, for estimates."""
    if not isinstance(number, Index):
        return int(number)
    examples = _EXAMPLES.get({})
    if examples and all(isinstance(atom, Size) and atom.name in examples for atom in _leaves(number)):
        return max(0, int(evaluate(number, lambda atom: examples[atom.name])))  # type: ignore[attr-defined]
    low, high = bounds(number)
    if high is not None and high < _TRUSTED:
        return high
    return max(low or 0, _GUESS**2)


def _leaves(number: Index) -> Iterator[Any]:
    """The atoms of an index that are not computed from others."""
    return (atom for atom in atoms(number) if not isinstance(atom, (Quotient, Remainder, Least, Most)))


def score_fusion(
    a: Group, b: Group, weights: Mapping[str, int], users: Mapping[str, frozenset[int]], kept: frozenset[str]
) -> int:
    """Bytes of traffic that fusing saves; 0 where it does not pay.

    Args:
        a: one group.
        b: the other.
        weights: bytes of each buffer.
        users: by buffer, the keys of the groups and calls that touch it.
        kept: buffers that must exist whatever is fused.
    """
    both = frozenset((a.key, b.key))
    saved = shared_reads = 0
    writes_a, writes_b = written(a), written(b)
    for name in touched(a) & touched(b):
        if name not in writes_a and name not in writes_b:
            shared_reads += weights[name]
            continue
        saved += weights[name]
        if name not in kept and users[name] <= both:
            saved += weights[name]
    return saved + (shared_reads if saved or shared_reads >= _LEAST else 0)


def touched(group: Group) -> frozenset[str]:
    """The buffers that a group reads or writes."""
    return frozenset(name for m in group.members for name in m.touched)


def written(group: Group) -> frozenset[str]:
    """The buffers that a group writes."""
    return frozenset(a.buffer for m in group.members for a in m.accesses if a.write)
