"""Patterns in the normal form of programs: traced on their samples and respelled, by the code that does it to programs.

    def pattern(x):                     recorded   flatten(x, 1)
        return x.flatten(1)             traced     reshape(x: B S D, [B, D*S])        with the sample x=T("B S D")

What is recorded holds for any rank, and is kept as the first spelling. A sample's own normal form,
if it is another one, becomes a further spelling: so a pattern matches its own source, or is refused where it is
declared, with the reason.

The place of a number of the pattern is seen by tracing it with another value of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from .binding import Binding
from .dims import DimSpec
from .matcher import Matcher
from .pattern import HIDDEN, PatternError, Term, Variable
from .pattern_tracing import (
    LEADING,
    Declaration,
    Traced,
    most_dims,
    trace,
    tracings_in,
    with_leading_dim,
    without_leading_dims,
)
from .products import with_other_products
from .reading import Place, Reading, differences, terms
from .respell import Respelling
from .sample import Sample, T
from .spelling import SPELLING, Facts, NumberTerm, OperandTerm, Sized, Spellings, made_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""The dtypes that operands take which follow a program's."""
_RECORDED = "recorded"


@dataclass
class _Form:
    """One spelling: a tracing, the numbers that it shows, and the dtypes that give the same one.

    Operands of the most dims may have more in front if it is `open`; ``...`` may be none if it is `bare`.
    """

    traced: Traced
    marks: dict[Place, Term]
    fixed: dict[str, Any]
    dtypes: set[torch.dtype] = field(default_factory=set)
    open: bool = False
    bare: bool = False

    @property
    def key(self) -> str:
        """Equal for equal spellings."""
        specs = {n: (o.dims, o.dtype) for n, o in self.traced.sample.operands.items() if isinstance(o, T)}
        marks = {place: repr(term) for place, term in self.marks.items()}
        shown = Reading(_masked(self.traced.reading, self.marks), self.traced.reading.outputs, frozenset())
        traced = self.traced
        return repr((shown.text, specs, marks, self.fixed, traced.tags, traced.static, traced.conditions))


def spelled(declaration: Declaration, form: Sequence[Respelling]) -> tuple[Any, ...]:
    """The outputs of a pattern with all spellings that its samples need.

    Raises:
        PatternError: it can be neither recorded nor traced, or would not match its own source; the message says why.
    """
    samples = [with_leading_dim(s) for s in declaration.samples if not s.refused]
    fixed = [t for s in samples for t in tracings_in(declaration, s, DTYPES[:2], form, static=True)]
    if _is_recorded(declaration) and all(_recorded_fits(declaration, t) for t in fixed):
        return tuple(declaration.recorded)  # type: ignore[arg-type]
    tracings = [t for s in samples for t in tracings_in(declaration, s, _dtypes(fixed, s), form)]
    if not any(_recorded_fits(declaration, t, alone=False) for t in (*tracings, *fixed)):
        declaration = replace(declaration, recorded=_unfit(declaration))
    _require_complete(declaration, tracings)
    forms = _forms(declaration, [t for t in tracings if not _recorded_fits(declaration, t)], fixed, form)
    outputs = _outputs(declaration, forms, tracings)
    unseen = [t for t in fixed if not _matches(declaration, outputs, t)[0]]
    if unseen:  # normal form needs sizes that are numbers: the rule is for the sample's own
        outputs = _outputs(declaration, [*forms, *_forms(declaration, unseen, fixed, form)], tracings)
    for traced in (*tracings, *fixed):
        _require_match(declaration, outputs, traced)
    return outputs


def _is_recorded(declaration: Declaration) -> bool:
    return not isinstance(declaration.recorded, PatternError)


def _dtypes(fixed: Sequence[Traced], sample: Sample) -> Sequence[torch.dtype]:
    """The dtypes to trace a sample in: one stands for all where normal form is the same in two of them."""
    own = [t for t in fixed if t.sample is sample]
    return DTYPES if len(own) > 1 and own[0].reading.text != own[1].reading.text else DTYPES[:1]


