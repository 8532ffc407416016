"""`regraft repro`: write a small script that shows a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .groups import grouped
from .options import TARGET, CompileOptions, TargetOptions, Tolerance, loaded_target
from .shared import UsageError, require_writable, shown_progress, usage_errors


@grouped
def repro(
    target: Annotated[str, typer.Argument(help=f"{TARGET}.")],
    model: TargetOptions,
    backend: CompileOptions,
    out: Annotated[Path, typer.Option("--out", help="The script.")] = Path("repro.py"),
    tolerance: Tolerance = None,
    isolate: Annotated[bool, typer.Option("--isolate", help="Run in forks: for what crashes.")] = False,
    minimize: Annotated[bool, typer.Option(help="Make it small.")] = True,
    seconds: Annotated[float, typer.Option(min=1, help="That making it small may take.")] = 120.0,
) -> None:
    """Write a script that shows a wrong result, a NaN or a crash of a compiled model without the model."""
    from ..repro import NothingFailsError, NotWritableError
    from ..repro import repro as written

    with usage_errors():
        require_writable(out)
        chosen = model.choices()
        options = backend.compiled()
        loaded = loaded_target(target, chosen)
        with shown_progress() as progress:
            try:
                made = written(
                    loaded.model, loaded.kwargs or loaded.args, out, options=options, dynamic=backend.dynamic or None,
                    train=model.train, tolerance=tolerance, isolate=isolate, minimize=minimize, seconds=seconds,
                    progress=progress,
                )  # fmt: skip
            except (NothingFailsError, NotWritableError) as error:
                raise UsageError(f"{target}: {error}") from error
    typer.echo(str(made))
