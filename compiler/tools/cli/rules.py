"""`regraft rules`: the default rules, the passes over whole graphs, and the operators without kernels."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from .own_rules import OwnRules, known_rules, own_rules, rules_named
from .shared import output_console, usage_errors

if TYPE_CHECKING:
    from ....rewrites.rule import Rule

CONTRACTS_FROM = 100  # fewest columns of a terminal in which the list of rules includes numerical contracts


def rules(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RULE]...", help="Rules or families to show in full. [default: a list of all]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As data, on standard output.")] = False,
    fallbacks: Annotated[
        bool, typer.Option("--fallbacks", help="Instead: the operators that no kernel is generated for, and why.")
    ] = False,
    own: OwnRules = None,
) -> None:
    """List the default rules with their contracts, and the passes that rewrite whole graphs."""
    from ....rewrites.ruleset import plugin_names

    if fallbacks:
        _show_fallbacks(as_json)
        return
    with usage_errors():
        facts = _chosen_facts(names, own_rules(own))
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
    elif names:
        typer.echo("\n\n".join(_described(fact) for fact in facts))
    else:
        console = output_console()
        console.print(_rule_table(facts, contracts=console.width >= CONTRACTS_FROM))
        for name, package in plugin_names().items():
            console.print(
                f" {package} offers rules as {name!r}: --rules {name}, options={{'rules': ({name!r}, 'default')}}"
            )


def _chosen_facts(names: Sequence[str] | None, own: Sequence[Rule]) -> list[dict[str, Any]]:
    """Rules and passes of these names or families as data; all where none is given."""
    from ...pipeline import pass_facts

    facts = [*map(_facts, known_rules(own)), *pass_facts()]
    known = {fact[key] for fact in facts for key in ("name", "family")}
    for name in names or ():
        if name not in known:
            offered = [_facts(rule) for rule in rules_named(name, own)]  # or an error that says what there is
            facts, names = facts + offered, [*names, *(fact["name"] for fact in offered)]  # type: ignore[misc]
    return [fact for fact in facts if not names or fact["name"] in names or fact["family"] in names]


def _show_fallbacks(as_json: bool) -> None:
    """The operators that stay calls on purpose, by reason."""
    from ...lowering.fallbacks import KEPT

    if as_json:
        facts = {name: {"code": code, "why": why} for name, (code, why) in sorted(KEPT.items())}
        typer.echo(json.dumps(facts, indent=1))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("reason", "operators", "why"):
        table.add_column(column, no_wrap=column == "reason")
    for code, why in sorted(set(KEPT.values())):
        names = ", ".join(sorted(name for name, reason in KEPT.items() if reason == (code, why)))
        table.add_row(*map(escape, [code, names, why]))
    output_console().print(table)


def _described(fact: dict[str, Any]) -> str:
    """A rule in full, as text."""
    alternatives = "; ".join(f"{tag}: {', '.join(labels)}" for tag, labels in fact["tags"].items())
    lines = {
        "": f"family {fact['family']}, stage {fact['stage']}",
        "numerics": f"{fact['numerics']}; NaN: {fact['nan']}",
        "replacements": ", ".join(fact["candidates"]),
        "alternatives": alternatives or "none",
    }
    if "when" in fact:  # a pass
        lines["runs for"] = "; ".join(fact["when"]) or "every graph"
    text = "\n".join(f"  {name}: {value}" if name else f"  {value}" for name, value in lines.items())
    return f"{fact['name']}\n{text}\n\n{textwrap.indent(fact['doc'], '  ')}"


def _rule_table(facts: Sequence[dict[str, Any]], contracts: bool) -> Table:
    """A line per rule; `contracts` adds what it promises of numbers, which a narrow terminal has no room for."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    titles = {"name": "rule", "family": "family", "stage": "stage"}
    if contracts:
        titles |= {"numerics": "numerics", "nan": "NaN"}
    for key, title in titles.items():
        table.add_column(title, no_wrap=key in ("name", "family", "stage"))
    table.add_column("what it does")
    for fact in facts:
        cells = [*(fact[key] for key in titles), fact["doc"].split("\n\n")[0].replace("\n", " ")]
        table.add_row(*map(escape, cells))
    return table


def _facts(rule: Rule) -> dict[str, Any]:
    tags = {tag: list(labels) for tag, labels in rule.tags.items()}
    shown = {name: str(getattr(rule, name)) for name in ("name", "family", "stage", "numerics", "nan", "doc")}
    return shown | {"candidates": [c.name for c in rule.candidates], "tags": tags}