def _forms(
    declaration: Declaration, tracings: Sequence[Traced], fixed: Sequence[Traced], form: Sequence[Respelling]
) -> list[_Form]:
    """The spellings that tracings show, equal ones once."""
    forms: dict[str, _Form] = {}
    for traced in tracings:
        one = _with_numbers(declaration, traced, form)
        one = forms.setdefault(one.key, one)
        one.dtypes |= {traced.dtype} if len(_dtypes(fixed, traced.sample)) > 1 else {*DTYPES}
    for one in forms.values():
        plain = next(t for t in fixed if t.sample is one.traced.sample)
        one.open = not _speaks_of_sizes(one.traced) and _holds_for_more_dims(declaration, plain, form)
        one.bare = one.open and _holds_without_leading_dims(declaration, plain, form)
    return list(forms.values())


def _speaks_of_sizes(traced: Traced) -> bool:
    return bool(traced.conditions) or any(isinstance(t, Sized) for t in _constants(traced.reading))


def _holds_for_more_dims(declaration: Declaration, traced: Traced, form: Sequence[Respelling]) -> bool:
    """Whether a pattern has the same spelling with another dim in front."""
    try:
        wider = with_leading_dim(traced.sample, "_more", more=True)
        again = trace(declaration, wider, traced.dtype, form, static=True)
    except PatternError:
        return False
    return again.reading.text == traced.reading.text


def _holds_without_leading_dims(declaration: Declaration, traced: Traced, form: Sequence[Respelling]) -> bool:
    """Whether a pattern has the same spelling where ``...`` stands for no dim at all."""
    given = traced.sample.made_from or traced.sample
    bare = without_leading_dims(given)
    if all(getattr(bare.operands[k], "dims", "") == getattr(o, "dims", "") for k, o in given.operands.items()):
        return False
    try:
        again = trace(declaration, with_leading_dim(bare), traced.dtype, form, static=True)
    except PatternError:
        return False
    return again.reading.text == traced.reading.text


def _constants(reading: Reading) -> Iterator[Any]:
    todo: list[Any] = [(args, list(kwargs.values())) for _, args, kwargs in reading.rows]
    while todo:
        item = todo.pop()
        if isinstance(item, (list, tuple)):
            todo.extend(item)
        else:
            yield item


# -- numbers ----------------------------------------------------------------------------------------------------------


def _with_numbers(declaration: Declaration, traced: Traced, form: Sequence[Respelling]) -> _Form:
    """A spelling, with its numbers where the pattern has them."""
    marks: dict[Place, Term] = {}
    fixed: dict[str, Any] = {}
    for variable in declaration.variables:
        value = traced.sample.operands.get(variable.name)
        if not variable.number or value is None or isinstance(value, T):
            continue
        shown = _shown(declaration, traced, variable, value, form)
        if shown:
            marks |= shown
        else:
            fixed[variable.name] = value
    return _Form(traced, marks, fixed)


def _shown(
    declaration: Declaration, traced: Traced, variable: Variable, value: Any, form: Sequence[Respelling]
) -> dict[Place, Term]:
    """The places of a number in a tracing; none if it does not stand there, or normal form computes with it."""
    for other in _others(value):
        try:
            again = trace(declaration, traced.sample, traced.dtype, form, {variable.name: other}, static=traced.static)
        except PatternError:
            continue
        found = differences(traced.reading, again.reading, (value, other))
        if not found:
            continue
        how = [made_of(a, b, (value, other)) for _, a, b in found]
        if None not in how:
            return {place: NumberTerm(variable, h or "") for (place, _, _), h in zip(found, how, strict=True)}
    return {}


