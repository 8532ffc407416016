"""`regraft check`: the property tests of rules, and the near misses that their conditions need."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from .options import Device
from .own_rules import OwnRules, known_rules, own_rules, rules_named
from .shared import UsageError, output_console, require_folder, shown_progress, usage_errors

if TYPE_CHECKING:
    from ....rewrites.rule import Rule
    from ..check import CheckResult, Failure

_FEW_RULES = 3  # most rules for which a check lists what it did not cover


def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[RULE]...", help="Rules or families. [default: all]")
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="Programs to draw for each rule.")] = 50,
    seed: Annotated[int, typer.Option(help="The same seed draws the same programs.")] = 0,
    device: Device = "cpu",
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a runnable script for every counterexample there.")
    ] = None,
    guards: Annotated[
        bool, typer.Option("--guards", help="Instead: what notices if a condition of a rule is dropped.")
    ] = False,
    own: OwnRules = None,
) -> None:
    """Run the property tests of rules: does the replacement compute what the pattern computes?

    They find mistakes, and prove no absence of them: of few rules, what was not covered is listed.
    """
    with usage_errors():
        require_folder(save)
        chosen = _chosen_rules(names, own_rules(own))
        if guards:
            raise typer.Exit(_show_guards(chosen))
    results = _checked(chosen, examples, seed, device)
    idle = [name for name, result in results.items() if device != "cpu" and not (result.runs or result.failures)]
    for name, result in results.items():
        verdict = "unused" if name in idle else "ok    " if result.ok else "FAILED"
        typer.echo(f"{verdict}  {name:<{max(map(len, results))}}  {result.summary}")
    for result in results.values():
        if len(results) <= _FEW_RULES and result.ok:
            typer.echo(result.told_scope)
        for failure in result.failures:
            typer.echo(f"\n{failure}")
            if save is not None:
                typer.echo(f"  script {_saved(failure, save)}")
    failed = [name for name, result in results.items() if not result.ok and name not in idle]
    unused = f", {len(idle)} not for {device}" if idle else ""
    typer.echo(f"\n{len(results) - len(failed) - len(idle)} passed, {len(failed)} failed{unused}")
    raise typer.Exit(1 if failed else 0)


def _checked(rules: Sequence[Rule], examples: int, seed: int, device: str) -> dict[str, CheckResult]:
    from .... import check as checked

    results = {}
    with usage_errors(), shown_progress() as progress:
        for number, rule in enumerate(rules):
            progress(f"checking {rule.name}", number / len(rules))
            try:
                results[rule.name] = checked(rule, examples=examples, seed=seed, device=device)
            except (ModuleNotFoundError, ValueError) as error:
                raise UsageError(str(error)) from error
    return results


def _saved(failure: Failure, folder: Path) -> Path:
    """Write a counterexample's script; its name is the rule's and the candidate's."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = "_".join(filter(None, (failure.rule.name, failure.candidate or failure.sample.refused)))
    taken = (folder / f"{stem}{f'_{i}' if i else ''}.py" for i in itertools.count())
    file = next(f for f in taken if not f.exists())
    file.write_text(failure.script, encoding="utf-8")
    return file


def _show_guards(rules: Sequence[Rule]) -> int:
    """Print what notices the removal of each condition, a near miss or a test; 1 where nothing does for some."""
    from ....patterns.unsampled import UNSAMPLED
    from ..check import noticed

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("rule", "condition", "if dropped, this notices"):
        table.add_column(column, no_wrap=column != "if dropped, this notices")
    missing = 0
    with shown_progress() as progress:
        for number, rule in enumerate(rules):
            progress(f"dropping conditions of {rule.name}", number / len(rules))
            for condition, sample in noticed(rule).items():
                tested = UNSAMPLED.get((rule.name, condition), "")
                missing += sample is None and not tested
                shown = repr(sample) if sample is not None else f"tests/patterns/{tested}" if tested else "NONE"
                table.add_row(rule.name, escape(condition), escape(shown))
    output_console().print(table)
    typer.echo(f"{table.row_count - missing} of {table.row_count} conditions are noticed by a near miss or a test")
    return 1 if missing else 0


def _chosen_rules(names: Sequence[str] | None, own: Sequence[Rule] = ()) -> list[Rule]:
    """The rules or families of these names; where none is given, one's own, or all of the library."""
    if names:
        return list({rule.name: rule for name in names for rule in rules_named(name, own)}.values())
    return list(own) or known_rules()
