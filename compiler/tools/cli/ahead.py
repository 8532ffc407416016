"""`regraft aot`: a target to one file that runs without Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ....rewrites.words import counted
from .groups import grouped
from .options import TARGET, Config, ModelOptions, configured, loaded_target
from .shared import UsageError, output_console, require_writable, usage_errors


@grouped
def aot(
    model: ModelOptions,
    target: Annotated[str | None, typer.Argument(help=f"{TARGET}.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("model.rgx"),
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Let dims change that torch.export can leave open.")
    ] = False,
    include: Annotated[bool, typer.Option("--include", help="Print the folder of regraft_aot.h.")] = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Rows. [default: 2 of hf:TYPE]")] = None,
    config: Config = None,
) -> None:
    """Compile a model ahead of time, for CPUs, to one file for `regraft.load` and for C++."""
    if include:
        from ... import aot as package

        typer.echo(Path(str(package.__file__)).parent / "include")
        return
    from ...aot.artifact import read_manifest
    from ...aot.compile import aot_compile
    from ...aot.errors import AotError

    with usage_errors():
        if target is None:
            raise UsageError(f"a target is missing: {TARGET}")
        require_writable(out)
        options = configured(config)
        rows = batch or (2 if target.startswith("hf:") else 1)
        made = loaded_target(target, model.choices(batch=rows))
        try:
            written = aot_compile(
                made.model,  # type: ignore[arg-type]
                made.args,
                out,
                kwargs=made.kwargs,
                dynamic_shapes=_dynamic(made.model, made.args, made.kwargs) if dynamic else None,
                options=options,
            )
        except AotError as error:
            raise UsageError(str(error)) from None
        manifest = read_manifest(written)
    size, constants = written.stat().st_size / 1e6, manifest["constants"]["bytes"] / 1e6
    kernels = counted(len(manifest["kernels"]), "kernel")
    output_console().print(f"{written}: {size:.1f} MB, of which {constants:.1f} MB constants; {kernels}")
    for where, (low, high) in manifest["dynamic"].items():
        output_console().print(f"  {where}: from {low}" + (f" to {high}" if high is not None else ""))


def _dynamic(model: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """All dims of all tensors as `torch.export` finds them, by the names of the model's inputs."""
    import inspect

    import torch

    from ....rewrites.compat import tree_map

    def dims(value: Any) -> Any:
        return dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO) if isinstance(value, torch.Tensor) else None

    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    return {name: tree_map(dims, value) for name, value in given.items()}
