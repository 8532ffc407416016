"""Calls that run the program as it was written, since their inputs are others than it was compiled for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...rewrites.record import Fallback, GraphRecord


def where(
    holds: Callable[[Sequence[Any]], bool],
    compiled: Callable[..., Any],
    program: Callable[..., Any],
    tell: Callable[[], None],
) -> Callable[..., Any]:
    """`compiled`, but `program` for inputs of which something does not hold; the first such call is told."""
    told = False

    def run(*inputs: Any) -> Any:
        nonlocal told
        if holds(inputs):
            return compiled(*inputs)
        if not told:
            told = True
            tell()
        return program(*inputs)

    return run


def teller(record: GraphRecord, code: str, why: str) -> Callable[[], None]:
    """A function that notes in the record of a program that a call of it ran as it was written."""

    def tell() -> None:
        record.fallbacks.append(Fallback("capture", code, f"{why}: such calls run the program as it was written"))

    return tell
