"""Switches: what a compilation does by choice can be left out, by name or from a number on.

    rule sdpa #3 at model.py:12   asks  allowed("rule", "sdpa", node)   ->   yes: it is applied; no: the program stays

Every step of a kind of `KINDS` asks before it acts, and is right to leave out: a program without it computes the same.
Option ``without`` leaves out by name; `regraft bisect` counts steps and leaves out all from a number on (`StepSearch`).
Asking costs a look at two variables if neither is on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import fx

from .reason import Site, site_of

KINDS = {
    "capture": "the program as one graph before autograd",
    "rule": "a match of a rule, replaced; first of all the simplifications that rules start from",
    "pass": "a pass over a whole graph",
    "template": "an attention, product or convolution as a generated kernel with what follows it",
    "kernel": "an operator computed by generated code, not by ATen",
    "fusion": "two loop nests in one kernel, or a value computed again where it is read",
    "memory": "a result written over a value that nobody reads any more",
    "cudagraph": "a graph replayed as a CUDA graph",
}
"""What can be left out, by kind, each built on those before it."""

Where: TypeAlias = fx.Node | Collection[fx.Node | str] | None
"""What a step is about: nodes, or names of nodes of the graph that `naming` has told."""


@dataclass
class Step:
    """One step that asked.

    Args:
        kind: one of `KINDS`.
        name: the rule, pass, template or operator, or what is fused.
        site: the user's source line that it is about.
        nodes: names of the graph nodes that it is about.
    """

    kind: str
    name: str
    site: Site | None = None
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" at {self.site}" if self.site is not None else "")


@dataclass
class StepSearch:
    """Counts the steps that ask, kind by kind, and allows the first ones of each.

    Args:
        limits: how many steps of a kind are allowed; all of a kind that is not named.
        told: called with each step as it asks, also with those that are left out.
        steps: those that asked, by kind.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    told: Callable[[Step], None] | None = None
    steps: dict[str, list[Step]] = field(default_factory=dict)

    def allows(self, step: Step) -> bool:
        """Count a step; whether it is among the first."""
        asked = self.steps.setdefault(step.kind, [])
        asked.append(step)
        if self.told is not None:
            self.told(step)
        return len(asked) <= self.limits.get(step.kind, len(asked))


_searches: list[StepSearch] = []  # the last one counts
_left_out: ContextVar[frozenset[str]] = ContextVar("regraft_left_out", default=frozenset())
_paused: ContextVar[bool] = ContextVar("regraft_paused", default=False)
_named: ContextVar[Mapping[str, fx.Node] | None] = ContextVar("regraft_named", default=None)


def allowed(kind: str, name: str, where: Where = None) -> bool:
    """Whether a step may be made.

    Args:
        kind: one of `KINDS`.
        name: of the rule, pass, template or operator.
        where: what it is about.
    """
    left_out = _left_out.get()
    if left_out and (kind in left_out or name in left_out):
        return False
    return not _searches or _paused.get() or _searches[-1].allows(_step(kind, name, where))


def searching() -> bool:
    """Whether steps are counted: then nothing compiled is recalled or kept."""
    return bool(_searches)


@contextmanager
def search(one: StepSearch) -> Iterator[StepSearch]:
    """Count the steps of everything that this process compiles in the block, in whatever thread."""
    _searches.append(one)
    try:
        yield one
    finally:
        _searches.remove(one)


@contextmanager
def left_out(names: Iterable[str]) -> Iterator[None]:
    """Leave out, in the block, steps of these names and kinds."""
    token = _left_out.set(frozenset(names))
    try:
        yield
    finally:
        _left_out.reset(token)


@contextmanager
def pausing() -> Iterator[None]:
    """Count nothing in the block: it plans and measures what the program may not come to run."""
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)


@contextmanager
def naming(graph: fx.Graph) -> Iterator[None]:
    """Tell what names of nodes stand for, while a graph is scheduled."""
    if not _searches:
        yield
        return
    token = _named.set({node.name: node for node in graph.nodes})
    try:
        yield
    finally:
        _named.reset(token)


@contextmanager
def changing(kind: str, graph: fx.Graph) -> Iterator[None]:
    """Note where a step changes a graph, if it is the last one allowed: only then anybody will ask."""
    step = _last_allowed(kind)
    before = _contents(graph) if step is not None else {}
    yield
    if step is None:
        return
    after = _contents(graph)
    changed = [n for n in graph.nodes if before.get(n.name) != after[n.name]]
    step.nodes = tuple(n.name for n in changed)
    step.site = next((s for n in changed if (s := site_of(n)) is not None), None)


def _last_allowed(kind: str) -> Step | None:
    if not _searches:
        return None
    asked, limit = _searches[-1].steps.get(kind, []), _searches[-1].limits.get(kind)
    return asked[-1] if asked and limit == len(asked) else None


def _contents(graph: fx.Graph) -> dict[str, str]:
    """Each node as text, by its name."""
    return {n.name: f"{n.target} {n.args} {n.kwargs}" for n in graph.nodes}


def _step(kind: str, name: str, where: Where) -> Step:
    given = [where] if isinstance(where, fx.Node) else list(where or ())
    known = _named.get()
    nodes = [n if isinstance(n, fx.Node) else (known or {}).get(n) for n in given]
    sites = (site_of(n) for n in reversed(nodes) if n is not None)
    names = tuple(n if isinstance(n, str) else n.name for n in given)
    return Step(kind, name, next((s for s in sites if s is not None), None), names)
