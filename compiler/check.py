"""The property test that every rule carries, derived from its pattern, its candidates and its samples alone.

For each sample, hypothesis draws sizes (0 and 1 among them), dtypes, layouts and values (NaN and inf among them). The
pattern is captured and rewritten by the real driver; the rewritten program must

    match          wherever sizes are ordinary
    agree          error against float64 no worse than the contract allows, forward and gradients
    keep NaN       where the rule's policy says so
    keep the draw  where the rule promises eager's random stream
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..patterns.packing import FROZEN
from ..rewrites.driver import Settings, rewrite
from ..rewrites.effects import mark_gradients
from ..rewrites.pattern import choosing
from ..rewrites.profit import Always
from ..rewrites.record import GraphRecord
from ..rewrites.rule import Rule
from ..rewrites.sample import Sample, T
from .backend import resolve_rules
from .check_inputs import Drawn, build, draw
from .compare import Disagreement, compare
from .normal import LOWERED_FORM, NORMAL_FORM
from .torch_compat import capture_function


@dataclass(frozen=True)
class Failure:
    """A counterexample: what was drawn, and what went wrong."""

    rule: str
    candidate: str
    sample: Sample
    drawn: Drawn
    problem: str

    def __str__(self) -> str:
        return f"{self.rule}/{self.candidate}: {self.problem}\n  with {self.sample}\n  drawn {self.drawn}"


@dataclass
class CheckResult:
    """What `check` found; `runs` counts compared programs, `declined` those that the rule rightly did not match."""

    rule: str
    runs: int = 0
    declined: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether something was compared and nothing failed."""
        return not self.failures and self.runs > 0

    def __str__(self) -> str:
        head = f"{self.rule}: {'ok' if self.ok else 'FAILED'} ({self.runs} compared, {self.declined} declined)"
        return "\n".join([head, *map(str, self.failures)])


def check(rule: Rule | str, *, examples: int = 50, seed: int = 0) -> CheckResult:
    """Run the property test of one rule.

    Args:
        rule: a rule or the name of one.
        examples: how many programs to draw for each candidate; every sample gets its share.
        seed: the same seed draws the same programs.

    Returns:
        The result; `ok` where no counterexample was found. At most one failure per candidate and sample is kept,
        made as small as halving sizes and plainer choices can make it.
    """
    (chosen,) = resolve_rules((rule,))
    result = CheckResult(chosen.name)
    matching = [s for s in chosen.samples if not s.refused]
    each = max(1, -(-examples // len(matching)))
    for candidate in chosen.candidates:
        alone = replace(chosen, candidates=(candidate,))
        for number, sample in enumerate(matching):
            source = random.Random(f"{seed} {candidate.name} {number}")
            _check_sample(alone, sample, [draw(source, chosen, sample, plain=i == 0) for i in range(each)], result)
    return result


def refusals(rule: Rule, sample: Sample) -> set[str]:
    """The codes of the reasons that a rule gives on a sample's own operands; empty where it matches.

    The program is the rule's pattern itself, so what a rule refuses is what its operands are.
    """
    names = sorted({d for t in sample.operands.values() if isinstance(t, T) for d in t.dims.split() if not d.isdigit()})
    drawn = Drawn(tuple((n, sample.sizes[n]) for n in names))
    _, record = _rewritten(*_program(rule, sample, drawn), drawn)
    return set() if record.applied else {m.code for m in record.near_misses}


def _check_sample(rule: Rule, sample: Sample, drawn: list[Drawn], result: CheckResult) -> None:
    for one in drawn:
        problem = _problem(rule, sample, one, result)
        if problem is None:
            continue
        smallest = one.shrunk(lambda d: _problem(rule, sample, d, CheckResult(rule.name)) is not None)
        final = _problem(rule, sample, smallest, CheckResult(rule.name)) or problem
        result.failures.append(Failure(rule.name, rule.candidates[0].name, sample, smallest, final))
        return


def _problem(rule: Rule, sample: Sample, drawn: Drawn, result: CheckResult) -> str | None:
    """What is wrong with the rewritten program on one drawn example, or None."""
    try:
        return _difference(rule, sample, drawn, result)
    except Exception as error:  # a counterexample like any other, to be shrunk and shown
        return f"raised {type(error).__name__}: {error}"


def _difference(rule: Rule, sample: Sample, drawn: Drawn, result: CheckResult) -> str | None:
    _, program, operands, frozen = _program(rule, sample, drawn)
    rewritten, record = _rewritten(rule, program, operands, frozen, drawn)
    if not record.applied:
        result.declined += 1
        reasons = "; ".join(m.message for m in record.near_misses) or "no operator fits"
        unusable = any(m.code == "kernel-unavailable" for m in record.near_misses)
        return f"did not match: {reasons}" if drawn.ordinary and not unusable else None
    result.runs += 1
    found: Disagreement | None = compare(rule, program, rewritten, operands, drawn)
    return None if found is None else str(found)


def _program(rule: Rule, sample: Sample, drawn: Drawn) -> tuple[Rule, Callable[..., Any], list[Any], list[bool]]:
    """The rule, the program that a sample makes of its pattern, the operands, and which of them are frozen."""

    def program(*given: Any) -> Any:
        with choosing(dict(sample.tags)):
            return rule.pattern(*given)

    specs = [sample.operands.get(v.name) for v in rule.variables]
    return rule, program, build(rule, sample, drawn), [isinstance(t, T) and t.frozen for t in specs]


def _rewritten(
    rule: Rule, program: Callable[..., Any], operands: list[Any], frozen: list[bool], drawn: Drawn
) -> tuple[Callable[..., Any], GraphRecord]:
    graph_module, places = capture_function(program, operands, dynamic=drawn.dynamic)
    for place, node in zip(places, graph_module.graph.find_nodes(op="placeholder"), strict=False):
        if frozen[place]:
            node.meta[FROZEN] = True
    mark_gradients(graph_module.graph, [drawn.training and operands[i].requires_grad for i in places])
    record = GraphRecord(rule.name)
    settings = Settings(
        stage=rule.stage,
        normal_form=NORMAL_FORM if rule.stage == "forward" else LOWERED_FORM,
        oracle=Always(),
        training=drawn.training,
        keep_stream=rule.numerics.random != "distribution",
        verify="structure",
        near_miss_depth=0,
    )
    rewrite(graph_module, [rule], settings, record)

    def run(*given: Any) -> Any:
        return graph_module(*(given[i] for i in places))

    return run, record
