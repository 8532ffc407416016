"""The part of a report about one target: its graphs, and how the compiled target compares with eager."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .timing import busy_line

if TYPE_CHECKING:
    from ..record import GraphRecord


@dataclass(frozen=True)
class Outcome:
    """A compiled target held against eager.

    Args:
        error: relative error of the outputs, ``|compiled - eager| / |eager|`` in the 2-norm, worst output.
        tolerance: the largest error that counts as right for this dtype.
        compile_seconds: wall time of the first call, compilation included, with what caches on disk hold.
        gradient_error: the same error over all gradients; None outside training.
        eager_seconds: median of a call; `compiled_seconds` likewise, the two taking turns. None where not timed.
        rounds: timed calls of each.
        eager_spread: how much its calls differ, see `spread`; `compiled_spread` likewise. None where not known.
        dynamo_seconds: of the first call, the time that Dynamo took; None where not known.
    """

    error: float
    tolerance: float
    compile_seconds: float
    gradient_error: float | None = None
    eager_seconds: float | None = None
    compiled_seconds: float | None = None
    rounds: int = 0
    eager_spread: float | None = None
    compiled_spread: float | None = None
    dynamo_seconds: float | None = None

    @property
    def right(self) -> bool:
        """Whether outputs and gradients are within tolerance (NaN is not)."""
        return all(error <= self.tolerance for error in (self.error, self.gradient_error) if error is not None)

    @property
    def speed(self) -> float | None:
        """How many times faster than eager; None where not timed."""
        return self.eager_seconds / self.compiled_seconds if self.eager_seconds and self.compiled_seconds else None

    @property
    def busy(self) -> str:
        """A warning where the calls differ too much for the medians to be compared; empty otherwise."""
        return busy_line((self.eager_spread, self.compiled_spread))


@dataclass
class Entry:
    """One target of a report: its graphs and, where it was run against eager, what was measured."""

    name: str = ""
    graphs: list[GraphRecord] = field(default_factory=list)
    choices: dict[str, str] = field(default_factory=dict)
    outcome: Outcome | None = None

    @property
    def label(self) -> str:
        """The name with its choices, e.g. ``"hf:bert --layers 2 --mask"``: the key by which reports are compared."""
        return " ".join([self.name or "coverage", *(f"--{k} {v}".strip() for k, v in sorted(self.choices.items()))])
