"""The state of matching at one place of a graph: what is bound so far, and where it got stuck."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from .pattern import HIDDEN, Term
from .reason import Reason
from .spelling import Sized


@dataclass(frozen=True)
class Binding:
    """The bindings of a (partial) match: operands, dims, the node of each term, tags, and equalities it assumes.

    `later` holds sizes that could not be compared yet, with what was found there.
    """

    operands: dict[str, Any] = field(default_factory=dict)
    dims: dict[str, Any] = field(default_factory=dict)
    nodes: dict[int, fx.Node] = field(default_factory=dict)
    tags: tuple[tuple[str, str], ...] = ()
    assumed: tuple[tuple[Any, Any], ...] = ()
    later: tuple[tuple[Sized, Any], ...] = ()

    @property
    def matched(self) -> list[fx.Node]:
        """The nodes matched by operators of the pattern, each once."""
        return list(dict.fromkeys(self.nodes.values()))

    # Matching makes one binding for each step: constructed outright, because dataclasses.replace() is slow.

    def entering(self, term: Term, node: fx.Node) -> Binding:
        """With the call `term` at `node`."""
        return Binding(self.operands, self.dims, {**self.nodes, id(term): node}, self.tags, self.assumed, self.later)

    def tagged(self, tag: str, label: str) -> Binding:
        """With an alternative taken."""
        return Binding(self.operands, self.dims, self.nodes, (*self.tags, (tag, label)), self.assumed, self.later)

    def bound(self, name: str, value: Any) -> Binding:
        """With an operand bound."""
        return Binding({**self.operands, name: value}, self.dims, self.nodes, self.tags, self.assumed, self.later)

    def sized(self, dims: dict[str, Any], assumed: tuple[tuple[Any, Any], ...]) -> Binding:
        """With these dims, and further equalities that they rest on."""
        return Binding(self.operands, dims, self.nodes, self.tags, self.assumed + assumed, self.later)

    def waiting(self, *later: tuple[Sized, Any]) -> Binding:
        """With sizes to compare when all operands are bound."""
        return Binding(self.operands, self.dims, self.nodes, self.tags, self.assumed, (*self.later, *later))

    def tag_names(self) -> tuple[str, ...]:
        """The tags as text: the name of an optional part that is there, ``tag:label`` for an alternative."""
        shown = [(t, label) for t, label in self.tags if label != "no" and not t.startswith(HIDDEN)]
        return tuple(t if label == "yes" else f"{t}:{label}" for t, label in shown)


@dataclass
class MatchFailure:
    """The deepest point that matching reached at one root; `others` would have done there as well.

    It is `weak` where an alternative was not there: what another one met, equally deep, tells more. `met` holds the
    nodes that had matched; None where all of the pattern had.
    """

    depth: int
    first: Reason
    site: fx.Node
    others: list[str] = field(default_factory=list)
    weak: bool = False
    met: Mapping[int, fx.Node] | None = None

    @property
    def reason(self) -> Reason:
        """Why it got no further; of alternatives, the one that needs least comes first."""
        if not self.others:
            return self.first
        *more, last = dict.fromkeys([*reversed(self.others), self.first.expected])
        return differs(f"{', '.join(more)} or {last}" if more else last, self.first.found, self.first.nodes)


def differs(expected: str, found: str, nodes: tuple[fx.Node, ...]) -> Reason:
    """The pattern wants something else than is there."""
    return Reason("pattern-differs", f"expected {expected}, found {found}", nodes, expected, found)
