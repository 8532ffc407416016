"""Why did a rule match, or not? `explain` compiles a model as `torch.compile` does, and reports on rules or passes.

All rules run, so that rules whose input another rule creates match too. Reports go down to single operators. Of a pass,
reports say on which graphs it ran, what it changed, and why it left the rest as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ....rewrites.coverage import coverage
from ....rewrites.record import GraphRecord
from ....rewrites.rule import Rule
from ....rewrites.ruleset import RuleSet
from ...backend import Compilation
from ...options import OptionError, Options
from ...options.rules import resolve_rules
from ...pipeline import pass_facts
from ..own_code import with_own_code
from .explanation import Explanation

_LATER = ("configuration", "cudagraphs", "wrapper", "kernels")  # stages whose fallbacks hide nothing from rules


@dataclass(frozen=True)
class ExplainedPass:
    """A pass or a template, as far as an explanation needs it."""

    name: str
    doc: str
    advice: Mapping[str, str] = field(default_factory=dict)


def explained_passes(name: str) -> list[ExplainedPass]:
    """The pass or template of a name."""
    found = [fact for fact in pass_facts() if fact["name"] == name]
    return [ExplainedPass(name, fact["doc"]) for fact in found[:1]]


def explain(
    rule: Rule | str, model: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> Explanation:
    """Compile `model`, run it on the arguments, and report the matches and near misses of `rule`.

    Args:
        rule: a rule, or the name of a rule or a pass. A rule runs among those of option ``rules``, by default the
            library's.
        model: a module or function; it is run once. It is not changed.
        *args: its arguments.
        options: as for `torch.compile`. By default, every legal match is applied (``{"profit": "always"}``). To see
            the matches of your own compilation, give its options.
        **kwargs: the model's keyword arguments.

    Raises:
        OptionError: no rule has that name, or an option is wrong.
        TypeError: `rule` and `model` are swapped.
    """
    return explain_all((rule,), model, *args, options=options, **kwargs)[0]


def explain_all(
    rules: Iterable[Rule | ExplainedPass | str],
    model: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> list[Explanation]:
    """The same for several rules, in one compilation.

    Args:
        rules: rules, passes, or names of them.
        model: a module or function.
        *args: its arguments.
        options: as for `torch.compile`.
        dynamic: as for `torch.compile`.
        **kwargs: the model's keyword arguments.
    """
    chosen = [_chosen(rule, model) for rule in rules]
    given = {"profit": "always"} if options is None else dict(options)
    own = [rule for rule in chosen if isinstance(rule, Rule)]
    parsed = Options.parse(None, {**given, "rules": tuple(_beside(given.get("rules"), own))})
    explained = frozenset(rule.name for rule in chosen)

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return Compilation(gm, example_inputs, parsed, explained=explained).run()

    with coverage() as cov:
        try:
            torch.compile(with_own_code(model), backend=backend, dynamic=dynamic)(*args, **kwargs)
        except Exception as error:
            if len(args) == 1 and isinstance(args[0], (tuple, list)) and not kwargs:
                error.add_note("explain() takes the model's inputs one by one: explain(rule, model, *inputs)")
            raise
    return [_explanation(rule, cov.graphs) for rule in chosen]


def _chosen(rule: Any, model: Any) -> Rule | ExplainedPass:
    if callable(rule) and not isinstance(rule, (Rule, str)) and isinstance(model, (Rule, str)):
        raise TypeError(f"explain() takes the rule first, then the model: explain({model!r}, model, *args)")
    if not isinstance(rule, (Rule, ExplainedPass, str)):
        raise OptionError(f"explain() takes a rule or the name of one, not {type(rule).__name__}: {rule!r}")
    if isinstance(rule, ExplainedPass):
        return rule
    passes = explained_passes(rule) if isinstance(rule, str) else []
    (one,) = passes or resolve_rules((rule,))
    return one


def _beside(rules: Any, chosen: Iterable[Rule]) -> RuleSet:
    """The rules that run: those of the options, after rules to explain that are not among them."""
    items = (rules,) if isinstance(rules, (str, Rule)) else rules
    known = resolve_rules(None if items is None else tuple(items))
    return RuleSet(rule for rule in chosen if rule.name not in known) + known


def _explanation(rule: Rule | ExplainedPass, graphs: list[GraphRecord]) -> Explanation:
    misses = [m for g in graphs for m in g.near_misses if m.rule == rule.name]
    telling = [m for m in misses if m.is_telling]
    matches = [m for g in graphs for m in g.applied if m.rule == rule.name]
    if not matches and not telling:  # the closest near miss
        deepest = max((m.depth for m in misses), default=0)
        telling = [m for m in misses if m.depth == deepest]
    return Explanation(
        rule.name,
        matches,
        sorted(telling, key=lambda m: -m.depth),
        [f for g in graphs for f in g.fallbacks if f.rule == rule.name or (not f.rule and f.stage not in _LATER)],
        len(graphs),
        rule.doc.split("\n\n")[0].replace("\n", " "),
        declined=[m for g in graphs for m in g.declined if m.rule == rule.name],
        others=[m for m in misses if m not in telling],
        later=_later(rule, graphs),
        advice=rule.advice,
        runs=[run for g in graphs for run in g.passes if run.name == rule.name],
        normal={f"{g.name} {k[7:]}": t for g in graphs for k, t in g.details.items() if k.startswith("normal:")},
    )


def _later(rule: Rule | ExplainedPass, graphs: list[GraphRecord]) -> dict[tuple[str, str], list[str]]:
    """The matches of other rules, by module and source line."""
    found: dict[tuple[str, str], list[str]] = {}
    for match in (match for graph in graphs for match in graph.applied):
        if match.rule != rule.name and match.site is not None and match.stage != "simplify":
            told = found.setdefault((match.module, str(match.site)), [])
            told += [match.rule] if match.rule not in told else []
    return found
