"""Affine offsets: an offset in memory as digits times strides, and which iterations meet at one element.

    98304*b + 768*i + j + 5   ->   digits b (98304), i (768), j (1), constant 5

All dependence questions of the scheduler come down to `separate`: can two accesses touch one element in different
iterations of a loop that they share?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cmp_to_key, lru_cache
from itertools import pairwise
from typing import Any

from ..ir.index.bounds import bounds, known_le, known_lt, known_nonnegative
from ..ir.index.index import Atom, Index, Loaded, Monomial, Size, Var, add, atoms, from_terms, mul, substitute, terms
from ..ir.index.positive import assuming_iterations

Number = Any  # int | Index
OPAQUE = Var("?", 1)  # stands among a digit's variables for data read from memory


@dataclass(frozen=True)
class Digit:
    """One term of an offset: ``stride * monomial``.

    Args:
        stride: integer or index of sizes.
        monomial: the atoms multiplied, sizes left out.
        variables: the loop variables in it; `OPAQUE` among them where it depends on data.
        low: the least that the monomial can be.
        reach: the most it can exceed that by; None: unbounded.
    """

    stride: Number
    monomial: Monomial
    variables: frozenset[Var]
    low: int
    reach: Number


@dataclass(frozen=True)
class Offset:
    """An offset in digits: ``constant + sum of digits``."""

    constant: Number
    digits: tuple[Digit, ...]

    def stride(self, var: Var) -> Number:
        """The step of a variable that occurs as a digit of its own; 0 where it does not occur so."""
        return next((d.stride for d in self.digits if d.monomial == (var,)), 0)


@lru_cache(maxsize=1 << 16)
def digits(offset: Number) -> Offset:
    """An offset in digits, terms of one monomial together."""
    constant: Number = 0
    strides: dict[Monomial, dict[Monomial, int]] = {}
    for monomial, coefficient in terms(offset):
        rest = tuple(a for a in monomial if _varies(a))
        sizes = tuple(a for a in monomial if not _varies(a))
        if rest:
            strides.setdefault(rest, {})[sizes] = coefficient
        else:
            constant = add(constant, from_terms({sizes: coefficient}))
    found = [_digit(from_terms(stride), monomial) for monomial, stride in strides.items()]
    return Offset(constant, tuple(found))


@lru_cache(maxsize=1 << 12)
def _varies(atom: Atom) -> bool:
    """Whether an atom is anything but a size, or computed from sizes alone."""
    return not isinstance(atom, Size) and bool(variables_of(Index((((atom,), 1),))))


def _digit(stride: Number, monomial: Monomial) -> Digit:
    if len(monomial) == 1 and isinstance(monomial[0], Var):
        return Digit(stride, monomial, frozenset(monomial), 0, add(monomial[0].extent, -1))  # type: ignore[arg-type]
    number = Index(((monomial, 1),))
    low, high = bounds(number)
    reach = None if low is None or high is None else high - low
    return Digit(stride, monomial, variables_of(number), low or 0, reach)


@lru_cache(maxsize=1 << 16)
def variables_of(number: Number) -> frozenset[Var]:
    """The loop variables in an index; `OPAQUE` among them where it depends on data."""
    return frozenset(OPAQUE if isinstance(a, Loaded) else a for a in atoms(number) if isinstance(a, (Var, Loaded)))


@lru_cache(maxsize=1 << 16)
def separate(a: Number, b: Number, var: Var, fixed: frozenset[Var]) -> bool:
    """Whether accesses at offsets `a` and `b` can only meet in one element in the same iteration of `var`.

    Loops `fixed` enclose both and are in the same iteration; all other variables are free, each access its own. The
    proof is that of mixed radix numbers: from the largest stride down, each digit outweighs all smaller ones together.

        separate(768*i + j, 768*i + k, i, {})  where j, k < 768    ->  True
        separate(768*i + j, 768*i + k, j, {i})                     ->  False: k is free
        separate(768*i + j, 768*i + k + 256, j, {i})  where j, k < 256     ->  True: they never meet
        separate(64*i + j, 64*i + k + 32, j, {})      where j, k < 32      ->  True: their rests differ
    """
    (a, b), (var, *rest) = assuming_iterations((a, b), (var, *fixed))
    if _separate(a, b, var, frozenset(rest)):
        return True
    longer = _rounded_up((a, b))
    if not longer:
        return False
    a, b = (substitute(side, {v: new.index() for v, new in longer.items()}) for side in (a, b))
    return _separate(a, b, longer.get(var, var), frozenset(longer.get(v, v) for v in rest))


def _rounded_up(offsets: Iterable[Number]) -> dict[Var, Var]:
    """Loops as long as the dims that they go through, as strides tell: a bound for more iterations holds for fewer.

    2*q*i + j, j < (s + 1)//2, q = (s + 3)//4    ->    j < 2*q
    """
    found: dict[Var, Var] = {}
    for offset in offsets:
        steps = {d.monomial[0]: d.stride for d in digits(offset).digits if len(d.monomial) == 1}
        for var, step in steps.items():
            if not isinstance(var, Var) or not isinstance(var.extent, Index):
                continue
            dims = [n for other in steps.values() if (n := _ratio(other, step)) is not None and at_most(var.extent, n)]
            least = next((n for n in dims if all(at_most(n, other) for other in dims)), var.extent)
            if least != var.extent:
                found.setdefault(var, Var(var.name, least))
    return found


def _ratio(a: Number, b: Number) -> Number | None:
    """``a / b`` for single terms that divide; None for others, and for 1."""
    one, other = terms(a), terms(b)
    if len(one) != 1 or len(other) != 1 or one == other or one[0][1] % other[0][1]:
        return None
    rest = list(one[0][0])
    for atom in other[0][0]:
        if atom not in rest:
            return None
        rest.remove(atom)
    return from_terms({tuple(rest): one[0][1] // other[0][1]})


def _separate(a: Number, b: Number, var: Var, fixed: frozenset[Var]) -> bool:
    left, right = digits(a), digits(b)
    if left.stride(var) != right.stride(var) or left.stride(var) == 0:
        return False
    mine, theirs = (_free(side, fixed | {var}) for side in (left, right))
    if mine is None or theirs is None or _fixed(left, fixed) != _fixed(right, fixed):
        return False
    reaches = _reaches(mine, theirs)
    apart: Number = add(_shift(left.constant, mine), mul(_shift(right.constant, theirs), -1))
    if reaches is None:
        return False
    if _outweighs(left.stride(var), var, reaches, apart):
        return True
    alone = all(d.monomial == (var,) for side in (left, right) for d in side.digits if var in d.variables)
    return alone and _never_meet(left.stride(var), var, reaches, apart)


def never_meet(a: Number, b: Number) -> bool:
    """Whether accesses at offsets `a` and `b` touch no element in common, whatever iteration of any loop each is in.

    never_meet(4*i, 4*i + 1)                                          ->  True: their rests differ
    never_meet(768*i + j, 768*i + k + 256)  where j, k < 256          ->  True
    never_meet(768*i + j, 768*i + k + 256)  where j < 257, k < 256    ->  False
    """
    (a, b), _ = assuming_iterations((a, b))
    left, right = (_free(digits(side), frozenset()) for side in (a, b))
    if left is None or right is None:
        return False
    reaches = _reaches(left, right)
    apart = add(_shift(digits(a).constant, left), mul(_shift(digits(b).constant, right), -1))
    return reaches is not None and _are_always_apart(reaches, apart)


def _are_always_apart(reaches: dict[Number, tuple[Number, Number]], apart: Number) -> bool:
    """Whether offsets that begin `apart` never meet, whatever their digits are."""
    known = _are_numbers(reaches, apart)
    return _are_beyond(reaches, apart) or (known and any(_are_between(step, reaches, apart) for step in reaches))


def _are_numbers(reaches: dict[Number, tuple[Number, Number]], apart: Number) -> bool:
    return all(isinstance(n, int) for n in (apart, *reaches, *(n for both in reaches.values() for n in both)))


def _are_between(step: int, reaches: dict[Number, tuple[Number, Number]], apart: int) -> bool:
    """Whether all that is no multiple of `step` leaves two offsets apart by more than one multiple, less than two."""
    rest = [(stride, both) for stride, both in reaches.items() if stride % step]
    lowest = apart - sum(stride * below for stride, (below, _) in rest)
    highest = apart + sum(stride * above for stride, (_, above) in rest)
    return lowest % step > 0 and lowest // step == highest // step


def _free(offset: Offset, bound: frozenset[Var]) -> list[Digit] | None:
    """The digits that depend on free variables alone; None where one mixes free and bound ones."""
    found = []
    for digit in offset.digits:
        if not digit.variables <= bound or OPAQUE in digit.variables:
            if digit.variables & bound or digit.reach is None:
                return None
            found.append(digit)
        elif len(digit.monomial) > 1 and len(digit.variables) > 1:
            return None
    return found


def _fixed(offset: Offset, fixed: frozenset[Var]) -> frozenset[tuple[Any, ...]]:
    return frozenset((d.stride, d.monomial) for d in offset.digits if d.variables and d.variables <= fixed)


def _shift(constant: Number, free: Iterable[Digit]) -> Number:
    for digit in free:
        constant = add(constant, mul(digit.stride, digit.low))
    return constant


def _sign(stride: Number) -> int:
    """1 or -1; 0 where it is not known."""
    if not isinstance(stride, Index):
        return 1 if stride > 0 else -1
    return 1 if known_nonnegative(stride) else -1 if known_nonnegative(mul(stride, -1)) else 0


def _reaches(mine: list[Digit], theirs: list[Digit]) -> dict[Number, tuple[Number, Number]] | None:
    """By stride, how many of it my digits can be below and above theirs; None where a sign is not known."""
    found: dict[Number, tuple[Number, Number]] = {}
    for digit, side in [*((d, 1) for d in mine), *((d, -1) for d in theirs)]:
        sign = _sign(digit.stride)
        if sign == 0:
            return None
        stride = mul(digit.stride, sign)
        below, above = found.get(stride, (0, 0))
        found[stride] = (below, add(above, digit.reach)) if sign == side else (add(below, digit.reach), above)
    return found


def _outweighs(stride: Number, var: Var, reaches: dict[Number, tuple[Number, Number]], apart: Number) -> bool:
    """Whether steps of `stride`, and larger steps, are longer than all smaller ones together."""
    sign = _sign(stride)
    stride = mul(stride, sign)
    strides = ascending([stride, *reaches])
    if sign == 0 or stride in reaches or strides is None:
        return False
    below, above, reached = mul(apart, -1), apart, False
    for step in strides:
        reached = reached or step == stride
        if reached and not (less(below, step) and less(above, step)):
            return False
        own = add(var.extent, -1)
        down, up = (own, own) if step == stride else reaches[step]
        below, above = add(below, mul(step, down)), add(above, mul(step, up))
    return True


def _never_meet(stride: Number, var: Var, reaches: dict[Number, tuple[Number, Number]], apart: Number) -> bool:
    """Whether accesses never meet whatever the free digits and `var` are: as pieces of a concatenation or a stack.

    2304*k + j  and  2304*k + j + 12, j < 12
    """
    sign, own = _sign(stride), add(var.extent, -1)
    if sign == 0:
        return False
    step = mul(stride, sign)
    below, above = reaches.get(step, (0, 0))
    return _are_always_apart({**reaches, step: (add(below, own), add(above, own))}, apart)


def _are_beyond(reaches: dict[Number, tuple[Number, Number]], apart: Number) -> bool:
    """Whether digits of offsets that begin `apart` do not reach so far."""
    below: Number = 0
    above: Number = 0
    for step, (down, up) in reaches.items():
        below, above = add(below, mul(step, down)), add(above, mul(step, up))
    return less(below, apart) or less(above, mul(apart, -1))


def less(a: Number, b: Number) -> bool:
    """Whether ``a < b`` for sure."""
    if not isinstance(a, Index) and not isinstance(b, Index):
        return bool(a < b)
    return known_lt(a, b)


def at_most(a: Number, b: Number) -> bool:
    """Whether ``a <= b`` for sure."""
    if not isinstance(a, Index) and not isinstance(b, Index):
        return bool(a <= b)
    return known_le(a, b)


def ascending(strides: Iterable[Number]) -> list[Number] | None:
    """Strides from the smallest up; None where two cannot be compared."""
    given = list(strides)
    if not any(isinstance(s, Index) for s in given):
        return sorted(given)
    ordered = sorted(given, key=cmp_to_key(lambda a, b: -1 if at_most(a, b) else 1))
    return ordered if all(at_most(a, b) for a, b in pairwise(ordered)) else None


def proportional(number: Number, outer: Var, inner: Var) -> bool:
    """Whether `outer` and `inner` only occur as ``outer * inner.extent + inner``, so that one loop can be both.

    768*i + j  with j < 768: yes;  1000*i + j: no
    """
    if not isinstance(number, Index) or not variables_of(number) & {outer, inner}:
        return True
    found: dict[Var, dict[Monomial, int]] = {outer: {}, inner: {}}
    for monomial, coefficient in number.terms:
        for atom in monomial:
            if atom is outer or atom is inner:
                rest = tuple(a for a in monomial if a is not atom)
                if len(rest) != len(monomial) - 1 or outer in rest or inner in rest:
                    return False
                found[atom][rest] = coefficient  # type: ignore[index]
            elif not isinstance(atom, (Var, Size, Loaded)) and not all(
                proportional(field, outer, inner) for field in atom.fields()
            ):
                return False
    return bool(from_terms(found[outer]) == mul(from_terms(found[inner]), inner.extent))


def joint_runs(loops: Iterable[Var], numbers: Sequence[Number]) -> list[list[Var]]:
    """Loops, outermost first, in runs each of which one loop can replace: no number tells a run's loops apart."""
    runs: list[list[Var]] = []
    for var in loops:
        if runs and all(proportional(n, runs[-1][-1], var) for n in numbers):
            runs[-1].append(var)
        else:
            runs.append([var])
    return runs
