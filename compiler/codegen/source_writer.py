"""Lines of C++, and what has been computed in which block already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Writer:
    """Lines with blocks; a block knows the expressions that were given names in it.

    Keys of named expressions are whatever identifies them; a name is visible in its block and those inside.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._named: list[dict[Any, str]] = [{}]
        self._count = 0

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("  " * len(self._named) + text)

    def fresh(self, prefix: str = "t") -> str:
        """A name that is not in use."""
        self._count += 1
        return f"{prefix}{self._count}"

    @contextmanager
    def block(self, head: str = "") -> Iterator[None]:
        """Everything written inside stands in ``head { ... }``."""
        self.line(f"{head} {{".lstrip())
        self._named.append({})
        yield
        self._named.pop()
        self.line("}")

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Names given inside are not visible after it."""
        self._named.append({})
        yield
        self._named.pop()

    def find(self, key: Any) -> str | None:
        """The name of an expression computed in this block or one around it."""
        for names in reversed(self._named):
            if key in names:
                return names[key]
        return None

    def name(self, key: Any, name: str) -> str:
        """Give an expression a name in the innermost block."""
        self._named[-1][key] = name
        return name

    def forget(self, stale: Any) -> None:
        """Forget the names whose keys `stale` is true of."""
        for names in self._named:
            for key in [k for k in names if stale(k)]:
                del names[key]

    def define(self, kind: str, text: str, key: Any = None) -> str:
        """``const kind t1 = text;``, found again under `key`."""
        made = self.fresh()
        self.line(f"const {kind} {made} = {text};")
        return made if key is None else self.name(key, made)
