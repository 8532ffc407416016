"""The kernel report in a terminal of 80 columns: two lines a kernel, numbers and where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ....rewrites.report.timing import busy_line, duration, plus_minus
from ....rewrites.words import counted
from .units import amount, percent

if TYPE_CHECKING:
    from ....rewrites.reason import Site
    from .contestants import Contestant, Times
    from .rows import KernelRow, KernelTimes

_LEGEND = (
    "at limit: the least time for a kernel's bytes (memory) or FLOPs (matrix) by the\n"
    "device's measured limits, as a part of the time taken; more where caches help."
)


_MEASURES = (
    "time: median of calls, taking turns; spread: half of the calls are that near.\n"
    "first call: compilation included, {caches}.\n"
    "error: relative to eager in the 2-norm, the worst output or all gradients together."
)


def report_view(report: KernelTimes, top: int) -> RenderableType:
    """Totals, then the `top` slowest kernels."""
    rest = report.rows[top:]
    parts: list[RenderableType] = [totals(report), Text(""), KernelLines(report, top)]
    if rest:
        seconds = sum(row.seconds for row in rest)
        parts.append(Text(f"and {len(rest)} more: {duration(seconds)}, {percent(seconds, report.kernel_seconds)}"))
    return Group(*parts, Text(f"\n{_LEGEND}", style="dim"))


def totals(report: KernelTimes) -> Table:
    """Time of a call, of its kernels, of the gaps, and what the device could do."""
    grid = Table.grid(padding=(0, 2))
    limits = report.limits
    rates = "".join(f", {amount(rate, 'FLOP/s')} in {dtype}" for dtype, rate in limits.rates.items() if rate)
    kernels = (
        f"{duration(report.kernel_seconds)} in {counted(report.calls, 'call')} of {counted(len(report.rows), 'kernel')}"
    )
    gap = max(report.gap_seconds, 0.0)
    at_limits = f"{duration(report.bound_seconds)}, {percent(report.bound_seconds, report.kernel_seconds)}"
    grid.add_row("whole call", f"{duration(report.call_seconds)}, {report.kind} (median of {report.rounds})")
    grid.add_row("kernels", kernels)
    grid.add_row("gaps", f"{duration(gap)}, {percent(gap, report.call_seconds)} of the call")
    grid.add_row("at limits", f"{at_limits} of the kernels' time")
    grid.add_row("limits", f"{limits.device}: {amount(limits.bandwidth, 'B/s')}{rates}")
    return grid


class KernelLines:
    """Two lines for equal calls, as wide as the terminal: name and numbers, then where they come from."""

    WIDEST = 120

    def __init__(self, report: KernelTimes, top: int) -> None:
        self._rows = [(row, _cells(row, report.kernel_seconds)) for row in report.rows[:top]]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        titles = ("calls", "time", "share", "rate", "at limit")
        widths = [max(map(len, column)) for column in zip(titles, *(cells for _, cells in self._rows), strict=True)]
        room = min(options.max_width, self.WIDEST)
        first = max(room - sum(widths) - 2 * len(widths), 8)
        yield _line("kernel", "bold", titles, first, widths)
        yield Text("─" * room, style="dim", no_wrap=True, overflow="crop")
        for row, cells in self._rows:
            yield _line(row.name, "" if row.kind == "library" else "bold", cells, first, widths)
            yield Text(f"  {place(row)}", style="dim", no_wrap=True, overflow="ellipsis")


def _line(name: str, style: str, cells: Sequence[str], first: int, widths: Sequence[int]) -> Text:
    shown = name if len(name) <= first else f"{name[: first - 1]}…"
    numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return Text(f"{shown:<{first}}", style=style, no_wrap=True).append(numbers, style="not bold")


def _cells(row: KernelRow, total: float) -> list[str]:
    matrix = row.bound == "matrix"
    done = row.part(row.count * (row.flops if matrix else row.moved))
    return [
        str(row.count),
        duration(row.seconds),
        percent(row.seconds, total),
        amount(done, "F/s" if matrix else "B/s") if row.bound else "",
        f"{percent(row.bound_seconds, row.seconds)} {row.bound}" if row.bound else "",
    ]


def place(row: KernelRow) -> str:
    """The origin of a kernel: the last line that it computes, and how many others; in the backward, of what."""
    if not row.sites and not row.module:
        return f"{row.graph}, {row.kind}"
    more = f" +{len(row.sites) - 1}" if len(row.sites) > 1 else ""
    backward = "backward of " if row.graph == "backward" else ""
    return f"{backward}{_short(row.sites[-1]) if row.sites else row.module}{more}"


def _short(site: Site) -> str:
    return f"{PurePath(site.file).name}:{site.line} {site.code}"


def comparison_view(times: Times, note: str, *, empty_caches: bool = False) -> RenderableType:
    """A row for each backend and mode."""
    peaks = any(one.peak_bytes is not None for one in times.contestants)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("backend", no_wrap=True)
    for name in ("time", "spread", "speed", "first call", "error", *(["peak"] if peaks else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for one in times.contestants:
        cells = _compared(one, times.speed(one))
        table.add_row(*cells, *([amount(one.peak_bytes or 0, "B")] if peaks else []))
    failures = [Text(f"{one.name}: {one.failed}", style="red") for one in times.contestants if one.failed]
    busy = busy_line(one.spread for one in times.contestants)
    warnings = [Text(busy, style="yellow")] if busy else []
    measures = _MEASURES.format(caches="all caches on disk empty" if empty_caches else "with what caches on disk hold")
    notes = [Text(line, style="dim") for line in (note, measures) if line]
    return Group(table, *failures, *warnings, *notes, *option_tables(times.contestants))


def option_tables(contestants: Sequence[Contestant]) -> list[Table]:
    """The options in force, and those that did not apply and why; nothing where none were given."""
    given = [one for one in contestants if one.options]
    if not given:
        return []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("options", no_wrap=True)
    table.add_column("values in force")
    table.add_column("not applied, and why", ratio=1)
    for one in given:
        values = "\n".join(f"{name}={value}" for name, value in one.values.items() if name != "template")
        table.add_row(*map(escape, [one.name, values, "\n".join(one.not_applied)]))
    return [table]


def _compared(one: Contestant, speed: float | None) -> list[str]:
    if one.failed:
        return [one.name, "failed", "", "", "", ""]
    error = "" if one.error is None else f"{one.error:.1e}"
    times = duration(one.seconds), plus_minus(one.spread), f"{speed:.2f}x" if speed else "", duration(one.cold_seconds)
    return [one.name, *times, error]
