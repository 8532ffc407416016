"""Facts of elementwise calls: run on one number where operands are uniform, on two where they are choices.

1 - tril(ones)        ->  Choice([i - j >= 0], 0, 1)       the call on 1 and on 0
arange[None] <= arange[:, None] + 3   ->  Choice([i + 3 - j >= 0], True, False)
logical_and(x, False) ->  Uniform(False)                   whatever the booleans of x are
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..effects import wants_gradient
from ..graph import arguments, dtype, is_tensor, op_name, rank, shape, val
from .evaluate import converted, number_of
from .fact import (
    REAL,
    Conditional,
    Fact,
    Number,
    Positions,
    Uniform,
    ends,
    fits,
    make_choice,
    make_positions,
    same_number,
)
from .sources import INTEGER, Read, full

_MOST_GROUPS = 3
_EXACT_IN_FLOAT = 1 << 8  # integers below are numbers of every floating dtype, and so are the next ones

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

# Rounded in one way only, on every machine.
EXACT = tuple(
    f"aten.{name}"
    for name in (
        *COMPARISONS, "add", "sub", "rsub", "mul", "neg", "abs", "logical_and", "logical_or", "logical_xor",
        "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "__and__", "__or__", "__xor__",
        "__invert__", "where", "masked_fill", "floor", "ceil", "trunc", "round", "isnan", "isinf", "isfinite",
        "nan_to_num", "square",
    )
)  # fmt: skip
# Of the two zeros either may come out, in different lanes of one tensor even.
_EITHER_ZERO = (
    "aten.minimum",
    "aten.maximum",
    "aten.clamp",
    "aten.clamp_min",
    "aten.clamp_max",
    "aten.relu",
    "aten.sign",
)
# On CPUs as IEEE has it; on GPUs perhaps a product with a reciprocal.
_EXACT_ON_CPU = ("aten.div", "aten.sqrt", "aten.reciprocal")
# Whose last bits depend on who computes them.
_ROUNDED = (
    "aten.rsqrt", "aten.exp", "aten.log", "aten.pow", "aten.tanh", "aten.sigmoid", "aten.sin", "aten.cos", "aten.exp2",
    "aten.log2",
)  # fmt: skip


def is_exact(node: fx.Node) -> bool:
    """Whether every machine computes the same bits, given the same operands."""
    name, given = op_name(node), arguments(node)
    if given.get("alpha", 1) != 1 or given.get("rounding_mode") is not None:
        return False
    if name in _EITHER_ZERO:
        return not dtype(node).is_floating_point
    return name in EXACT or (name in _EXACT_ON_CPU and val(node).device.type == "cpu")


def elementwise(node: fx.Node, read: Read) -> Fact | None:
    """The fact on the result of an elementwise call."""
    if dtype(node) not in REAL or (op_name(node) == "aten.div" and not dtype(node).is_floating_point):
        return None
    selected = _selected(node, read)
    if selected is not None:
        return selected
    facts = {n: read(n) for n in node.all_input_nodes}
    if any(isinstance(f, Positions) for f in facts.values()) or not all(map(is_tensor, facts)):
        return _of_positions(node, read)
    cases = _Cases.of(node, facts)
    return None if cases is None else cases.result()


def _selected(node: fx.Node, read: Read) -> Fact | None:
    """where(True, x, y), masked_fill(x, False, v)  ->  what is known of x, where it needs no cast."""
    name, args = op_name(node), node.args
    if name not in ("aten.where", "aten.masked_fill") or len(args) != 3:
        return None
    flags = read(args[0] if name == "aten.where" else args[1])
    if not isinstance(flags, Uniform):
        return None
    yes, no = (args[1], args[2]) if name == "aten.where" else (args[2], args[0])
    chosen, other = (yes, no) if flags.number else (no, yes)
    if takes_gradient(other, read):
        return None
    if not is_tensor(chosen):
        return full(node, chosen)
    fact = read(chosen)
    if dtype(chosen) != dtype(node):  # type: ignore[arg-type]
        if not isinstance(fact, Uniform):
            return None
        held = converted(fact.number, dtype(chosen), dtype(node))  # type: ignore[arg-type]
        return None if held is None else Uniform(held, fact.exact)
    return _broadcast(fact, node)


def takes_gradient(value: Any, read: Read) -> bool:
    """Whether gradients may flow into a value: not where it is known to be constant."""
    return is_tensor(value) and wants_gradient(value) and read(value) is None


def _broadcast(fact: Fact | None, node: fx.Node) -> Fact | None:
    if isinstance(fact, Positions):
        aligned = fact.aligned(rank(node))
        return make_positions(aligned.offset, aligned.steps, val(node))
    if isinstance(fact, Conditional):
        return make_choice(_conditions(fact, node), fact.yes, fact.no, shape(node), fact.exact)
    return fact if isinstance(fact, Uniform) else None


def _conditions(fact: Conditional, node: fx.Node) -> tuple[Positions, ...]:
    return tuple(c.aligned(rank(node)) for c in fact.conditions)


@dataclass
class _Cases:
    """The truth values on which the operands of a call depend: of conditions, and of booleans that are not known."""

    node: fx.Node
    exact: bool
    groups: list[tuple[Positions, ...]] = field(default_factory=list)
    numbers: dict[fx.Node, Callable[[tuple[bool, ...]], Number]] = field(default_factory=dict)
    free: list[fx.Node] = field(default_factory=list)

    @classmethod
    def of(cls, node: fx.Node, facts: Mapping[fx.Node, Fact | None]) -> _Cases | None:
        made = cls(node, is_exact(node))
        for operand, fact in facts.items():
            if not made._add(operand, fact):
                return None
        nothing = bool(made.free) and not made.numbers and len(made.free) == len(node.args)
        return None if nothing or len(made.groups) + len(made.free) > _MOST_GROUPS else made

    def _add(self, operand: fx.Node, fact: Fact | None) -> bool:
        if isinstance(fact, Uniform):
            self.numbers[operand] = lambda truth: fact.number
        elif isinstance(fact, Conditional):
            place = self._group(_conditions(fact, self.node))
            self.numbers[operand] = lambda truth: fact.yes if truth[place] else fact.no
        elif dtype(operand) == torch.bool:
            self.free.append(operand)
        else:
            return False
        self.exact = self.exact and getattr(fact, "exact", True)
        return True

    def _group(self, conditions: tuple[Positions, ...]) -> int:
        for place, known in enumerate(self.groups):
            if len(known) == len(conditions) and all(a.same(b) for a, b in zip(known, conditions, strict=True)):
                return place
        self.groups.append(conditions)
        return len(self.groups) - 1

    def result(self) -> Fact | None:
        results = self._results()
        if results is None:
            return None
        used = [g for g in range(len(self.groups)) if _matters(results, g)]
        if not used:
            return Uniform(next(iter(results.values())), self.exact)
        chosen = {tuple(truth[g] for g in used): number for truth, number in results.items()}
        return self._choice([self.groups[g] for g in used], chosen)

    def _results(self) -> dict[tuple[bool, ...], Number] | None:
        """The result for each truth of the groups; None where it depends on booleans that are not known."""
        results: dict[tuple[bool, ...], Number] = {}
        for truth in itertools.product((True, False), repeat=len(self.groups) + len(self.free)):
            number = number_of(self.node, self._case(truth))
            key = truth[: len(self.groups)]
            if number is None or not same_number(results.setdefault(key, number), number):
                return None
        return results

    def _case(self, truth: tuple[bool, ...]) -> dict[fx.Node, Number]:
        case = {operand: number(truth) for operand, number in self.numbers.items()}
        return case | dict(zip(self.free, truth[len(self.groups) :], strict=True))

    def _choice(self, groups: list[tuple[Positions, ...]], results: dict[tuple[bool, ...], Number]) -> Fact | None:
        """One number where all conditions hold or fail as told, another everywhere else."""
        for truth, yes in results.items():
            others = [number for other, number in results.items() if other != truth]
            if not all(same_number(number, others[0]) for number in others):
                continue
            conditions: list[Positions] = []
            for group, holds in zip(groups, truth, strict=True):
                if not holds and len(group) > 1:
                    break
                conditions += group if holds else [group[0].negated()]
            else:
                return make_choice(conditions, yes, others[0], shape(self.node), self.exact)
        return None


def _matters(results: Mapping[tuple[bool, ...], Number], group: int) -> bool:
    """Whether a result changes with the truth of one group."""
    return any(
        not same_number(number, results[(*truth[:group], not truth[group], *truth[group + 1 :])])
        for truth, number in results.items()
    )


def _of_positions(node: fx.Node, read: Read) -> Fact | None:
    """Sums, multiples and comparisons of positions and integers."""
    name, given = op_name(node).removeprefix("aten."), arguments(node)
    operands = list(given.values())
    if name == "neg":
        operands.append(0)
    if len(operands) < 2:
        return None
    a, b = (_positions(x, node, read) for x in operands[:2])
    if a is None or b is None:
        return None
    if name in COMPARISONS:
        return _compared(name, a, b, node) if _compares_integers(a, b, node) else None
    alpha = val(given.get("alpha", 1))
    if not isinstance(alpha, INTEGER) or dtype(node).is_floating_point:
        return None
    new = _combined(name, a, b, alpha)
    return None if new is None else make_positions(new.offset, new.steps, val(node))


def _combined(name: str, a: Positions, b: Positions, alpha: Any) -> Positions | None:
    if name in ("add", "sub"):
        return a.plus(b, alpha if name == "add" else -alpha)
    if name == "rsub":
        return b.plus(a, -alpha)
    if name == "neg":
        return b.plus(a, -1)
    if name == "mul":
        for x, factor in ((a, b), (b, a)):
            if all(isinstance(s, int) and s == 0 for s in factor.steps):
                return Positions(0, (0,) * len(x.steps)).plus(x, factor.offset)
    return None


def _positions(operand: Any, node: fx.Node, read: Read) -> Positions | None:
    """An operand as positions in the result: integers that are known, or an integer number."""
    fact, zeros = None, (0,) * rank(node)
    if is_tensor(operand):
        fact = read(operand)
        if isinstance(fact, Positions):
            return fact.aligned(rank(node))
        if not isinstance(fact, Uniform):
            return None
    number = fact.number if isinstance(fact, Uniform) else val(operand)
    if isinstance(number, float) and number.is_integer() and abs(number) < _EXACT_IN_FLOAT:
        number = int(number) if op_name(node).removeprefix("aten.") in COMPARISONS else None
    return Positions(int(number) if isinstance(number, bool) else number, zeros) if _is_integer(number) else None


def _compares_integers(a: Positions, b: Positions, node: fx.Node) -> bool:
    """Whether no number wraps around where one side is brought to the other's dtype."""
    narrow = [dtype(n) for n in node.all_input_nodes if is_tensor(n) and dtype(n) not in (torch.int64, torch.bool)]
    limits = [end for p in (a, b) for end in ends(p, shape(node)) or (None,)]
    return all(end is not None and fits(end, kind) for kind in narrow for end in limits if not kind.is_floating_point)


def _is_integer(number: Any) -> bool:
    return isinstance(number, INTEGER)


def _compared(name: str, a: Positions, b: Positions, node: fx.Node) -> Fact:
    """`a <= b` is b - a >= 0, `a < b` is not b <= a, `a == b` is both a <= b and b <= a."""
    less, more = b.plus(a, -1), a.plus(b, -1)
    conditions = {
        "le": [less], "gt": [less], "ge": [more], "lt": [more], "eq": [less, more], "ne": [less, more],
    }[name]  # fmt: skip
    yes = name in ("le", "ge", "eq")
    return make_choice(conditions, yes, not yes, shape(node))


ELEMENTWISE = dict.fromkeys((*EXACT, *_EITHER_ZERO, *_EXACT_ON_CPU, *_ROUNDED), elementwise)
