"""`regraft bisect`: find what causes a wrong result, a NaN or a crash."""

from __future__ import annotations

from typing import Annotated

import typer

from .groups import grouped
from .options import TARGET, CompileOptions, TargetOptions, Tolerance, loaded_target
from .shared import shown_progress, usage_errors


@grouped
def bisect(
    target: Annotated[str, typer.Argument(help=f"{TARGET}.")],
    model: TargetOptions,
    backend: CompileOptions,
    tolerance: Tolerance = None,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Each run in a process of its own; else only once one has crashed.")
    ] = False,
) -> None:
    """Find the rule, pass, template, kernel or fusion that causes a wrong result, a NaN or a crash.

    Halves are left out until one step is left. Exit code 1 where the model fails.
    """
    from ..bisect import Forked, InProcess, Runner, Subject, find, given_options

    with usage_errors():
        chosen = model.choices()
        given = backend.compiled()
        options = given_options(given, model.train)

    def subject() -> Subject:
        loaded = loaded_target(target, chosen)
        return Subject(loaded.model, loaded.args, loaded.kwargs, train=model.train, tolerance=tolerance)

    run: Runner = Forked(subject, options, backend.dynamic or None)
    with usage_errors(), shown_progress() as progress:
        progress("the first run, in a process of its own", 0.0)
        if not isolate and run({}).verdict.outcome not in ("died", "slow"):
            run = InProcess(subject(), options, backend.dynamic or None)
        finding = find(run, progress)
    typer.echo(str(finding))
    raise typer.Exit(0 if finding.ok else 1)
