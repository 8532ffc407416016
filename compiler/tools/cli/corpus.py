"""`regraft report --corpus NAME`: the command line of corpus runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .shared import UsageError, shown_progress

if TYPE_CHECKING:
    from ....rewrites.report.document import Report
    from ..targets.target import Choices
    from .groups import CommandOptions

LAYERS = 2


def corpus_arguments(choices: Choices, backend: CommandOptions) -> tuple[str, ...]:
    """The command line for one target: tiny models, not timed.

    Args:
        choices: about the target.
        backend: how to compile.
    """
    given = choices.changed() | {"layers": str(choices.layers or LAYERS), "tiny": ""}
    words = [word for name, value in sorted(given.items()) for word in _words(name, value)]
    return (*words, *backend.arguments(), "--no-time", "--threads", "1")


def _words(name: str, value: str) -> list[str]:
    if name == "set":
        return [word for setting in value.split(" ") for word in ("--set", setting)]
    return [f"--{name}", value] if value else [f"--{name}"]


def run_corpus(
    name: str, targets: Sequence[str], arguments: tuple[str, ...], folder: Path, jobs: int, snapshot: Path | None
) -> tuple[Report, list[str]]:
    """Examine a corpus, or the `targets` of it; gives the report, and where it matches less than the snapshot."""
    from ..coverage.corpus import CORPORA, Run, run

    if name not in CORPORA:
        raise UsageError(f"no corpus is called {name!r}; there are: {', '.join(CORPORA)}")
    strangers = [target for target in targets if target not in CORPORA[name]]
    if strangers:
        raise UsageError(f"corpus {name!r} has no {', '.join(strangers)}")
    with shown_progress() as progress:
        finished = run(Run(tuple(targets) or CORPORA[name], arguments, folder, jobs), progress)
    for target, problem in finished.failed.items():
        typer.echo(f"failed   {target}: {problem}", err=True)
    drops = [] if snapshot is None else _held(finished.report, snapshot)
    for drop in drops:
        typer.echo(f"dropped  {drop}", err=True)
    return finished.report, drops


def _held(report: Report, path: Path) -> list[str]:
    """The drops of a report against the snapshot at `path`, which is written if there is none."""
    from ..coverage import coverage_snapshot

    found = coverage_snapshot.counts(report)
    if path.exists():
        return coverage_snapshot.drops(coverage_snapshot.read(path), found)
    coverage_snapshot.write(path, found)
    typer.echo(f"written: {path}", err=True)
    return []
