"""Passes over whole graphs as data: what the pipeline runs, and what reports and the command line show of it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from ...rewrites.profit import Oracle
from ...rewrites.record import GraphRecord
from ..options import Options


@dataclass
class Context:
    """The context of a pass: all that it is told beside the graph.

    Args:
        kind: of the graph: ``"program"`` (as captured), ``"body"``, ``"joint"``, ``"inference"``, ``"forward"`` or
            ``"backward"``.
        options: of the compilation.
        oracle: who decides what is worth it.
        record: of the compilation.
        devices: types of the devices of the program's inputs.
        training: gradients flow through the program.
        layouts: layouts of tensors may change.
        measured: the oracle may be asked; False where nothing is to be rewritten.
        do: runs a part of a pass that may fail alone (see `containment`).
        rewrite: runs the rules of a stage on a graph; returns how many matched.
        freezer: knows the weights, where they may be taken as constants.
        convolutions: how many convolutions of the graph may be laid out either way; told by `channels_last`.
    """

    kind: str
    options: Options
    oracle: Oracle
    record: GraphRecord
    devices: frozenset[str]
    training: bool
    layouts: bool
    measured: bool
    do: Callable[..., Any]
    rewrite: Callable[[fx.GraphModule, str], int]
    freezer: Any = None
    convolutions: int = 0

    @property
    def max_autotune(self) -> bool:
        """Whether compile time does not matter."""
        return self.options.autotune.thorough


@dataclass(frozen=True)
class Condition:
    """When a pass runs: in words, and as a question to the context."""

    text: str
    holds: Callable[[Context], bool]


@dataclass(frozen=True)
class Pass:
    """A pass over a whole graph.

    Args:
        name: as reports show it; a pass that fails is left out by this name.
        run: changes a graph in place, given the context too; returns how many changes it made, in all or by kind.
        when: conditions, all of which must hold.
        doc: what it does, as `before -> after`; by default the text at the head of the module of `source`.
        source: the function that does it.
        seconds: the entry of compile time that it counts as.
        drawn: reports draw the graph before and after it.
        family: what reports sum its matches under, for a pass that records matches like a rule's.
        candidates: what it may choose beside the original.
        numerics: its contract about rounding.
        nan: its contract about NaN.
    """

    name: str
    run: Callable[[fx.GraphModule, Context], int | Mapping[str, int] | None]
    when: tuple[Condition, ...] = ()
    doc: str = ""
    source: Callable[..., Any] | None = None
    seconds: str = "passes"
    drawn: bool = False
    family: str = "pass"
    candidates: tuple[str, ...] = ()
    numerics: str = "exact"
    nan: str = "same"
    tags: dict[str, list[str]] = field(default_factory=dict)

    @property
    def made_of_steps(self) -> bool:
        """Whether it is rules or templates, each match of which can be left out."""
        return self.seconds in ("", "templates")

    def runs(self, context: Context) -> bool:
        """Whether its conditions hold."""
        return all(condition.holds(context) for condition in self.when)

    def facts(self, stage: str) -> dict[str, Any]:
        """The pass as plain data, with the fields that a rule has and the conditions under which it runs."""
        return {
            "name": self.name, "family": self.family, "stage": stage, "doc": self.doc or module_text(self.source),
            "candidates": list(self.candidates), "numerics": self.numerics, "nan": self.nan, "tags": self.tags,
            "when": [condition.text for condition in self.when],
        }  # fmt: skip


def module_text(function: Callable[..., Any] | None) -> str:
    """The docstring of the module that a function is from."""
    return inspect.getdoc(sys.modules[function.__module__]) or "" if function is not None else ""


def changes(made: Any) -> dict[str, int]:
    """The changes that a pass returned, by kind; those without a kind are ``"changes"``."""
    if isinstance(made, Mapping):
        return {str(kind): int(count) for kind, count in made.items() if count}
    return {"changes": int(made)} if made else {}
