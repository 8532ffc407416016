"""The `regraft` command: reports, explanations, searches for faults, kernels, benchmarks, settings, rules and checks.

Exit codes: 0 all is well; 1 a finding (wrong results, a regression, a rule that fails its check); 2 a usage error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...._version import __version__
from .ahead import aot
from .bisect import bisect
from .cache import cache
from .check import check
from .corpus import corpus_arguments, run_corpus
from .groups import grouped
from .options import (
    TARGET,
    CompileOptions,
    ExplainedOptions,
    ReportOptions,
    TargetOptions,
    Threads,
    loaded_target,
    set_threads,
)
from .own_rules import own_rules, rules_named, with_offered
from .profile import bench, kernels
from .repro import repro
from .rules import rules
from .settings import modes, options, templates
from .shared import (
    Commands,
    UsageError,
    output_console,
    require_folder,
    require_writable,
    shown_progress,
    usage_errors,
)

if TYPE_CHECKING:
    from ....rewrites.report.document import Report
    from ....rewrites.rule import Rule
    from ..coverage.report import Examination
    from ..targets.target import Choices

app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich",
    help="Pattern-matching graph rewrites for PyTorch: did it match? is it right? was it worth it?",
)  # fmt: skip

app.command()(aot)
app.command()(bisect)
app.command()(repro)
app.command()(kernels)
app.command()(bench)
app.command()(options)
app.command()(modes)
app.command()(templates)
app.add_typer(cache)


def main() -> None:
    """Run the command; the entry point of the console script and of `python -m regraft`."""
    app(prog_name="regraft")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regraft {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
@grouped
def report(
    model: TargetOptions,
    backend: ReportOptions,
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[TARGET]...", help=f"{TARGET}. [default: hf:bert --mask]")
    ] = None,
    threads: Threads = None,
    json_path: Annotated[Path, typer.Option("--json", help="The report as data.")] = Path("regraft-report.json"),
    html_path: Annotated[Path, typer.Option("--html", help="The report as a page.")] = Path("regraft-report.html"),
    no_time: Annotated[bool, typer.Option("--no-time", help="Compile and compare, but do not time.")] = False,
    diff: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="OLD NEW", help="Compare two JSON reports instead; exit code 1 if worse."),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Tiny models of a whole corpus (hf), each in a process; resumable."),
    ] = None,
    parts: Annotated[Path, typer.Option(help="Where --corpus keeps its parts.")] = Path(".regraft-corpus"),
    jobs: Annotated[int, typer.Option(min=1, help="Targets of --corpus side by side.")] = 1,
    snapshot: Annotated[
        Path | None,
        typer.Option(help="Hold the matches of --corpus against this file, exit code 1 on a drop; made if missing."),
    ] = None,
) -> None:
    """Compile models; say what matched and why not, whether results agree with eager, and how fast they are."""
    with usage_errors():
        if diff is not None:
            raise typer.Exit(_diff(*diff))
        require_writable(json_path, html_path)
        chosen = model.choices(mask=model.mask or not targets)
        if corpus is not None:
            arguments = corpus_arguments(chosen, replace(backend, profit=backend.profit or "always"))
            made, drops = run_corpus(corpus, targets or (), arguments, parts, jobs, snapshot)
            _shown(made, json_path, html_path)
            raise typer.Exit(0 if made.right and not drops else 1)
        from ..coverage.report import Examination

        plan = Examination(backend.compiled(), backend.dynamic or None, not no_time)
        made = _examined(targets or ["hf:bert"], chosen, plan, threads)
        _shown(made, json_path, html_path)
    raise typer.Exit(0 if made.right else 1)


@app.command()
@grouped
def explain(
    rule: Annotated[str, typer.Argument(help="A rule, a family or a pass; `regraft rules` lists them.")],
    target: Annotated[str, typer.Argument(help=f"{TARGET}.")],
    model: TargetOptions,
    backend: ExplainedOptions,
    everything: Annotated[bool, typer.Option("--all", help="Every near miss, however little matched.")] = False,
    normal: Annotated[bool, typer.Option("--normal", help="Print the program as rules see it, too.")] = False,
) -> None:
    """Say where a rule matches a model, and where it does not: how far it got, what it expected, what it found.

    Of a pass, say on which graphs it ran, what it changed, and why it left the rest.
    """
    import torch

    from ..explain.explain import explain_all, explained_passes

    with usage_errors():
        mine = own_rules(backend.own)
        passes = explained_passes(rule)
        chosen = [] if passes else _explained(rule, target, mine)
        mine = with_offered(mine, chosen)
        loaded = loaded_target(target, model.choices())
        options = backend.compiled(mine)
        options.setdefault("profit", "always")  # whatever is legal is of interest
        with shown_progress() as progress:
            progress(f"matching {rule} in {target}", 0.5)
            with torch.set_grad_enabled(model.train):
                found = explain_all(
                    passes or chosen,
                    loaded.model,
                    *loaded.args,
                    options=options,
                    dynamic=backend.dynamic or None,
                    **loaded.kwargs,
                )
    typer.echo("\n\n".join(explanation.text(everything=everything) for explanation in found))
    for name, text in found[0].normal.items() if normal else ():
        typer.echo(f"\n==== {name}: the program as rules see it\n{text}")


def _explained(rule: str, target: str, own: Sequence[Rule]) -> list[Rule]:
    """The rules to explain; says so where they and the target are swapped."""
    if not _names_rules(rule, own) and _names_rules(target, own):
        raise UsageError(f"the rule comes first, then the target: regraft explain {target} {rule}")
    return rules_named(rule, own)


def _names_rules(name: str, own: Sequence[Rule]) -> bool:
    try:
        return bool(rules_named(name, own))
    except UsageError:
        return False


@app.command()
@grouped
def code(
    target: Annotated[str, typer.Argument(help=f"{TARGET}.")],
    model: TargetOptions,
    backend: CompileOptions,
    stage: Annotated[
        Literal["all", "graph", "normal", "program", "fusion", "kernels", "lanes", "c++", "triton", "source"],
        typer.Option(
            help="Graphs, the program as rules see it, loop program, fusion log, kernels, those of a CPU in lanes, "
            "their C++ or Triton, or the wrapper."
        ),
    ] = "all",
    standalone: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write each graph as a Python module that runs without regraft there."),
    ] = None,
) -> None:
    """Print what a model is compiled to, stage by stage."""
    from ..coverage.report import Examination

    with usage_errors():
        require_folder(standalone)
        chosen = model.choices()
        options = backend.compiled()
        options["debug"] = True
        if standalone is not None:
            _write_standalone(target, chosen, Examination(options, backend.dynamic or None, timed=False), standalone)
            return
        made = _examined([target], chosen, Examination(options, backend.dynamic or None, timed=False), None)
    for graph in (graph for entry in made.entries for graph in entry.graphs):
        for name, text in graph.details.items():
            if isinstance(text, str) and (stage == "all" or name.partition(":")[0] == stage):
                typer.echo(f"==== {graph.name} {name}\n{text}\n")


def _write_standalone(target: str, chosen: Choices, plan: Examination, folder: Path) -> None:
    from ..standalone import NotStandaloneError
    from ..standalone import standalone as written

    loaded = loaded_target(target, chosen)
    try:
        paths = written(
            loaded.model,
            loaded.args,
            loaded.kwargs,
            folder,
            options=plan.options,
            train=chosen.train,
            dynamic=plan.dynamic,
        )
    except NotStandaloneError as error:
        raise UsageError(f"{target}: {error}") from error
    typer.echo(f"written: {', '.join(map(str, paths))}")


def _examined(targets: Sequence[str], choices: Choices, plan: Examination, threads: int | None) -> Report:
    from ....rewrites.report.document import Report
    from ..coverage.report import examine

    set_threads(threads)
    entries = []
    for target in targets:
        loaded = loaded_target(target, choices)
        with shown_progress() as progress:
            entries.append(examine(loaded, plan, progress))
    return Report(entries)


def _shown(made: Report, *paths: Path) -> None:
    from ....rewrites.report.text import report_view

    output_console().print(report_view(made.entries, made.environment))
    written = [str(made.write(path)) for path in paths]
    typer.echo(f"\nwritten: {', '.join(written)}")


def _diff(old: Path, new: Path) -> int:
    from ....rewrites.diff import compare
    from ....rewrites.report.document import Report

    found = compare(Report.read(old), Report.read(new))
    typer.echo(str(found))
    return found.exit_code


app.command()(rules)
app.command()(check)
