"""Matching a rule's pattern at one place of a graph, with backtracking.

Guards run as soon as the variables they name are bound; a refusal sends the search back to the last alternative. The
deepest failure is kept: it is the near miss that an explanation shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx

from .behind import other_views
from .binding import Binding, MatchFailure, differs
from .call_arguments import argument_pairs, arguments_differ, same_constant
from .dims import DimSpec, Mismatch, unify
from .graph import describe, is_number, is_tensor, op_name, reaches, sees, val
from .pattern import HIDDEN, Anything, Call, Choice, Variable
from .reason import Reason
from .spelling import DTYPE, NumberTerm, OperandTerm, Sized, Spellings
from .symbolic import holds_on_example, known, known_equal

if TYPE_CHECKING:
    from .rule import Guard


class Matchable(Protocol):
    """The part of a rule that matching needs."""

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The pattern's outputs, root first."""

    @property
    def dims(self) -> Mapping[str, DimSpec]:
        """Named dims of operands."""

    @property
    def guards(self) -> Sequence[Guard]:
        """Conditions of legality."""


class Matcher:
    """Matches one rule at one node: ``Matcher(rule).match(node)``; afterwards `failure` tells why not."""

    def __init__(self, rule: Matchable) -> None:
        self.rule = rule
        self.failure: MatchFailure | None = None

    def match(self, root: fx.Node) -> Iterator[Binding]:
        """All matches rooted at `root` (the pattern's first output), most preferred first."""
        outputs = self.rule.outputs
        for binding in self._unify(outputs[0], root, Binding(), None):
            yield from self._rest(outputs[1:], binding, (root,))

    def _rest(self, outputs: Sequence[Any], binding: Binding, taken: tuple[fx.Node, ...]) -> Iterator[Binding]:
        """Match further outputs, each a node of its own, through the operands that they share with what is bound."""
        if not outputs:
            compared = _compared(binding)
            refused = compared if isinstance(compared, Reason) else self._late_guards(compared)
            if refused is not None:
                self._fail(binding, refused, binding.matched[0])
            elif isinstance(compared, Binding):
                yield compared
            return
        others = [node for node in _candidates(outputs[0], binding, {}) if node not in taken]
        if not others:
            message = f"nothing computes the pattern's other output, {outputs[0]!r}, of the same operands"
            self._fail(binding, Reason("output-missing", message, taken[:1], repr(outputs[0]), "nothing"), taken[0])
        for node in others:
            for extended in self._unify(outputs[0], node, binding, taken[0]):
                yield from self._rest(outputs[1:], extended, (*taken, node))

    # -- one term against one value

    def _unify(self, term: Any, value: Any, binding: Binding, user: fx.Node | None) -> Iterator[Binding]:
        if isinstance(term, Variable):
            yield from self._variable(term, value, binding, user)
        elif isinstance(term, Call):
            yield from self._call(term, value, binding, user)
        elif isinstance(term, Choice):
            yield from self._choice(term, value, binding, user)
        elif isinstance(term, (OperandTerm, NumberTerm, Sized)):
            yield from self._traced(term, value, binding, user)
        elif isinstance(term, Anything):
            yield binding
        elif isinstance(term, (list, tuple)):
            yield from self._sequence(term, value, binding, user)
        elif same_constant(term, value):
            yield binding
        else:
            self._mismatch(binding, repr(term), value, user)

    def _choice(self, term: Choice, value: Any, binding: Binding, user: fx.Node | None) -> Iterator[Binding]:
        """The alternatives in turn; where the tag was met before, the one taken there."""
        taken = dict(binding.tags).get(term.tag)
        if taken is None and isinstance(term, Spellings):
            yield from self._spelled(term, value, binding, user)
            return
        name = op_name(value)
        for label, option in term.options:
            if taken not in (None, label):
                continue
            if isinstance(option, Call) and id(option) not in binding.nodes:
                if option.op == name and reaches(user, value):  # most are another operator: those cost no binding
                    yield from self._enter(option, value, binding if taken else binding.tagged(term.tag, label))
                else:
                    self._unseen(option, value, binding, user, weak=True)
            else:
                yield from self._unify(option, value, binding if taken else binding.tagged(term.tag, label), user)

    def _spelled(self, term: Spellings, value: Any, binding: Binding, user: fx.Node | None) -> Iterator[Binding]:
        """The pattern's spellings in turn, each with what holds for it."""
        for label, option in term.options:
            taken, reason, facts = binding.tagged(term.tag, label), None, term.facts[label]
            for name, number in facts.fixed:
                taken = taken.bound(name, number)
                reason = reason or self._guards(name, taken)
            for tag in facts.tags:
                taken = taken.tagged(*tag)
            if reason is not None:
                self._fail(taken, reason, user)
            else:
                yield from self._unify(option, value, taken.waiting(*((c, True) for c in facts.conditions)), user)

    def _traced(
        self, term: OperandTerm | NumberTerm | Sized, value: Any, binding: Binding, user: fx.Node | None
    ) -> Iterator[Binding]:
        """An operand, number or size of a pattern that was traced on its samples."""
        if isinstance(term, Sized):
            if is_number(value):
                yield binding.waiting((term, value))
            else:
                self._mismatch(binding, repr(term), value, user)
        elif isinstance(term, NumberTerm):
            number = term.undone(value)
            if number is None:
                self._mismatch(binding, f"{term!r}: a number", value, user)
            else:
                yield from self._variable(term.variable, number, binding, user)
        elif not is_tensor(value) or term.variable.name in binding.operands:
            yield from self._variable(term.variable, value, binding, user)
        else:
            unified = _as_sampled(term, value, binding)
            if isinstance(unified, Reason):
                self._fail(binding, unified, user)
            else:
                yield from self._variable(term.variable, value, binding.sized(*unified), user)

    def _sequence(self, terms: Sequence[Any], value: Any, binding: Binding, user: fx.Node | None) -> Iterator[Binding]:
        if not isinstance(value, (list, tuple)) or len(value) != len(terms):
            self._mismatch(binding, repr(list(terms)), value, user)
            return
        yield from self._all(list(zip(terms, value, strict=True)), binding, user)

    def _all(self, pairs: list[tuple[Any, Any]], binding: Binding, user: fx.Node | None) -> Iterator[Binding]:
        if not pairs:
            yield binding
            return
        for extended in self._unify(*pairs[0], binding, user):
            yield from self._all(pairs[1:], extended, user)

    def _call(self, term: Call, value: Any, binding: Binding, user: fx.Node | None) -> Iterator[Binding]:
        known = binding.nodes.get(id(term))
        if known is not None:
            if known is value:
                yield binding
            else:
                self._mismatch(binding, f"the same {term!r} as before", value, user)
            return
        if not sees(user, value, term.op):
            self._unseen(term, value, binding, user)
            return
        yield from self._enter(term, value, binding)

    def _enter(self, term: Call, node: fx.Node, binding: Binding) -> Iterator[Binding]:
        """Match the arguments of a call whose operator is the term's."""
        entered = binding.entering(term, node)
        if (other := other_views(term, node, None)) is not None:
            self._fail(entered.entering(other[0][-1], other[1][-1]), other[2], node)
            return
        fits = False
        for pairs in argument_pairs(term, node):
            fits = True
            yield from self._all(pairs, entered, node)
        if not fits:
            self._fail(entered, arguments_differ(term, node), node)

    def _variable(self, term: Variable, value: Any, binding: Binding, user: fx.Node | None) -> Iterator[Binding]:
        if term.name in binding.operands:
            if _same_operand(binding.operands[term.name], value):
                yield binding
            else:
                self._mismatch(binding, f"the same {term.name} as before", value, user)
            return
        if not (_is_number_of(term, value) if term.number else is_tensor(value)):
            self._mismatch(binding, f"{term.name}: {_wanted(term)}", value, user)
            return
        bound = binding.bound(term.name, list(value) if isinstance(value, list) else value)
        spec = self.rule.dims.get(term.name)
        if spec is not None:
            unified = unify(spec, val(value).shape, binding.dims)
            if isinstance(unified, Mismatch):
                self._fail(binding, _dim_reason(term.name, unified, value), user)
                return
            bound = bound.sized(*unified)
        reason = self._guards(term.name, bound)
        if reason is None:
            yield bound
        else:
            self._fail(bound, reason, user)

    # -- guards and failures

    def _guards(self, name: str, binding: Binding) -> Reason | None:
        """Run the guards whose last variable has just been bound."""
        for guard in self.rule.guards:
            if name in guard.needs and not guard.late and all(n in binding.operands for n in guard.needs):
                reason = guard(binding)
                if reason is not None:
                    return reason
        return None

    def _late_guards(self, binding: Binding) -> Reason | None:
        """Run the guards that look at the whole match, or that name a part which this match left out."""
        for guard in self.rule.guards:
            ran = not guard.late and all(n in binding.operands for n in guard.needs)
            if ran or any(n not in binding.operands for n in guard.requires):
                continue
            reason = guard(binding)
            if reason is not None:
                return reason
        return None

    def _unseen(self, term: Call, value: Any, binding: Binding, user: fx.Node | None, weak: bool = False) -> None:
        if user is None or (self.failure is not None and len(binding.nodes) < self.failure.depth):
            return  # what was met deeper tells more
        opaque = value.meta.get("opaque") if isinstance(value, fx.Node) and op_name(value) == term.op else None
        if opaque is not None:
            self._fail(binding, opaque, user)
        elif (other := other_views(term, value, user)) is not None:
            self._fail(binding.entering(other[0][-1], other[1][-1]), other[2], user)
        else:
            operand = isinstance(value, fx.Node)  # an operator where a number stands says nothing
            self._mismatch(binding, term.op.removeprefix("aten."), value, user, weak or not operand)

    def _mismatch(self, binding: Binding, expected: str, value: Any, user: fx.Node | None, weak: bool = False) -> None:
        failure, depth = self.failure, len(binding.nodes)
        if user is None or (failure is not None and depth < failure.depth):
            return
        nodes = tuple(n for n in (value, user) if isinstance(n, fx.Node))
        stronger = failure is not None and failure.weak and not weak and not isinstance(value, fx.Node)
        if failure is None or depth > failure.depth or stronger:
            self.failure = MatchFailure(depth, differs(expected, describe(value), nodes), user, [], weak, binding.nodes)
        elif failure.first.code == "pattern-differs" and failure.first.nodes == nodes and isinstance(value, fx.Node):
            failure.others += [expected] if expected not in failure.others else []

    def _fail(self, binding: Binding, reason: Reason, site: fx.Node | None) -> None:
        depth = len(binding.nodes)
        better = self.failure is None or depth > self.failure.depth
        tie = self.failure is not None and depth == self.failure.depth
        guard_over_shape = tie and self.failure.first.code == "pattern-differs" != reason.code  # type: ignore[union-attr]
        if site is not None and (better or guard_over_shape):
            self.failure = MatchFailure(depth, reason, site, met=binding.nodes)


