"""`regraft repro`: write a small script that shows a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import (
    TARGET,
    Batch,
    Config,
    Device,
    DType,
    Dynamic,
    Freezing,
    Layers,
    Mask,
    Mode,
    Profit,
    Seq,
    Settings,
    Tiny,
    Tolerance,
    Train,
    chosen_target,
    compiled_with,
    loaded_target,
)
from .own_rules import OwnRules, own_rules
from .shared import UsageError, require_writable, shown_progress, usage_errors


def repro(
    target: Annotated[str, typer.Argument(help=f"{TARGET}.")],
    out: Annotated[Path, typer.Option("--out", help="The script.")] = Path("repro.py"),
    layers: Layers = None,
    tiny: Tiny = False,
    mask: Mask = False,
    train: Train = False,
    dtype: DType = "float32",
    batch: Batch = 1,
    seq: Seq = None,
    device: Device = "cpu",
    settings: Settings = None,
    dynamic: Dynamic = False,
    mode: Mode = None,
    freezing: Freezing = False,
    profit: Profit = None,
    config: Config = None,
    own: OwnRules = None,
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
        chosen = chosen_target(layers, tiny, mask, train, dtype, batch, seq, device, settings)
        options = compiled_with(config, mode, freezing=freezing, profit=profit, own=own_rules(own))
        loaded = loaded_target(target, chosen)
        with shown_progress() as progress:
            try:
                made = written(
                    loaded.model, loaded.kwargs or loaded.args, out, options=options, dynamic=dynamic or None,
                    train=train, tolerance=tolerance, isolate=isolate, minimize=minimize, seconds=seconds,
                    progress=progress,
                )  # fmt: skip
            except (NothingFailsError, NotWritableError) as error:
                raise UsageError(f"{target}: {error}") from error
    typer.echo(str(made))
