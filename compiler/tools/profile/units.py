"""Numbers for people."""

from __future__ import annotations


def amount(number: float, unit: str) -> str:
    """``4.2e12, "FLOP/s"  ->  "4.20 TFLOP/s"``."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def percent(part: float, whole: float) -> str:
    """``1, 8  ->  "12.5%"``; nothing of nothing is 0%."""
    share = part / whole if whole else 0.0
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
