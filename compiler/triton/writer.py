"""Lines of Python for Triton; which names are visible where is as in C++."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..cpp.writer import Writer


class TritonWriter(Writer):
    """Blocks are indented; names are given by plain assignment."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 1

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str = "") -> Iterator[None]:
        """Everything written inside stands under ``head:``."""
        self.line(f"{head}:")
        self._depth += 1
        before = len(self.lines)
        with self.apart():
            yield
        if len(self.lines) == before:
            self.line("pass")
        self._depth -= 1

    def define(self, kind: str, text: str, key: Any = None) -> str:  # noqa: ARG002 (other targets declare)
        """``t1 = text``, found again under `key`."""
        made = self.fresh()
        self.line(f"{made} = {text}")
        return made if key is None else self.name(key, made)
