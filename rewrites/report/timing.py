"""Times as text, and how much timed calls differ: half the distance between their quartiles over their median.

0.9, 1.0, 1.0, 1.1 s   ->   1 s ± 3%
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

BUSY = 0.25
"""The spread from which a machine counts as too busy to tell times apart."""

_FEWEST = 4  # calls that have quartiles


def spread(samples: Sequence[float]) -> float | None:
    """Half the distance between the quartiles over the median; None with few samples."""
    if len(samples) < _FEWEST or not (middle := statistics.median(samples)):
        return None
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / 2 / middle


def duration(seconds: float) -> str:
    """A time with three digits and its unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            number = seconds * factor
            return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
    raise AssertionError("unreachable")


def plus_minus(part: float | None) -> str:
    """`± 4%`; empty where it is not known."""
    if part is None:
        return ""
    return f"± {100 * part:.0f}%" if part >= 0.01 else "± <1%"


def busy_line(spreads: Iterable[float | None]) -> str:
    """A warning where calls differ too much for their medians to be compared; empty otherwise."""
    worst = max((part for part in spreads if part is not None), default=0.0)
    if worst < BUSY:
        return ""
    return f"this machine is too busy to tell: calls of one program differ by ± {100 * worst:.0f}%; run it again"
