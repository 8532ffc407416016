"""The question "is it worth it?", apart from "is it right?".

The driver asks an `Oracle` once per legal match; who answers, and from what measurements, is not its business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .record import Evidence


@dataclass(frozen=True)
class Question:
    """Which of several programs with equal meaning should run?

    Args:
        rule: name of the asking rule.
        key: what the answer depends on beside machine and inputs, as text (the rule's content hash, tags, constants).
        inputs: fake tensors (real metadata: shape, strides, dtype, device, requires_grad), numbers or sizes, in
            the order in which the programs take them.
        original: the matched code as a callable of `inputs`.
        candidates: the replacements as callables of `inputs`, by name, in order of preference.
        training: gradients flow through: time forward and backward.
        prepare: called before the programs are measured, if they are; its time is not counted as measuring.
        arrange: called with the real values of `inputs`, in which it overwrites those that follow from others; without
            it they are independent of each other.
        precision: the largest relative error against the original, in the 2-norm, that a candidate may have; None: any
            that passes for rounding.
        cold: inputs come from a GPU's memory, not from its caches, as where a model has more weights than these hold.
        excluded: why the original must not run, or nothing. It is not measured then: the fastest candidate that runs is
            chosen, and without a measurement the first.
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
    """Answers questions of profit."""

    def decide(self, question: Question) -> Decision:
        """Choose a candidate, or none of them."""
        ...


class Always:
    """Takes the first candidate everywhere: what is legal is applied (for tests and coverage runs)."""

    def decide(self, question: Question) -> Decision:
        """The first candidate."""
        first = next(iter(question.candidates))
        return Decision(first, Evidence(note="profit='always': applied wherever legal"))


class Never:
    """Applies nothing: legal matches are only counted."""

    def decide(self, question: Question) -> Decision:  # noqa: ARG002 - an oracle's signature
        """No candidate."""
        return Decision(None, Evidence(note="profit='never': counted only"))
