"""Typed reasons: every "no" that regraft says is a `Reason`, never a bare boolean.

A reason has a stable code (for tests, JSON and diffs), a sentence for people, what was expected and found, and the
graph nodes to blame, from which the user's source line follows.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n?([^\n]*)')


@dataclass(frozen=True)
class Site:
    """A place in the user's source: file, line (1-based), function and the text of that line."""

    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}: {self.code}"


@dataclass(frozen=True)
class Reason:
    """Why something was refused.

    Args:
        code: stable kebab-case identifier, e.g. ``"inner-value-escapes"``.
        message: one sentence for a person.
        nodes: the culprit nodes, most telling first.
        expected: what the rule wanted, as text.
        found: what the graph has instead, as text.
    """

    code: str
    message: str
    nodes: tuple[fx.Node, ...] = ()
    expected: str = ""
    found: str = ""

    @property
    def site(self) -> Site | None:
        """The user's source line of the first culprit that has one."""
        return next((s for n in self.nodes if (s := site_of(n)) is not None), None)


def site_of(node: fx.Node) -> Site | None:
    """The innermost frame of the user's program that made `node`, or None where the node carries no stack trace."""
    return site_in(node.meta.get("stack_trace") or "")


def site_in(stack_trace: str) -> Site | None:
    """The innermost frame of a stack trace, or None where it has none."""
    frames = _FRAME.findall(stack_trace)
    if not frames:
        return None
    file, line, function, code = frames[-1]
    return Site(file, int(line), function, code.strip() or linecache.getline(file, int(line)).strip())
