"""Equality of sizes and numbers that may be symbolic: proven, refuted, or true under a guard.

A guard is an assumption that the compiled program rests on: evaluating it makes Dynamo check it before each later call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, statically_known_true

from . import compat

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
Undecided = GuardOnDataDependentSymNode
"""Raised where Python asks whether something holds for a number that is known only when the program runs."""


def known(condition: Any) -> bool:
    """Whether a condition holds for every value of its symbols, with no guard added."""
    return statically_known_true(condition) if isinstance(condition, torch.SymBool) else bool(condition)


def known_equal(a: Any, b: Any) -> bool:
    """Whether two numbers are equal for every value of their symbols, with no guard added."""
    if type(a) is int and type(b) is int:  # most are
        return a == b
    if isinstance(a, SYMBOLIC) or isinstance(b, SYMBOLIC):
        return known(a == b) or _neither_is_less(a, b)
    return bool(a == b)


def _neither_is_less(a: Any, b: Any) -> bool:
    """Whether guards hold two sizes equal by their order: torch does not put one and the other together."""
    if not isinstance(a, torch.SymInt) or not isinstance(b, torch.SymInt) or not holds_on_example(a, b):
        return False
    return known(a <= b) and known(a >= b)


def same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are known to be equal, size by size."""
    return len(a) == len(b) and all(map(_same_size, a, b))


def _same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal: of two that guards hold to 1, torch does not always see that."""
    return known_equal(a, b) or (not concrete(a) and not concrete(b) and known_equal(a, 1) and known_equal(b, 1))


def hint(value: Any) -> Any:
    """The number itself, or the example value behind a symbolic one; None where there is no example.

    The lengths of a nested tensor's rows are one size, which is no number.
    """
    if type(value) is int or not isinstance(value, SYMBOLIC):
        return value
    node = value.node
    return node.hint if node.has_hint() and not node.is_nested_int() else None


def symbols_of(value: Any) -> frozenset[Any]:
    """The symbols of a number; none of one that is known, or that stands for the lengths of a nested tensor's rows."""
    expression = getattr(value.node, "expr", None) if isinstance(value, SYMBOLIC) else None
    return frozenset() if expression is None else frozenset(expression.free_symbols)


def holds_on_example(a: Any, b: Any) -> bool:
    """Whether two numbers are equal on the example inputs, so that a guard could assume it."""
    left, right = hint(a), hint(b)
    return left is not None and left == right


def equal_under_guard(a: Any, b: Any) -> bool:
    """Whether two numbers are always equal, or equal on the example with a guard that holds later calls to it.

    No where guards are not taken any more: a backward that is compiled when it first runs comes after them.
    """
    if known_equal(a, b) or not holds_on_example(a, b):
        return known_equal(a, b)
    return all(compat.takes_guards(x.node.shape_env) for x in (a, b) if isinstance(x, SYMBOLIC)) and bool(a == b)


def lies_under_guard(value: torch.SymInt | torch.SymFloat, least: float, greatest: float) -> bool:
    """Whether a number lies between two others on the example, with a guard that holds later calls to it."""
    example = hint(value)
    if example is None or not least <= example <= greatest or not compat.takes_guards(value.node.shape_env):
        return False
    return bool(value >= least) and bool(value <= greatest)


def assume(equalities: Iterable[tuple[Any, Any]]) -> None:
    """Emit a guard for each equality; it must hold on the example."""
    for a, b in equalities:
        held = bool(a) is b if isinstance(a, torch.SymBool) else known_equal(a, b) or bool(a == b)
        if not held:
            raise AssertionError(f"assumed {a} == {b}, which does not hold on the example inputs")


def concrete(value: Any) -> bool:
    """Whether a number has no symbols."""
    return not isinstance(value, SYMBOLIC)


def product(sizes: Iterable[Any]) -> Any:
    """The product of sizes, symbolic where one of them is."""
    result: Any = 1
    for size in sizes:
        result = result * size
    return result
