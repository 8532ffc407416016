"""Named dims: ``"B H S D"`` on one operand and ``"B H T D"`` on another must agree on B, H and D.

``...`` stands for any number of leading dims. Sizes may be symbolic: equal for all values, unequal, or equal on the
example, in which case the match rests on a guard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .pattern import PatternError
from .symbolic import holds_on_example, known_equal


@dataclass(frozen=True)
class DimSpec:
    """The named trailing dims of one operand; `open` where leading dims are free."""

    names: tuple[str, ...]
    open: bool

    @classmethod
    def parse(cls, text: str) -> DimSpec:
        """Read ``"B H S D"`` or ``"... S D"``; a number is a fixed size.

        Raises:
            PatternError: ``...`` stands elsewhere than in front, or a name is no identifier.
        """
        names = text.split()
        is_open = bool(names) and names[0] == "..."
        names = names[1:] if is_open else names
        for name in names:
            if not (name.isidentifier() or name.isdigit()):
                raise PatternError(
                    f"dims {text!r}: {name!r} is neither a name nor a size, and '...' may stand in front only"
                )
        return cls(tuple(names), is_open)

    def __str__(self) -> str:
        return " ".join((("...",) if self.open else ()) + self.names)


@dataclass(frozen=True)
class Mismatch:
    """Two sizes that had to agree and do not."""

    expected: str
    found: str


def unify(
    spec: DimSpec, shape: Sequence[Any], bound: dict[str, Any]
) -> Mismatch | tuple[dict[str, Any], tuple[tuple[Any, Any], ...]]:
    """Bind the names of `spec` to the sizes of `shape`.

    Returns:
        The bindings, extended, and the equalities to assume under a guard; or the first mismatch.
    """
    count = len(spec.names)
    if len(shape) < count or (len(shape) > count and not spec.open):
        return Mismatch(f"dims ({spec})", f"{len(shape)} dims")
    sizes, assumed = dict(bound), []
    for name, size in zip(spec.names, shape[len(shape) - count :], strict=True):
        known = int(name) if name.isdigit() else sizes.setdefault(name, size)
        if known_equal(known, size):
            continue
        if not holds_on_example(known, size):
            return Mismatch(f"{name} = {known}", str(size))
        assumed.append((known, size))
    return sizes, tuple(assumed)
