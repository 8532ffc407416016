"""Rules: a pattern with everything that makes it safe to use, as data with a name.

    @register_pattern("relu_twice", replacement=torch.relu, samples=[Sample(x=T("N"))], numerics=EXACT)
    def relu_twice(x):
        return torch.relu(torch.relu(x))

Declaring a rule does not enable it: rules run if the driver gets a `RuleSet` that contains them.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import fx

from .binding import Binding
from .dims import DimSpec
from .pattern import (
    Call,
    PatternError,
    Variable,
    least_size,
    needed_size,
    optional_calls,
    record_function,
    required_ops,
    root_ops,
    size,
    subterms,
    tags_of,
)
from .pattern_tracing import Declaration
from .reason import Reason
from .sample import Sample, T, require_kinds, samples_of
from .source_text import source_text
from .spelling import Spellings

# "simplify" is not in normal form; in "bytes", no convolution has a layout or a kernel of its own yet.
Stage = Literal["forward", "simplify", "bytes", "lowered"]
NanPolicy = Literal["same", "safe"]
Escapes = Literal["refuse", "keep"]

# computes a value from a match and the options' policies (`{"nan": "eager", ...}`)
Derive = Callable[[Binding, Mapping[str, str]], Any]


@dataclass(frozen=True)
class Numerics:
    """A rule's promise about rounding.

    Args:
        exact: whether results have the same bits as eager's.
        slack: otherwise, the largest ratio of the error against float64 to eager's own error.
        roundings: the number of roundings of the result's dtype that are allowed however exact eager is.
        random: ``"none"`` uses no random numbers; ``"stream"`` uses the same numbers as eager, in the same order;
            ``"distribution"`` only has the same distribution.
    """

    exact: bool = False
    slack: float = 2.0
    roundings: int = 8
    random: Literal["none", "stream", "distribution"] = "none"

    def __str__(self) -> str:
        text = "exact" if self.exact else f"error <= {self.slack:g} x eager's"
        return text if self.random == "none" else f"{text}, random: {self.random}"


EXACT = Numerics(exact=True)
ROUNDING = Numerics()

Overlooked = Callable[[fx.Graph], Iterable[tuple[fx.Node, Reason]]]

PLAIN = frozenset(
    f"aten.{name}"
    for name in ("add", "sub", "mul", "div", "neg", "to", "reshape", "permute", "expand", "slice", "select", "getitem")
)
"""Operators of any program: that a pattern has some of them tells nothing."""


@dataclass(frozen=True)
class Guard:
    """A condition of legality on operands: it returns None to accept a match, or a `Reason` to refuse it.

    A guard runs as soon as all operands that it names are bound. If a match leaves an operand out, a guard that
    `requires` it does not run; if the guard's parameter has a default, the guard runs at the end with the default. A
    parameter named ``match`` receives the whole `Binding`, so that the guard runs at the end.
    """

    function: Callable[..., Reason | None]
    needs: tuple[str, ...]
    requires: tuple[str, ...]
    late: bool = False

    def __call__(self, binding: Binding) -> Reason | None:
        """Judge a match."""
        given = {n: binding.operands[n] for n in self.needs if n in binding.operands}
        if self.late:
            given["match"] = binding
        try:
            verdict = self.function(**given)
        except Exception as error:
            error.add_note(f"in guard {self.function.__name__}()")
            raise
        if verdict is not None and not isinstance(verdict, Reason):
            raise TypeError(f"guard {self.function.__name__} gave {verdict!r}: it must give None (accept) or a Reason")
        return verdict


@dataclass(frozen=True)
class Candidate:
    """One way to compute what the pattern computes.

    Args:
        name: the name in reports, e.g. ``"flash"``.
        function: takes the pattern's parameters by name (None for those that the match left out), then derived values.
        applies: returns None, or why this candidate cannot be used for a match under the options' policies.
        profitable: True if it is never slower than the original, so that nothing needs to be measured.
    """

    name: str
    function: Callable[..., Any]
    applies: Callable[[Binding, Mapping[str, str]], Reason | None] = lambda match, policy: None
    profitable: bool = False


@dataclass(frozen=True, eq=False)
class Rule:
    """A declared rewrite. See `register_pattern` for the fields."""

    name: str
    family: str
    stage: Stage
    pattern: Callable[..., Any]
    variables: tuple[Variable, ...]
    outputs: tuple[Any, ...]
    candidates: tuple[Candidate, ...]
    guards: tuple[Guard, ...]
    dims: Mapping[str, DimSpec]
    derived: Mapping[str, Derive]
    numerics: Numerics
    nan: NanPolicy
    escapes: Escapes
    samples: tuple[Sample, ...]
    profitable: bool
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)
    dtypes: Collection[torch.dtype] = ()
    overlooked: Overlooked | None = None

    @property
    def doc(self) -> str:
        """The pattern's docstring."""
        return inspect.cleandoc(self.pattern.__doc__ or "")

    @cached_property
    def roots(self) -> frozenset[str]:
        """The operators at which a match can be rooted."""
        return root_ops(self.outputs[0])

    @cached_property
    def required(self) -> frozenset[str]:
        """The operators that every match contains."""
        return frozenset().union(*(required_ops(o) for o in self.outputs))

    @cached_property
    def marks(self) -> frozenset[str]:
        """The operators that distinguish the pattern: all but arithmetic, casts and views, if it has others."""
        own = frozenset(term.op for term in subterms(self.outputs) if isinstance(term, Call))
        return own - PLAIN or own

    @cached_property
    def size(self) -> int:
        """The number of operators in the largest match."""
        return size(self.outputs)

    def share(self, met: Collection[int]) -> float:
        """The share of what every match needs below the root that is among these calls, given by their identities.

        Alternatives count as the smallest of them, optional parts not at all.
        """
        optional, least = self._needs
        needed = least - 1
        if needed <= 0:
            return 1.0
        counted = frozenset(met) - optional
        if counted not in self._sizes_met:  # the layers of a model fail alike
            self._sizes_met[counted] = needed_size(self.outputs, counted)
        return (self._sizes_met[counted] - 1) / needed

    @cached_property
    def _sizes_met(self) -> dict[frozenset[int], int]:
        """The answers of `needed_size` for calls that were met."""
        return {}

    @cached_property
    def _needs(self) -> tuple[frozenset[int], int]:
        return optional_calls(self.outputs), least_size(self.outputs)

    @cached_property
    def kinds(self) -> Mapping[str, frozenset[str]]:
        """For each tensor operand, the kinds of dtypes in the rule's samples; unspecified dtypes are floating."""
        found: dict[str, frozenset[str]] = {}
        for sample in self.samples:
            for name, given in sample.operands.items() if not sample.refused else ():
                if isinstance(given, T):
                    found[name] = found.get(name, frozenset()) | {given.kind}
        return found

    @cached_property
    def digest(self) -> str:
        """Hash of everything that defines the rule: the source of its functions, and its contract."""
        functions = [self.pattern, *(c.function for c in self.candidates), *(c.applies for c in self.candidates)]
        functions += [*(g.function for g in self.guards), *self.derived.values()]
        facts = [self.name, self.stage, self.numerics, self.nan, self.escapes, self.profitable]
        facts += [v.name for v in self.variables if v.number]
        facts += [f"{name}: {spec}" for name, spec in self.dims.items()]
        facts += [f"{name}: {sorted(kinds)}" for name, kinds in self.kinds.items()]
        facts += [*(c.name for c in self.candidates), *self.derived]
        text = "\n".join([*map(str, facts), *map(source_text, functions)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"<Rule {self.name} ({self.family}, {self.stage})>"


Spell = Callable[[Declaration], tuple[Any, ...]]


def as_recorded(declaration: Declaration) -> tuple[Any, ...]:
    """The outputs of a pattern as recorded, which is written in normal form already.

    Raises:
        PatternError: it could not be recorded.
    """
    if isinstance(declaration.recorded, PatternError):
        raise declaration.recorded
    return declaration.recorded


_declared: dict[str, Rule] = {}


def declared_rules() -> tuple[Rule, ...]:
    """All rules that have been declared in this process."""
    return tuple(_declared.values())


def declared(name: str) -> Rule:
    """The rule of that name.

    Raises:
        KeyError: no such rule is declared; the message lists the declared rules.
    """
    if name not in _declared:
        close = difflib.get_close_matches(name, _declared, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise KeyError(f"no rule named {name!r} is declared{hint}; there are: {', '.join(sorted(_declared)) or 'none'}")
    return _declared[name]


def register_pattern(  # noqa: PLR0913 - a declaration, each argument by keyword
    name: str,
    *,
    replacement: Callable[..., Any] | Sequence[Candidate],
    samples: Sequence[Sample],
    family: str = "user",
    stage: Stage = "forward",
    guards: Sequence[Callable[..., Reason | None]] = (),
    dims: Mapping[str, str] | None = None,
    numbers: Sequence[str] = (),
    derived: Mapping[str, Derive] | None = None,
    numerics: Numerics = ROUNDING,
    nan: NanPolicy = "same",
    escapes: Escapes = "refuse",
    profitable: bool = False,
    advice: Mapping[str, str] | None = None,
    spell: Spell = as_recorded,
    dtypes: Collection[torch.dtype] = (),
    overlooked: Overlooked | None = None,
) -> Callable[[Callable[..., Any]], Rule]:
    """Declare a rule; decorates the pattern function and gives the `Rule`.

    Args:
        name: unique identifier, used in reports, options, tests and node metadata.
        replacement: a function of the pattern's parameters, or `Candidate`s among which measurement chooses.
        samples: inputs from which its property test is derived, and on which its pattern is traced; at least one.
        family: the family under which reports add it up, e.g. ``"attention"``.
        stage: ``"forward"`` before autograd, ``"lowered"`` after it; before that ``"simplify"`` and ``"bytes"``.
        guards: functions of some of the pattern's parameters that return None or a `Reason`.
        dims: named dims by parameter, e.g. ``{"q": "... S D", "k": "... T D"}``; equal names must be equal sizes.
        numbers: the parameters that bind numbers; also bools, strings, dtypes or lists of dims if a sample has one.
        derived: functions of a match and of the options' policies; the replacement gets their values by keyword.
        numerics: the contract about rounding and randomness.
        nan: ``"same"``: NaN and inf appear where eager has them. ``"safe"``: NaN may become numbers.
        escapes: if an inner value has other users: ``"refuse"`` the match, or ``"keep"`` the original for them.
        profitable: True if the replacement is never slower, so that nothing needs to be measured.
        advice: how to change a program, by a near miss's code, by the operator found instead, or ``"code: operator"``.
        spell: brings the pattern into normal form.
        dtypes: if given, the rule is tried first, and only in graphs with a tensor of one of them.
        overlooked: places of a graph where one expects a match, and why there is none: told where nothing else is.

    Raises:
        PatternError: the declaration is wrong; the message says how to correct it.
    """

    def declare(pattern: Callable[..., Any]) -> Rule:
        parameters = _parameters(pattern, name)
        variables = tuple(Variable(p, p in numbers, _kinds(p, samples_of(name, samples))) for p in parameters)
        _require_values(name, {"stage": (stage, Stage), "nan": (nan, NanPolicy), "escapes": (escapes, Escapes)})
        _require_given(name, samples, parameters, numbers, dims or {})
        outputs = _outputs(Declaration(name, pattern, variables, tuple(samples), _recorded(pattern, variables)), spell)
        return _claim(Rule(
            name=name, family=family, stage=stage, pattern=pattern, variables=variables, outputs=outputs,
            candidates=_candidates(name, replacement, parameters, tuple(derived or {})), tags=_tags(outputs),
            guards=tuple(_guard(name, g, parameters) for g in guards), advice=dict(advice or {}), dtypes=dtypes,
            dims={n: DimSpec.parse(d) for n, d in (dims or {}).items()}, derived=dict(derived or {}), numerics=numerics,
            nan=nan, escapes=escapes, samples=tuple(samples), profitable=profitable, overlooked=overlooked,
        ))  # fmt: skip

    return declare


def _recorded(pattern: Callable[..., Any], variables: Sequence[Variable]) -> tuple[Any, ...] | PatternError:
    try:
        return record_function(pattern, variables)
    except PatternError as error:
        return error


def _kinds(parameter: str, samples: Sequence[Sample]) -> frozenset[type]:
    """The kinds of values that a number operand may have, from the samples."""
    given = {type(sample.operands.get(parameter)) for sample in samples}
    return frozenset(given & {bool, str, list, tuple, torch.dtype})


def _tags(outputs: Sequence[Any]) -> dict[str, tuple[str, ...]]:
    """The tags of a pattern, recorded or found while it was traced."""
    traced = [dict(output.declared) for output in outputs if isinstance(output, Spellings)]
    return {tag: labels for known in (*traced, tags_of(outputs)) for tag, labels in known.items()}


def _claim(rule: Rule) -> Rule:
    """Register a rule under its name; declaring the same pattern again (a module run twice) replaces it."""
    _require_whole(rule)
    other = _declared.get(rule.name)
    if other is not None and source_text(other.pattern) != source_text(rule.pattern):
        raise PatternError(f"rule {rule.name!r} is declared already, in {other.pattern.__module__}: names are unique")
    _declared[rule.name] = rule
    return rule


def _parameters(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    if not inspect.isfunction(function):
        kind = type(function).__name__
        advice = "write def pattern(x, weight): ..., with the weights of modules among its parameters"
        raise PatternError(f"rule {name!r}: a pattern is a Python function, not {kind}: {advice}")
    parameters = inspect.signature(function).parameters.values()
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise PatternError(
                f"rule {name!r}: {function.__name__}() takes *{p.name}; parameters must be named one by one"
            )
    return tuple(p.name for p in parameters)


def _require_known(rule: str, what: str, names: Iterable[str], parameters: Sequence[str]) -> None:
    for name in names:
        if name not in parameters:
            raise PatternError(f"rule {rule!r}: {what} names {name!r}, but the pattern has {', '.join(parameters)}")


def _outputs(declaration: Declaration, spell: Spell) -> tuple[Any, ...]:
    outputs = spell(declaration)
    _require_matchable(declaration.name, outputs, declaration.variables)
    return outputs


def _require_values(rule: str, given: Mapping[str, tuple[Any, Any]]) -> None:
    for what, (value, valid) in given.items():
        if value not in get_args(valid):
            raise PatternError(f"rule {rule!r}: {what} {value!r} is none of {', '.join(get_args(valid))}")


def _require_matchable(rule: str, outputs: Sequence[Any], variables: Sequence[Variable]) -> None:
    """Check that further outputs share operands with earlier ones, and that outputs contain all variables."""
    bound: set[Any] = set()
    fixed = {n for o in outputs if isinstance(o, Spellings) for facts in o.facts.values() for n, _ in facts.fixed}
    for output in outputs:
        if not root_ops(output):
            raise PatternError(f"rule {rule!r}: every alternative of an output must be computed by an operator")
        inside = {t for t in subterms(output) if isinstance(t, Variable)}
        if bound and not bound & inside:
            raise PatternError(f"rule {rule!r}: the output {output!r} shares no operand with those before it")
        bound |= inside
    unused = [v.name for v in variables if v not in bound and v.name not in fixed]
    if unused:
        raise PatternError(f"rule {rule!r}: its pattern never uses {', '.join(unused)}")


def _guard(rule: str, function: Callable[..., Any], parameters: Sequence[str]) -> Guard:
    wanted = inspect.signature(function).parameters
    operands = tuple(p for p in wanted if p != "match")
    if not wanted:
        raise PatternError(f"rule {rule!r}: guard {function.__name__}() names no operand, so it has nothing to look at")
    _require_known(rule, f"guard {function.__name__}()", operands, parameters)
    required = tuple(p for p in operands if wanted[p].default is inspect.Parameter.empty)
    return Guard(function, operands, required, "match" in wanted)


def _candidates(
    rule: str, replacement: Callable[..., Any] | Sequence[Candidate], parameters: Sequence[str], derived: Sequence[str]
) -> tuple[Candidate, ...]:
    given: Sequence[Any] = replacement if isinstance(replacement, (list, tuple)) else [replacement]
    found: tuple[Any, ...] = (Candidate("replacement", replacement),) if callable(replacement) else tuple(given)
    if not found:
        raise PatternError(f"rule {rule!r} has no replacement")
    strange = [one for one in found if not isinstance(one, Candidate)]
    if strange:
        raise PatternError(
            f"rule {rule!r}: replacement={replacement!r}: a function is wanted, or a list of Candidate(name, function)"
        )
    for candidate in found:
        _require_signature(rule, candidate, parameters, derived)
    return found


def _require_signature(rule: str, candidate: Candidate, parameters: Sequence[str], derived: Sequence[str]) -> None:
    """Check that a replacement takes the pattern's parameters in order, and derived values by keyword."""
    try:
        have = inspect.signature(candidate.function).parameters.values()
    except ValueError:  # builtins such as torch.relu have no signature
        return
    positional = [p.name for p in have if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = {p.name for p in have if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    gathers = any(p.kind == p.VAR_POSITIONAL for p in have)
    if any(p.kind == p.VAR_KEYWORD for p in have):
        keywords |= set(derived)
    takes = [*positional[: len(parameters)]] if not gathers else list(parameters)
    if takes != list(parameters) or not set(derived) <= keywords or set(positional[len(parameters) :]) - set(derived):
        wanted = ", ".join([*parameters, *(["*", *derived] if derived else [])])
        raise PatternError(
            f"rule {rule!r}: replacement {candidate.name!r} takes ({', '.join(p.name for p in have)}), "
            f"but the pattern and its derived values give ({wanted}): names and order must be theirs, "
            f"replacement=lambda {wanted}: ..."
        )


def _require_given(
    rule: str, samples: Sequence[Sample], parameters: Sequence[str], numbers: Sequence[str], dims: Iterable[str]
) -> None:
    """Check that samples name parameters, give tensors for tensors, and are not all near misses."""
    if isinstance(numbers, (str, Mapping)):
        raise PatternError(
            f"rule {rule!r}: numbers={numbers!r}: a list of parameters is wanted, numbers={[*_listed(numbers)]!r}; "
            "their values are given by samples"
        )
    _require_known(rule, "numbers", numbers, parameters)
    _require_known(rule, "dims", dims, [p for p in parameters if p not in numbers])
    if all(sample.refused for sample in samples):
        raise PatternError(f"rule {rule!r} has no samples that it matches: its property test needs at least one")
    for sample in samples:
        unknown = set(sample.operands) - set(parameters)
        if unknown:
            raise PatternError(f"rule {rule!r}: a sample gives {sorted(unknown)}, which the pattern does not take")
        for name, value in sample.operands.items():
            if (
                name in numbers and isinstance(value, T) and {*value.dims.split()} - {"1"}
            ):  # else one number in a tensor
                said = (
                    f"rule {rule!r}: a sample gives {name}={value!r}, but numbers={[*numbers]!r} says that {name} binds"
                )
                raise PatternError(f"{said} a number: give its value, or leave {name} out of numbers")
            if name not in numbers and value is not None and not isinstance(value, T):
                raise PatternError(
                    f"rule {rule!r}: a sample gives {name}={value!r}, but {name} binds tensors: give a T, or declare "
                    f"numbers=[{name!r}]"
                )


def _listed(names: Any) -> Iterable[str]:
    """The names meant by somebody who wrote a text instead of a list."""
    return [names] if isinstance(names, str) else names


def _require_whole(rule: Rule) -> None:
    require_kinds(rule.name, numerics=(rule.numerics, Numerics, "EXACT"), profitable=(rule.profitable, bool, "True"))
    for sample in rule.samples:
        for tag, label in sample.tags.items():
            if label not in rule.tags.get(tag, ()):
                known = {t: list(ls) for t, ls in rule.tags.items()}
                raise PatternError(f"rule {rule.name!r}: a sample takes {tag}={label}, but the pattern has {known}")
