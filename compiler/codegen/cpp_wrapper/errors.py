"""The error of graphs that have no wrapper in C++."""

from __future__ import annotations

from typing import Any

from torch import fx

from ....rewrites import compat
from ....rewrites.reason import Reason


class NotInCppError(RuntimeError):
    """Something of a graph cannot be called from C++.

    Args:
        code: what kind of thing, as for a `Reason`.
        why: in words; about `node` what it is or does, else a sentence.
        node: the call that it is about.
    """

    def __init__(self, code: str, why: str, node: fx.Node | None = None) -> None:
        self.subject = "" if node is None else _shown(node.target)
        super().__init__(f"{self.subject} {why}" if self.subject else why)
        self.code, self.why, self.node = code, why, node

    @property
    def reason(self) -> Reason:
        """The same as a reason of a report."""
        message = f"the graph is called from Python: {self}"
        return Reason(f"python-{self.code}", message, () if self.node is None else (self.node,))


def refusal(code: str, node: fx.Node, why: str) -> NotInCppError:
    """Why a call cannot be one of C++."""
    return NotInCppError(code, why, node)


def _shown(target: Any) -> str:
    path = compat.operator_path(target)
    return ".".join(filter(None, path or ())) or str(getattr(target, "__name__", target))
