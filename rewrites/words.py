"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """`counted(2, "graph") == "2 graphs"`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
