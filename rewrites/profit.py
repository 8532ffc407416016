"""Whether a legal rewrite is profitable: questions, decisions and oracles.

The driver asks an `Oracle` once per legal match, and does not know how the oracle decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .record import Evidence


@dataclass(frozen=True)
class Question:
    """A question: which of several equivalent programs should run?

    Args:
        rule: name of the asking rule.
        key: everything besides machine and inputs on which the answer depends (hash of the rule, tags, constants).
        inputs: fake tensors (real metadata: shape, strides, dtype, device, requires_grad), numbers or sizes, in
            the order in which the programs take them.
        original: the matched code as a callable of `inputs`.
        candidates: the replacements as callables of `inputs`, by name, in order of preference.
        training: whether gradients flow through, so that forward and backward are timed.
        prepare: is called before programs are measured; its time does not count as measuring.
        arrange: is called with the real values of `inputs`, and overwrites those that depend on others; without it, all
            values are independent.
        precision: the largest relative error of a candidate against the original, in the 2-norm; None: any error that
            rounding may explain.
        cold: whether inputs are read from a GPU's memory rather than its caches, as weights of a large model are.
        excluded: why the original must not run; empty if it may. If it is excluded, it is not measured: the fastest
            candidate that runs is chosen, or the first without measurements.
    """

    rule: str
    key: str
    inputs: Sequence[Any]
    original: Callable[..., Any]
    candidates: Mapping[str, Callable[..., Any]]
    training: bool = False
    prepare: Callable[[], None] | None = None
    arrange: Callable[[Sequence[Any]], None] | None = None
    cold: bool = False
    precision: float | None = None
    excluded: str = ""


@dataclass(frozen=True)
class Decision:
    """`chosen` is a candidate's name, or None to keep the original; `evidence` says why."""

    chosen: str | None
    evidence: Evidence


SWITCHED_OFF = Decision(None, Evidence(note="switched off"))
"""What `switches` do not allow."""


class Oracle(Protocol):
    """Decides which program of a question should run."""

    def decide(self, question: Question) -> Decision:
        """Choose a candidate, or none of them."""
        ...


class Always:
    """Takes the first candidate always, so that every legal match is applied (for tests and coverage runs)."""

    def decide(self, question: Question) -> Decision:
        """The first candidate."""
        first = next(iter(question.candidates))
        return Decision(first, Evidence(note="profit='always': applied wherever legal"))


class Never:
    """Applies nothing: legal matches are only counted."""

    def decide(self, question: Question) -> Decision:  # noqa: ARG002 - an oracle's signature
        """No candidate."""
        return Decision(None, Evidence(note="profit='never': counted only"))
