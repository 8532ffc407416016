"""Rewrites that look at a whole graph rather than match a pattern; reports show them like rules, under these names."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Pass:
    """A pass that settles matches of its own.

    Args:
        name: as reports show it.
        family: what reports sum it under.
        candidates: what it may choose beside the original.
        doc: what it does, as `before -> after`.
        numerics: its contract about rounding.
    """

    name: str
    family: str
    candidates: tuple[str, ...]
    doc: str
    numerics: str = "error as eager's kernels differ"
    stage: str = "lowered"
    nan: str = "same"
    tags: dict[str, list[str]] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """The pass as plain data, with the fields that a rule has."""
        return asdict(self) | {"candidates": list(self.candidates)}


PASSES = (
    Pass(
        "channels_last",
        "layout",
        ("channels_last",),
        "conv(conv(x))  ->  conv(conv(clone(x, channels_last))): all convolutions of a graph, decided once, converted "
        "at the ends.",
    ),
    Pass(
        "attention-template",
        "attention",
        ("generated",),
        "softmax(f(q @ k.T)) @ v, or its fused kernel  ->  one generated kernel, f any pointwise function.",
    ),
    Pass(
        "linear-template",
        "linear-kernel",
        ("generated",),
        "f(x @ weight.T + bias)  ->  one generated kernel, f any pointwise function.",
    ),
)
