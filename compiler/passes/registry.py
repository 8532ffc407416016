"""Passes over whole graphs as data, for the pipeline, for reports and for the command line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from ...rewrites.profit import Oracle
from ...rewrites.reason import Reason
from ...rewrites.record import GraphRecord
from ..options import Options

_refused: ContextVar[list[Reason] | None] = ContextVar("refused", default=None)


@dataclass
class Context:
    """The context of a pass: all that it knows besides the graph.

    Args:
        kind: the kind of graph: ``"program"`` (as captured), ``"body"``, ``"joint"``, ``"inference"``, ``"forward"`` or
            ``"backward"``.
        options: the options of the compilation.
        oracle: decides whether a change is worth it.
        record: the record of the compilation.
        devices: the types of the devices of the program's inputs.
        training: whether gradients flow through the program.
        layouts: whether layouts of tensors may change.
        measured: whether the oracle may be asked; False if nothing is to be rewritten.
        do: runs a part of a pass that may fail by itself (see `containment`).
        rewrite: runs the rules of a stage on a graph; returns the number of matches.
        freezer: knows the weights, if they may be treated as constants.
        convolutions: the number of convolutions that can run in either layout; set by `channels_last`.
        inputs: the example inputs of a program that is about to be differentiated.
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
    inputs: Sequence[Any] = ()

    @property
    def max_autotune(self) -> bool:
        """Whether compile time is unimportant."""
        return self.options.autotune.thorough


@dataclass(frozen=True)
class Condition:
    """A condition under which a pass runs: its text, and its test of the context."""

    text: str
    holds: Callable[[Context], bool]


@dataclass(frozen=True)
class Pass:
    """A pass over a whole graph.

    Args:
        name: the name in reports, also used to leave out the pass.
        run: changes a graph in place, given the context; returns the number of changes, in all or by kind.
        when: the conditions, all of which must hold.
        doc: a description, as `before -> after`; by default the docstring of the module of `source`.
        source: the function that does the work.
        seconds: the entry of compile time under which the pass is counted.
        drawn: whether reports draw the graph before and after the pass.
        family: the family under which reports add up its matches, if it records matches as rules do.
        candidates: the alternatives to the original among which it chooses.
        numerics: its contract about rounding.
        nan: its contract about NaN.
        required: whether the program would be wrong without the pass: it is not left out, and its failure costs the
            compilation.
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
    required: bool = False

    @property
    def made_of_steps(self) -> bool:
        """Whether the pass consists of rules or templates, whose matches can be left out one by one."""
        return self.seconds in ("", "templates")

    def refusal(self, context: Context) -> Reason | None:
        """Why the pass does not run on a graph: the conditions that do not hold; None if it runs."""
        missing = [condition.text for condition in self.when if not condition.holds(context)]
        if not missing:
            return None
        return Reason("condition", f"the pass runs only if all of these conditions hold: {', '.join(missing)}")

    def facts(self, stage: str) -> dict[str, Any]:
        """The pass as plain data, with the same fields as a rule, and its conditions."""
        return {
            "name": self.name, "family": self.family, "stage": stage, "doc": self.doc or module_text(self.source),
            "candidates": list(self.candidates), "numerics": self.numerics, "nan": self.nan, "tags": self.tags,
            "when": [condition.text for condition in self.when],
        }  # fmt: skip


def refuse(code: str, message: str, *nodes: fx.Node) -> None:
    """Tell the runner why the running pass leaves a place as it is."""
    told = _refused.get()
    if told is not None:
        told.append(Reason(code, message, nodes))


@contextmanager
def refusals() -> Iterator[list[Reason]]:
    """The reasons that passes give within the block."""
    told: list[Reason] = []
    token = _refused.set(told)
    try:
        yield told
    finally:
        _refused.reset(token)


def module_text(function: Callable[..., Any] | None) -> str:
    """The docstring of the module that defines a function."""
    return inspect.getdoc(sys.modules[function.__module__]) or "" if function is not None else ""


def changes(made: Any) -> dict[str, int]:
    """The changes that a pass returned, by kind; changes without a kind are counted as ``"changes"``."""
    if isinstance(made, Mapping):
        return {str(kind): int(count) for kind, count in made.items() if count}
    return {"changes": int(made)} if made else {}