def _is_number_of(term: Variable, value: Any) -> bool:
    """Whether a number of the pattern may be this; lists hold constants alone: a replacement is traced with them."""
    if isinstance(value, (list, tuple)):
        return bool(term.kinds & {list, tuple}) and not any(isinstance(v, (fx.Node, torch.SymInt)) for v in value)
    return _is_scalar(value) or type(value) in term.kinds


def _is_scalar(value: Any) -> bool:
    return is_number(value) or (is_tensor(value) and all(known_equal(s, 1) for s in val(value).shape))


def _same_operand(a: Any, b: Any) -> bool:
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        return a is b
    return same_constant(a, b)


def _wanted(term: Variable) -> str:
    """The values that a variable binds, in words."""
    if not term.number:
        return "a tensor"
    return " or ".join(["a number", *sorted(f"a {kind.__name__}" for kind in term.kinds)])


def _as_sampled(
    term: OperandTerm, value: fx.Node, binding: Binding
) -> tuple[dict[str, Any], tuple[tuple[Any, Any], ...]] | Reason:
    """The dims that an operand binds, and what that assumes; or how it differs from its sample."""
    found = val(value).dtype
    followed = binding.dims.get(DTYPE, found) if term.follows else found
    if found not in term.dtypes or found != followed:
        wanted = [followed] if found in term.dtypes else sorted(term.dtypes, key=str)
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in wanted)
        message = f"{term!r} should be {names}, as in the rule's samples, but is {found}"
        return Reason("dtype-differs", message, (value,), names, describe(value))
    unified = unify(term.dims, val(value).shape, binding.dims)
    if isinstance(unified, Mismatch):
        return _dim_reason(term.variable.name, unified, value)
    dims, assumed = unified
    return ({**dims, DTYPE: found} if term.follows else dims), assumed


