"""Processes that answer lines with JSON, started anew when one goes down."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any, TextIO


class Worker:
    """A process that is told lines, and answers each with lines of JSON.

    Args:
        command: what starts it.
        errors: where what it prints goes.
        environment: variables that it has besides this process's.
    """

    def __init__(self, command: Sequence[str], errors: Path, environment: dict[str, str] | None = None) -> None:
        self._command, self._errors, self._environment = list(command), errors, environment or {}
        self._process: subprocess.Popen[str] | None = None
        self._answers: Queue[dict[str, Any] | None] = Queue()

    @property
    def started(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    def start(self) -> None:
        """Start the process, without waiting for it."""
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1,
                env={**os.environ, **self._environment},
            )  # fmt: skip
        self._answers = Queue()
        threading.Thread(target=_read, args=(self._process, self._answers), daemon=True).start()

    def tell(self, line: str) -> None:
        """Send a line; of a process that has gone there is no answer."""
        assert self._process is not None and self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(line + "\n")

    def answer(self, end: float) -> dict[str, Any] | None:
        """The next message; None where the process is gone or too late, by `time.monotonic`."""
        try:
            return self._answers.get(timeout=max(0.0, min(end - time.monotonic(), 1e6)))
        except Empty:
            return None

    def said(self) -> str:
        """The last line that the process printed."""
        lines = self._errors.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")

    def end(self) -> str:
        """End the process, and say how it had ended by itself: in words."""
        code = self.stop()
        how = "hung" if code is None else f"killed by signal {-code}" if code < 0 else f"ended with {code}"
        return f"{how} {self.said()}".strip()

    def stop(self) -> int | None:
        """End the process; its exit code where it had ended by itself."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        with suppress(OSError):  # it then ends, unless it is busy
            process.stdin.close()
        try:
            return process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None


def _read(process: subprocess.Popen[str], answers: Queue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            with suppress(ValueError):  # the half of a line
                answers.put(json.loads(line))
    answers.put(None)


def answering() -> TextIO:
    """This process's standard output for answers; what else is printed goes to its errors."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers
