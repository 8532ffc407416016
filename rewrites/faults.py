"""Faults of ours: what fails is left out and told in three lines; its traceback goes to a file.

    regraft: pass cse failed on graph 0/0 (inference): KeyError: 'add_3'
      the graph goes on without it: results are right, it may run slower
      traceback: ~/.cache/regraft/faults/3f2a91c07b55.txt (options={"strict": True} raises it instead)

A fault is an error that our own code did not expect. A refusal is none: it has a `Reason`, and no traceback.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from .._version import __version__
from .reason import Site
from .record import Fallback, GraphRecord

logger = logging.getLogger("regraft")
KEPT_FILES = 100
"""Tracebacks that a folder holds; the oldest go."""

_told: set[str] = set()
_NAMED = "_regraft_named"


class Faults:
    """How the faults of one compilation are treated.

    Args:
        record: counts them.
        strict: raise them.
        folder: where tracebacks are written; by default a folder for temporary files.
        signals: exceptions that are no faults: they go through.
    """

    def __init__(
        self,
        record: GraphRecord,
        *,
        strict: bool = False,
        folder: Path | None = None,
        signals: tuple[type[BaseException], ...] = (),
    ) -> None:
        self.record, self.strict = record, strict
        self._folder, self._signals = folder, signals

    @contextmanager
    def contained(
        self, what: str, outcome: str, *, stage: str = "passes", undo: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Run a block that the program can do without.

        Args:
            what: what the block is, with its name: ``"pass cse"``.
            outcome: what happens where it fails: ``"calls stay as they are"``.
            stage: as reports show it; the code of its fallback is ``"<stage>-failed"``.
            undo: takes back what the block did before it failed.
        """
        try:
            yield
        except Exception as error:
            if self.lets_through(error):
                self.name(error, what)
                raise
            if undo is not None:
                undo()
            self.tell(what, outcome, error, stage=stage)

    def lets_through(self, error: BaseException) -> bool:
        """Whether an error is raised to the caller: it is no fault, or the compilation is strict."""
        return self.strict or self.is_signal(error)

    def is_signal(self, error: BaseException) -> bool:
        """Whether an error is no fault, but tells the caller something."""
        return isinstance(error, self._signals)

    def name(self, error: BaseException, what: str) -> None:
        """Let the message of an error that is raised say what failed, once: Dynamo shows the message alone."""
        if self.is_signal(error) or hasattr(error, _NAMED):
            return
        plain = len(error.args) == 1 and isinstance(error.args[0], str)
        if plain:
            error.args = (f"{what} failed: {error.args[0]}",)
        elif not error.args:
            error.args = (f"{what} failed",)
        else:
            error.add_note(f"regraft: {what} failed")
        with suppress(AttributeError):  # errors of types without a dict
            setattr(error, _NAMED, True)

    def tell(
        self,
        what: str,
        outcome: str,
        error: Exception,
        *,
        stage: str,
        code: str = "",
        site: Site | None = None,
        rule: str = "",
    ) -> None:
        """Count a fault, which is that of a rule where one is named, and tell the user of it, once.

        Raises:
            Exception: the error itself, where it goes through.
        """
        if self.lets_through(error):
            self.name(error, what)
            raise error
        trace = "".join(traceback.format_exception(error))
        path = self._write(what, trace)
        summary = f"{type(error).__name__}: {_first_line(error)}"
        message = f"{what} failed: {summary}; {outcome}"
        self.record.fallbacks.append(Fallback(stage, code or f"{stage}-failed", message, site, True, path, rule))
        self._log(f"{what} failed on {self.record.name} ({self.record.kind}): {summary}", outcome, path, trace)

    def _log(self, headline: str, outcome: str, path: str, trace: str) -> None:
        key = _digest(headline + trace)
        if key in _told:
            return
        _told.add(key)
        place = path or "not written, no folder can be written to"
        hint = 'options={"strict": True} raises it instead'
        logger.warning("regraft: %s\n  %s\n  traceback: %s (%s)", headline, outcome, place, hint)

    def _write(self, what: str, trace: str) -> str:
        """The path of a file with the traceback, and what it was made on; empty where no file can be written."""
        versions = f"regraft {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
        text = f"{what}\n{self.record.name} ({self.record.kind})\n{versions}\n\n{trace}"
        for folder in (self._folder, Path(tempfile.gettempdir()) / "regraft-faults"):
            if folder is None:
                continue
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"{_digest(text)}.txt"
                path.write_text(text, encoding="utf-8", errors="backslashreplace")
                _prune(folder)
                return str(path)
        return ""


def _prune(folder: Path) -> None:
    files = list(folder.glob("*.txt"))
    for path in sorted(files, key=lambda file: file.stat().st_mtime)[: max(len(files) - KEPT_FILES, 0)]:
        path.unlink(missing_ok=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:12]


def _first_line(error: Exception) -> str:
    try:
        told = str(error)
    except Exception:  # the message of a rule's own error may raise, too
        told = "its message cannot be read"
    told = told.encode(errors="backslashreplace").decode()
    return next(iter(told.strip().splitlines()), "")[:300]