def _compared(binding: Binding) -> Binding | Reason:
    """The match, once its sizes are what its operands make them; or where they are not.

    What holds on the example alone is assumed under a guard.
    """
    assumed = []
    for term, found in binding.later:
        value, at = term.value(binding.dims), val(found)
        if known(value) if at is True else same_constant(value, at):
            continue
        if not holds_on_example(value, at):
            shown, nodes = f"{term!r} = {value}", (found,) if isinstance(found, fx.Node) else ()
            if at is True:
                return Reason("sizes-differ", f"{term!r} does not hold here", nodes, repr(term), "other sizes")
            return Reason("sizes-differ", f"expected {shown}, found {at}", nodes, shown, str(at))
        assumed.append((value, at))
    return binding.sized(binding.dims, tuple(assumed)) if assumed else binding


def _dim_reason(name: str, mismatch: Mismatch, value: Any) -> Reason:
    expected = mismatch.expected.replace(HIDDEN, "")
    message = f"{name} should have {expected}, but has {mismatch.found}"
    nodes = (value,) if isinstance(value, fx.Node) else ()
    return Reason("dims-differ", message, nodes, expected, f"{mismatch.found} in {describe(value)}")


def _candidates(term: Any, binding: Binding, known: dict[int, Iterable[fx.Node]]) -> Iterable[fx.Node]:
    """The nodes that could be `term`: what it is bound to, or users of what its inputs could be; each once.

    `known` holds the answers for this binding: alternatives share most of their terms.
    """
    if id(term) not in known:
        known[id(term)] = _found_candidates(term, binding, known)
    return known[id(term)]


def _found_candidates(term: Any, binding: Binding, known: dict[int, Iterable[fx.Node]]) -> Iterable[fx.Node]:
    if isinstance(term, OperandTerm):
        return _candidates(term.variable, binding, known)
    if isinstance(term, Choice):
        return dict.fromkeys(n for _, option in term.options for n in _candidates(option, binding, known))
    bound = binding.operands.get(term.name) if isinstance(term, Variable) else binding.nodes.get(id(term))
    if isinstance(bound, fx.Node) or not isinstance(term, Call):
        return [bound] if isinstance(bound, fx.Node) else []
    below = (n for t in (*term.args, *(v for _, v in term.kwargs)) for n in _candidates(t, binding, known))
    return dict.fromkeys(u for n in below for u in n.users if op_name(u) == term.op)
