"""The fusion log: every candidate of every round, its score, and whether it fused or why not.

round 0
  fused   add + native_layer_norm                   saves 1.5 MiB
  no      view_3 + sum_1                            loop-order (view_3): sharing loops would take away ...
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .groups import Step
    from .legality import Fusion, FusionRefusal


@dataclass(frozen=True)
class FusionCandidate:
    """Two groups that were considered.

    Args:
        round: of fusion, from 0.
        first, second: the groups' names.
        nodes: the graph nodes that they compute.
        score: bytes of traffic that fusing saves.
        refusal: why not; None where they were fused.
    """

    round: int
    first: str
    second: str
    nodes: tuple[str, ...]
    score: int
    refusal: FusionRefusal | None

    @property
    def fused(self) -> bool:
        """Whether the two became one."""
        return self.refusal is None


@dataclass
class FusionLog:
    """The log of fusion: all that was considered, written out only when asked for."""

    _entries: list[tuple[int, Any, Any, int, Any]] = field(default_factory=list)
    inlined: list[tuple[str, str]] = field(default_factory=list)  # definition, why not ("" where it was)
    shared: list[tuple[str, ...]] = field(default_factory=list)  # kernels of one launch

    def candidate(self, number: int, first: Step, second: Step, score: int, found: Fusion | FusionRefusal) -> None:
        """Note one candidate."""
        self._entries.append((number, first, second, score, found))

    @property
    def candidates(self) -> tuple[FusionCandidate, ...]:
        """All candidates, in the order considered."""
        return tuple(_candidate(*entry) for entry in self._entries)

    @property
    def rounds(self) -> int:
        """How many rounds considered anything."""
        return 1 + max((entry[0] for entry in self._entries), default=-1)

    @property
    def refusals(self) -> dict[str, int]:
        """How many candidates were refused, by code."""
        return dict(Counter(c.refusal.code for c in self.candidates if c.refusal is not None).most_common())

    def __str__(self) -> str:
        lines = [f"inlined {sum(not reason for _, reason in self.inlined)} definitions"]
        seen = -1
        for candidate in self.candidates:
            if candidate.round != seen:
                seen = candidate.round
                lines.append(f"round {seen}")
            lines.append(_line(candidate))
        lines += [f"one launch for {' + '.join(names)}" for names in self.shared]
        return "\n".join(lines) + "\n"


def _candidate(number: int, first: Any, second: Any, score: int, found: Any) -> FusionCandidate:
    nodes = tuple(dict.fromkeys(n for g in (first, second) for m in g.members for n in m.definition.nodes))
    return FusionCandidate(number, first.name, second.name, nodes, score, None if hasattr(found, "members") else found)


def _line(candidate: FusionCandidate) -> str:
    pair = f"{candidate.first} + {candidate.second}"
    if candidate.refusal is None:
        return f"  fused   {pair:<50}  saves {_bytes(candidate.score)}"
    return f"  no      {pair:<50}  {candidate.refusal}"


def _bytes(number: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"
