"""The comparison of backends that generate text, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ....rewrites.report.timing import duration
from ..profile.table import option_tables
from ..profile.units import amount

if TYPE_CHECKING:
    from ..profile.contestants import Times
    from .plan import Decoder, GenerationPlan, LeastTime


def generation_view(made: Times, decoders: Sequence[Decoder], plan: GenerationPlan, roof: LeastTime) -> RenderableType:
    """A row for each backend and mode, and what the machine allows."""
    peaks = any(one.peak_bytes is not None for one in decoders)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("backend", no_wrap=True)
    titles = ("prefill", "a token", "speed", "of roof", "first calls", "error", "equal", *(["peak"] if peaks else []))
    for name in titles:
        table.add_column(name, justify="right", no_wrap=True)
    for one in decoders:
        table.add_row(
            *_generated(one, made.speed(one), plan, roof), *([amount(one.peak_bytes or 0, "B")] if peaks else [])
        )
    table.add_row("roof", duration(roof.prefill), duration(roof.step), "", "1.00")
    weights, cache = amount(roof.weights, "B"), amount(roof.cache, "B")
    read = f"{weights} of weights and {cache} of cache at {amount(roof.bandwidth, 'B/s')}"
    multiplied = f"; prefill: {amount(roof.flops, 'FLOP')} at {amount(roof.rate, 'FLOP/s')}" if roof.rate else ""
    told = (
        f"{plan.tokens} tokens after {plan.prompt}, batch {plan.batch}. A token reads {read}{multiplied}.\n"
        "error: of logits, relative to eager's in float32. equal: tokens that are its own, each after the same text."
    )
    failures = [Text(f"{one.name}: {one.failed}", style="red") for one in decoders if one.failed]
    return Group(table, *failures, Text(told, style="dim"), *option_tables(decoders))


def _generated(one: Decoder, speed: float | None, plan: GenerationPlan, roof: LeastTime) -> list[str]:
    if one.failed:
        return [one.name, "failed"]
    of_roof = one.seconds / roof.step
    equal = f"{one.equal}/{plan.tokens * plan.batch}"
    times = duration(one.prefill_seconds), duration(one.seconds), f"{speed:.2f}x" if speed else "", f"{of_roof:.2f}"
    return [one.name, *times, duration(one.cold_seconds), f"{one.error:.1e}", equal]
