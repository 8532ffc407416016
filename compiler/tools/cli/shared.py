"""Parts of all commands: usage errors, and progress on standard error."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

errors = Console(stderr=True, emoji=False)  # "hf:llama:" is no picture of a llama


class UsageError(ValueError):
    """An argument that names nothing; the message says what there is."""


def require_writable(*paths: Path | None) -> None:
    """Raise before the work where its result could not be written after it.

    Raises:
        UsageError: a folder does not exist, or may not be written to.
    """
    for path in paths:
        if path is None:
            continue
        if not path.parent.is_dir():
            raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
        if path.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(f"cannot write {path}: this user may not")


@contextlib.contextmanager
def shown_progress() -> Iterator[Callable[[str, float], None]]:
    """A progress bar on standard error, if that is a terminal: tell it what is being done, and which part is behind."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda doing, done: progress.update(task, description=escape(doing), completed=done)


def output_console() -> Console:
    """Standard output; a file or pipe has no width of its own, and tables want more than rich's 80 columns."""
    console = Console(emoji=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=120, emoji=False)


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """A usage error is one line and exit code 2; anything else is a fault, with its traceback."""
    from ....rewrites.report.document import ReportError
    from ...options import OptionError
    from ..targets.target import TargetError

    try:
        yield
    except (UsageError, TargetError, OptionError, ReportError) as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
