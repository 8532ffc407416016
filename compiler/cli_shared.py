"""What the commands have in common: usage errors, and progress on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

errors = Console(stderr=True)


class UsageError(ValueError):
    """An argument that names nothing; the message says what there is."""


@contextlib.contextmanager
def shown_progress() -> Iterator[Callable[[str, float], None]]:
    """A progress bar on standard error, if that is a terminal: tell it what is being done, and which part is behind."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda doing, done: progress.update(task, description=escape(doing), completed=done)
