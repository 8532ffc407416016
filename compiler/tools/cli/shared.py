"""Parts of all commands: usage errors, and progress on standard error."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

_MISUSE: type[Exception] = typer.BadParameter.__mro__[1]  # UsageError, which typer does not export
SILENT_SECONDS = 5.0  # for which a command that is not watched in a terminal says nothing of its progress
_NUMBERED = re.compile(r"round \d+( of \d+)?")  # steps of one kind
errors = Console(stderr=True, emoji=False)  # "hf:llama:" is no picture of a llama


class UsageError(ValueError):
    """An argument that names nothing; the message says what there is."""


class Commands(TyperGroup):
    """The commands; what is wrong with a command line itself is told in one line, as every other usage error."""

    def main(self, *args: Any, **given: Any) -> Any:
        """Run a command, and end the process with its exit code."""
        try:
            code = super().main(*args, **given | {"standalone_mode": False})
        except typer.Abort:
            code = _told("stopped", 1)
        except _MISUSE as error:
            code = _misused(error)
        sys.exit(code if isinstance(code, int) else 0)


def _misused(error: Any) -> int:
    """Tell what is wrong with a command line; without any argument, that is the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    context = getattr(error, "ctx", None)
    where = f" ({context.command_path} --help)" if context is not None else ""
    return _told(error.format_message().replace("Value error, ", "").rstrip(".") + where, 2)


def _told(message: str, code: int) -> int:
    line = "; ".join(part.strip() for part in message.splitlines() if part.strip())
    errors.print(f"[bold red]error:[/] {escape(line)}", highlight=False, soft_wrap=True)
    return code


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
        fresh = not path.exists()
        try:
            path.open("ab").close()
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
        if fresh:
            path.unlink()


def require_folder(path: Path | None) -> None:
    """Raise before the work where no files could be written into a folder, which is made where there is none.

    Raises:
        UsageError: it is a file, or may not be made or written to.
    """
    known = next((one for one in (path, *path.parents) if one.exists()), None) if path is not None else None
    if known is None:
        return
    if not known.is_dir():
        raise UsageError(f"cannot write to the folder {path}: {known} is a file")
    if not os.access(known, os.W_OK):
        raise UsageError(f"cannot write to the folder {path}: this user may not")


@contextlib.contextmanager
def shown_progress() -> Iterator[Callable[[str, float], None]]:
    """A progress bar on standard error: tell it what is being done, and which part is behind.

    In a file or pipe, each kind of step is a line, once a command has taken a few seconds.
    """
    if not errors.is_terminal:
        yield _lines(time.monotonic())
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda doing, done: progress.update(task, description=escape(doing), completed=done)


def _lines(start: float) -> Callable[[str, float], None]:
    told = ""

    def tell(doing: str, done: float) -> None:
        nonlocal told
        kind, seconds = _NUMBERED.sub("", doing), time.monotonic() - start
        if kind != told and seconds >= SILENT_SECONDS:
            told = kind
            errors.print(f"{seconds:5.0f} s, {done:4.0%}  {escape(doing)}", highlight=False, soft_wrap=True)

    return tell


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
        raise typer.Exit(_told(str(error), 2)) from error