def _others(value: Any) -> list[Any]:
    """Other values that a number might have."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 2 * value]
    if isinstance(value, float):
        return [0.75 * value if value else 0.25, 1.5 * value + 0.5]
    if isinstance(value, (list, tuple)):
        whole = [v for v in value if type(v) is int]
        ways = [[*value[1:], *value[:1]], [*reversed(value)], [v + 1 for v in whole], [v - 1 for v in whole]]
        return [type(value)(w) for w in ways if len(w) == len(value) and list(w) != list(value)]
    return []


def _masked(reading: Reading, marks: Mapping[Place, Term]) -> tuple[Any, ...]:
    """The rows of a reading without the constants that marks stand for."""

    def masked(value: Any, place: Place) -> Any:
        if place in marks:
            return None
        return [masked(v, (*place, k)) for k, v in enumerate(value)] if isinstance(value, list) else value

    rows = []
    for i, (op, args, kwargs) in enumerate(reading.rows):
        values = [masked(v, (i, k)) for k, v in enumerate((*args, *kwargs.values()))]
        rows.append((op, tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :], strict=True))))
    return tuple(rows)


# -- terms ------------------------------------------------------------------------------------------------------------


def _outputs(declaration: Declaration, forms: list[_Form], tracings: list[Traced]) -> tuple[Any, ...]:
    """For each output its spellings, the recorded one first."""
    options: list[tuple[str, tuple[Any, ...], Facts]] = []
    if not isinstance(declaration.recorded, PatternError):
        options.append((_RECORDED, declaration.recorded, Facts()))
    for i, form in enumerate(forms):
        options.append((f"traced {i}", _terms(declaration, form), _facts(form)))
    declared = {tag: labels for traced in tracings for tag, labels in traced.met.items()}
    facts = {label: known for label, _, known in options}
    _require_outputs(declaration, options)
    return tuple(
        Spellings(SPELLING, tuple((label, outputs[k]) for label, outputs, _ in options), facts, declared)
        for k in range(len(options[0][1]))
    )


def _terms(declaration: Declaration, form: _Form) -> tuple[Any, ...]:
    variables = {v.name: v for v in declaration.variables}
    operands: dict[str, Term] = {}
    for name, spec in form.traced.sample.operands.items():
        if isinstance(spec, T):
            given = _dims(spec, form.traced)
            kept = [d for d in given if not (form.bare and d == LEADING)]
            names = tuple(d if d.isdigit() else HIDDEN + d for d in kept)
            any_leading = form.open and (len(kept) < len(given) or len(given) == most_dims(form.traced.sample))
            dims = DimSpec(names, any_leading)
            dtypes = frozenset((spec.dtype,) if spec.dtype else form.dtypes)
            operands[name] = OperandTerm(variables[name], dims, dtypes, spec.dtype is None)
    _require_read(declaration, form.traced, operands)
    return with_other_products(terms(form.traced.reading, operands, form.marks))


def _dims(spec: T, traced: Traced) -> list[str]:
    """The dims of an operand; a named one of size 0 or 1 is that size, for tracing looks at these."""
    sizes = traced.sample.sizes
    return [d if d.isdigit() or (sizes[d] > 1 and not traced.static) else str(sizes[d]) for d in spec.dims.split()]


def _facts(form: _Form) -> Facts:
    names = {symbol: HIDDEN + name for symbol, name in form.traced.symbols.items()}
    conditions = [Sized(c, {s: names[s] for s in sorted(c.free_symbols, key=str)}) for c in form.traced.conditions]
    return Facts(tuple(form.traced.tags.items()), tuple(form.fixed.items()), tuple(conditions))


# -- what is refused --------------------------------------------------------------------------------------------------


class _Bare:
    """A pattern's terms alone: no guards, no dims."""

    def __init__(self, outputs: tuple[Any, ...]) -> None:
        self.outputs = outputs
        self.dims: dict[str, DimSpec] = {}
        self.guards: tuple[Any, ...] = ()


def _matches(declaration: Declaration, outputs: tuple[Any, ...], traced: Traced) -> tuple[bool, str]:
    """Whether terms match all of what they were made of; and why not."""
    given = traced.graph.output_node().args[0]
    results = list(given) if isinstance(given, (list, tuple)) else [given]
    if not all(isinstance(r, fx.Node) for r in results) or len(results) != len(outputs):
        return False, "it returns another number of outputs"
    matcher = Matcher(_Bare(outputs))
    for binding in matcher.match(results[0]):
        if _is_whole(declaration, binding, traced):
            return True, ""
    return False, matcher.failure.reason.message if matcher.failure else "it binds other operands than it was given"


