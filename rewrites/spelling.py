"""Terms of patterns that were traced on their samples (see `traced.py`): what they say of operands, sizes and numbers.

    def pattern(x, c):                       with x: T("B S D"), c = 8.0:
        return x.flatten(1) / c              mul(reshape(x: B S D, [B, D*S]), 1/c)

A recorded pattern is one term for operands of any rank. A traced one holds for the ranks and dtypes of its sample; all
spellings of one pattern are the alternatives of one `Spellings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from . import compat
from .dims import DimSpec
from .pattern import HIDDEN, Choice, Term, Variable

SPELLING = f"{HIDDEN}spelling"
DTYPE = f"{HIDDEN}dtype"


@dataclass(frozen=True, eq=False)
class OperandTerm(Term):
    """An operand as its sample has it.

    Args:
        variable: what it binds.
        dims: its dims; equal names are equal sizes.
        dtypes: that it may have.
        follows: it has the dtype of all others that follow.
    """

    variable: Variable
    dims: DimSpec
    dtypes: frozenset[torch.dtype]
    follows: bool

    def _parts(self) -> list[Any]:
        return [self.variable]

    def __repr__(self) -> str:
        return repr(self.variable)


_UNDONE: Mapping[str, Callable[[Any], Any]] = {
    "": lambda value: value,
    "-": lambda value: -value,
    "1/": lambda value: 1 / value,
    "-1/": lambda value: -1 / value,
}
"""What normal form makes of a number; each undoes itself."""


def made_of(before: Any, after: Any, given: tuple[Any, Any]) -> str | None:
    """How two constants follow from the two values of a number that they were traced with; None where they do not."""
    for how, undo in _UNDONE.items():
        if how and not all(type(v) in (int, float) and v for v in (*given, before, after)):
            continue
        if _equal(undo(before), given[0]) and _equal(undo(after), given[1]):
            return how
    return None


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return list(a) == list(b)
    if isinstance(a, bool) is not isinstance(b, bool):
        return False
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) <= 1e-9 * max(abs(a), abs(b))
    return type(a) is type(b) and bool(a == b)


@dataclass(frozen=True, eq=False)
class NumberTerm(Term):
    """A number of the pattern, or what normal form makes of it: ``div(x, c)`` is ``mul(x, 1/c)``."""

    variable: Variable
    how: str = ""

    def _parts(self) -> list[Any]:
        return [self.variable]

    def undone(self, value: Any) -> Any:
        """The variable's value where `value` is found; None where no plain number is."""
        if not self.how:
            return value
        return _UNDONE[self.how](value) if type(value) in (int, float) and value else None

    def __repr__(self) -> str:
        return f"{self.how}{self.variable}"


@dataclass(frozen=True, eq=False)
class Sized(Term):
    """A number that follows from sizes of operands: ``B*S``, ``D**-0.5``.

    Args:
        expression: of the symbols.
        names: the dim that each symbol is the size of, as operands bind it.
    """

    expression: Any
    names: Mapping[Any, str]

    def value(self, dims: Mapping[str, Any]) -> Any:
        """The number under these sizes.

        Raises:
            KeyError: one of them is not known yet.
        """
        return compat.evaluated(self.expression, {symbol: dims[name] for symbol, name in self.names.items()})

    def __repr__(self) -> str:
        names = {symbol: name.removeprefix(HIDDEN) for symbol, name in self.names.items()}
        return str(self.expression.xreplace({s: type(s)(n) for s, n in names.items()}))


@dataclass(frozen=True)
class Facts:
    """The facts that hold where a spelling is taken.

    Args:
        tags: the alternatives of the pattern that it was traced with.
        fixed: numbers that it was traced with and does not show; it holds for these alone.
        conditions: on sizes, which tracing has assumed.
    """

    tags: tuple[tuple[str, str], ...] = ()
    fixed: tuple[tuple[str, Any], ...] = ()
    conditions: tuple[Sized, ...] = ()


@dataclass(frozen=True, eq=False)
class Spellings(Choice):
    """A pattern as it was recorded, and as it was traced on its samples."""

    facts: Mapping[str, Facts] = field(default_factory=dict)
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return repr(self.options[0][1])
