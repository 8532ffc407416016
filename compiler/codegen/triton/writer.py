"""Lines of Python for Triton; which names are visible where is as in C++."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..source_writer import Writer


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
        self.line(f"{made} = {bare(text)}")
        return made if key is None else self.name(key, made)


def bare(text: str) -> str:
    """An expression without parentheses around all of it: ``(a + b)`` is ``a + b``, ``(a) + (b)`` stays."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return text[1:-1] if at == len(text) - 1 else text
    return text


def factor(text: str) -> str:
    """An expression as an operand of a product."""
    return text if text.isidentifier() else f"({text})"
