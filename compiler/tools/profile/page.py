"""The kernel report as one self-contained HTML page: no script, font or image from elsewhere; dark and light."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ....rewrites.machine import origin
from ....rewrites.report import html as coverage_page
from ....rewrites.report.timing import duration
from . import roofline
from .table import place
from .units import amount, percent

if TYPE_CHECKING:
    import jinja2

    from .rows import KernelRow, KernelTimes

PAGE = "kernels.html"
BARS = 40
"""Kernels in the list of bars; the table below has all."""

_FOLDERS = (Path(__file__).parent / "page", Path(coverage_page.__file__).parent / "page")


def render(report: KernelTimes) -> str:
    """The report as an HTML page."""
    longest = max((row.seconds for row in report.rows), default=0.0)
    return _environment().get_template(PAGE).render(
        report=report,
        origin=origin(),
        environment_line=" · ".join(f"{name} {value}" for name, value in report.environment.items()),
        bars=[_bar(row, longest) for row in report.rows[:BARS]],
        omitted=max(len(report.rows) - BARS, 0),
        roofline=roofline.roofline(report),
        frame=roofline,
        by_kind=_by_kind(report),
    )  # fmt: skip


def _bar(row: KernelRow, longest: float) -> dict[str, object]:
    """A bar of at most 1000 units, split at the least time that the device allows."""
    length = 1000 * row.seconds / longest if longest else 0.0
    return {"row": row, "length": round(length, 1), "least": round(length * min(row.part(row.bound_seconds), 1.0), 1)}


def _by_kind(report: KernelTimes) -> list[tuple[str, float]]:
    """Time by who made the code."""
    kinds = ("generated", "template", "library")
    sums = {kind: sum(row.seconds for row in report.rows if row.kind == kind) for kind in kinds}
    return [(kind, seconds) for kind, seconds in sums.items() if seconds]


def _environment() -> jinja2.Environment:
    import jinja2

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDERS), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    env.filters.update(
        duration=duration,
        amount=amount,
        percent=percent,
        place=place,
        flops=partial(amount, unit="FLOP"),
        size=partial(amount, unit="B"),
    )
    return env