def _is_whole(declaration: Declaration, binding: Binding, traced: Traced) -> bool:
    """Whether a match binds each operand, and every number as it was given."""
    images = {name: node for node, name in traced.operands.items()}
    tensors = {binding.operands.get(name) for name in images if name in traced.reading.used}
    if tensors != {images[name] for name in images if name in traced.reading.used}:
        return False
    for variable in declaration.variables:
        value = traced.sample.operands.get(variable.name)
        bound = binding.operands.get(variable.name)
        if variable.number and not isinstance(value, T) and made_of(bound, bound, (value, value)) != "":
            return False
    return True


def _unfit(declaration: Declaration) -> PatternError:
    if isinstance(declaration.recorded, PatternError):
        return declaration.recorded
    return PatternError(f"rule {declaration.name!r}: what was recorded is not what the pattern does")


def _recorded_fits(declaration: Declaration, traced: Traced, *, alone: bool = True) -> bool:
    """Whether the recorded terms do for a tracing; `alone`, where there is no other spelling to add."""
    recorded = declaration.recorded
    if isinstance(recorded, PatternError) or not _matches(declaration, recorded, traced)[0]:
        return False
    if not alone:
        return True
    plain = terms(traced.reading, {name: Term() for name in traced.reading.used}, {})
    return with_other_products(plain) is plain


def _require_read(declaration: Declaration, traced: Traced, operands: Mapping[str, Term]) -> None:
    """Sizes come from operands that the pattern reads: of others, a match would not know which they are."""
    read = {dim for name in traced.reading.used for dim in traced.sample.operands[name].dims.split()}
    sizes = [constant for constant in _constants(traced.reading) if isinstance(constant, Sized)]
    shown = [dim for size in sizes for dim in size.names.values()]
    asked = [HIDDEN + traced.symbols[s] for condition in traced.conditions for s in condition.free_symbols]
    if {*shown, *asked} - {HIDDEN + dim for dim in read}:
        unread = ", ".join(sorted(operands.keys() - traced.reading.used))
        raise PatternError(
            f"rule {declaration.name!r}: its pattern reads the size of {unread}, but no value of it, so a match could "
            "not say which tensor that is: make the size a number (numbers=[...]), or a dim of another operand"
        )


def _require_match(declaration: Declaration, outputs: tuple[Any, ...], traced: Traced) -> None:
    matched, why = _matches(declaration, outputs, traced)
    if not matched:
        raise PatternError(f"rule {declaration.name!r} would not match its own source on {traced.sample!r}: {why}")


def _require_outputs(declaration: Declaration, options: Sequence[tuple[str, tuple[Any, ...], Facts]]) -> None:
    counts = {len(outputs) for _, outputs, _ in options}
    if len(counts) > 1:
        raise PatternError(f"rule {declaration.name!r}: its pattern gives different numbers of outputs")
    for _, outputs, _ in options:
        for output in outputs:
            if isinstance(output, (OperandTerm, Variable)) or not isinstance(output, Term):
                raise PatternError(
                    f"rule {declaration.name!r}: in normal form its pattern is {output!r}, which no operator computes: "
                    "it changes nothing that a rule could match"
                )


def _require_complete(declaration: Declaration, tracings: Sequence[Traced]) -> None:
    """Raise an error unless samples show every alternative and every operand, if nothing could be recorded."""
    if not isinstance(declaration.recorded, PatternError):
        return
    shown = {(tag, label) for traced in tracings for tag, label in traced.tags.items()}
    met = {(tag, label) for traced in tracings for tag, labels in traced.met.items() for label in labels}
    for tag, label in sorted(met - shown):
        raise PatternError(f"rule {declaration.name!r}: no sample takes {tag}={label}, so it is not known what it is")
