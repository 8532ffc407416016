"""The commands that time: `regraft kernels` and `regraft bench`."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import Annotated, Any

import typer

from .empty_caches import empty_caches
from .groups import grouped
from .options import TARGET, BackendOptions, CompileOptions, Modes, TargetOptions, Threads, loaded_target, set_threads
from .shared import UsageError, output_console, require_writable, shown_progress, usage_errors


@grouped
def kernels(
    target: Annotated[str, typer.Argument(help=f"{TARGET}.")],
    model: TargetOptions,
    backend: CompileOptions,
    top: Annotated[int, typer.Option(min=1, help="Kernels in the table; files hold all.")] = 20,
    threads: Threads = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="The report as data.")] = None,
    html_path: Annotated[Path | None, typer.Option("--html", help="The report as a page.")] = None,
) -> None:
    """Say where the time of a compiled model goes: each kernel's time, bytes, FLOPs, limits and source lines."""
    import torch

    from ..profile import kernels as profiled
    from ..profile.profiler import NothingRanError

    with usage_errors():
        set_threads(threads)
        require_writable(json_path, html_path)
        chosen = model.choices()
        loaded = loaded_target(target, chosen)
        options = backend.compiled()
        with shown_progress() as progress, torch.set_grad_enabled(model.train):
            progress(f"timing the kernels of {target}", 0.5)
            try:
                made = profiled(
                    loaded.model, *loaded.args, options=options, dynamic=backend.dynamic or None, **loaded.kwargs
                )
            except NothingRanError as error:
                raise UsageError(f"{target}: {error}") from error
        made = dataclasses.replace(made, name=_label(target, chosen.changed()))
        output_console().print(made.view(top))
        written = [str(made.write(path)) for path in (json_path, html_path) if path is not None]
    if written:
        typer.echo(f"\nwritten: {', '.join(written)}")


@grouped
def bench(
    target: Annotated[str, typer.Argument(help=f"{TARGET}.")],
    model: TargetOptions,
    backend: BackendOptions,
    backends: Annotated[str, typer.Option(help="Backends of torch.compile.")] = "eager,inductor,regraft",
    modes: Annotated[str, typer.Option(help="Modes of torch.compile, for every backend.")] = "default",
    templates: Annotated[
        str, typer.Option(help="Configuration templates of regraft, or all of them: compared instead of backends.")
    ] = "",
    generate: Annotated[
        int | None, typer.Option(min=2, help="Instead of a forward: generate so many tokens, static cache.")
    ] = None,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prompt of --generate.")] = 128,
    threads: Threads = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="The comparison as data.")] = None,
) -> None:
    """Time a model by several backends, taking turns in one process: medians, first calls, errors, peak memory."""
    import torch

    from ..profile.comparison import compare

    with usage_errors():
        set_threads(threads)
        require_writable(json_path)
        made: Any
        contestants = _templates(templates) if templates else _contestants(backends, modes)
        options = backend.compiled()
        for one in contestants:
            one.dynamic = backend.dynamic or None
            one.options = {**options, **one.options} if one.backend == "regraft" else {}
        chosen = model.choices()
        if generate is not None:
            made = _generated(target, chosen, contestants, prompt, generate)
        else:
            loaded = loaded_target(target, chosen)
            with shown_progress() as progress, empty_caches() as forget, torch.set_grad_enabled(model.train):
                made = compare(
                    loaded.model, loaded.args, loaded.kwargs, contestants,
                    name=_label(target, chosen.changed()), progress=progress, forget=forget,
                )  # fmt: skip
    output_console().print(made.view())
    if json_path is not None:
        typer.echo(f"\nwritten: {made.write(json_path)}")
    if any(one.failed for one in made.contestants):
        raise typer.Exit(1)


def _generated(target: str, chosen: Any, contestants: list[Any], prompt: int, tokens: int) -> Any:
    """The comparison at generating text.

    Raises:
        UsageError: an option that says nothing of it.
        TargetError: the target is no decoder.
    """
    from ..generation.comparison import compare_generation
    from ..generation.decoding import require_decoder
    from ..generation.plan import GenerationPlan
    from ..targets.load import load_decoder

    unused = [f"--{name}" for name in ("train", "mask", "seq") if name in chosen.changed()]
    if unused:
        raise UsageError(f"--generate goes without {', '.join(unused)}: prompts have --prompt tokens and no padding")
    plan = GenerationPlan(chosen.batch, prompt, tokens)
    with shown_progress() as progress:
        progress(f"building {target}", 0.0)
        loaded = load_decoder(target, chosen, plan.room)
        require_decoder(loaded.model, target)
        name = _label(target, {**chosen.changed(), "prompt": str(prompt), "generate": str(tokens)})
        return compare_generation(loaded.model, contestants, plan, name=name, progress=progress)


def _contestants(backends: str, modes: str) -> list[Any]:
    import typing

    import torch

    from ..profile.contestants import EAGER, contestants

    known = {EAGER, "regraft", *torch.compiler.list_backends(exclude_tags=None)}
    names, chosen = _listed(backends, known, "backend"), _listed(modes, set(typing.get_args(Modes)), "mode")
    return contestants(names, chosen)


def _templates(names: str) -> list[Any]:
    from ...options import list_templates
    from ..profile.contestants import EAGER, Contestant

    known = list_templates()
    chosen = list(known) if names.strip() == "all" else _listed(names, set(known), "template")
    return [Contestant(EAGER, ""), *(Contestant("regraft", "", options={"template": name}) for name in chosen)]


def _listed(text: str, known: set[str], what: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(known))}"
            raise UsageError(f"there is no {what} {name!r}; {hint}")
    if not names:
        raise UsageError(f"no {what} is given; there are: {', '.join(sorted(known))}")
    return names


def _label(target: str, changed: dict[str, str]) -> str:
    return " ".join([target, *(f"--{name} {value}".strip() for name, value in changed.items())])
