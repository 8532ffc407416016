"""`regraft bisect`: find what causes a wrong result, a NaN or a crash."""

from __future__ import annotations

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
from .shared import shown_progress, usage_errors


def bisect(
    target: Annotated[str, typer.Argument(help=f"{TARGET}.")],
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
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Each run in a process of its own; else only once one has crashed.")
    ] = False,
) -> None:
    """Find the rule, pass, template, kernel or fusion that causes a wrong result, a NaN or a crash.

    Halves are left out until one step is left. Exit code 1 where the model fails.
    """
    from ..bisect import Forked, InProcess, Runner, Subject, find, given_options

    with usage_errors():
        chosen = chosen_target(layers, tiny, mask, train, dtype, batch, seq, device, settings)
        given = compiled_with(config, mode, freezing=freezing, profit=profit, own=own_rules(own))
        options = given_options(given, train)

    def subject() -> Subject:
        loaded = loaded_target(target, chosen)
        return Subject(loaded.model, loaded.args, loaded.kwargs, train=train, tolerance=tolerance)

    run: Runner = Forked(subject, options, dynamic or None)
    with usage_errors(), shown_progress() as progress:
        progress("the first run, in a process of its own", 0.0)
        if not isolate and run({}).verdict.outcome not in ("died", "slow"):
            run = InProcess(subject(), options, dynamic or None)
        finding = find(run, progress)
    typer.echo(str(finding))
    raise typer.Exit(0 if finding.ok else 1)
