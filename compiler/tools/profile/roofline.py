"""The roofline of a kernel report as geometry: where each dot and line lies in a drawing, both axes logarithmic.

FLOP/s |        ________ 1 PFLOP/s in bfloat16
       |   o   /   o
       |      /  o            x: operations for each byte moved (intensity)
       |  o  / 4 TB/s         y: operations a second; the area of a dot is the kernel's time
       +------------------
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .limits import Limits
from .report import KernelReport, KernelRow
from .units import amount

WIDTH, HEIGHT = 1000, 520
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 22, 50
_RADII = (4.0, 26.0)
_SLOWEST = 1e-5  # of the highest speed: what is slower lies at the bottom


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from 10**low to 10**high, drawn from `start` to `end`."""

    low: int
    high: int
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value lies; those out of range lie at the ends."""
        part = (math.log10(max(value, 1e-300)) - self.low) / (self.high - self.low)
        return round(self.start + min(max(part, 0.0), 1.0) * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Its powers of ten."""
        return [10.0**exponent for exponent in range(self.low, self.high + 1)]


@dataclass(frozen=True)
class Dot:
    """A kernel in the drawing."""

    row: KernelRow
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Roof:
    """A limit in the drawing: a line, and its name near (x, y)."""

    points: str
    label: str
    x: float
    y: float


@dataclass(frozen=True)
class Roofline:
    """Everything that is drawn."""

    x: Axis
    y: Axis
    dots: list[Dot]
    roofs: list[Roof]


def roofline(report: KernelReport) -> Roofline | None:
    """The drawing of a report; None where no kernel has both time and bytes."""
    rows = [row for row in report.rows if row.seconds > 0 and row.moved > 0]
    if not rows:
        return None
    limits = report.limits
    ridges = [rate / limits.bandwidth for rate in limits.rates.values() if rate and limits.bandwidth]
    tops = [rate for rate in limits.rates.values() if rate]
    across = _axis([*map(intensity, rows), *ridges], LEFT, WIDTH - RIGHT)
    fastest = max([*map(speed, rows), *tops])
    up = _axis([max(speed(row), fastest * _SLOWEST) for row in rows] + tops, HEIGHT - BOTTOM, TOP)
    longest = max(row.seconds for row in rows)
    dots = [Dot(row, across.at(intensity(row)), up.at(speed(row)), _radius(row.seconds / longest)) for row in rows]
    return Roofline(across, up, dots, _roofs(limits, across, up))


def work(row: KernelRow) -> int:
    """Operations of one call: FLOPs of products, else other arithmetic, else one for each byte written."""
    return row.flops or row.operations or row.written or 1


def intensity(row: KernelRow) -> float:
    """Operations for each byte moved."""
    return work(row) / row.moved


def speed(row: KernelRow) -> float:
    """Operations a second."""
    return row.part(row.count * work(row))


def _radius(part: float) -> float:
    low, high = _RADII
    return round(max(low, high * math.sqrt(part)), 1)


def _axis(values: Sequence[float], start: float, end: float) -> Axis:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return Axis(low, max(high, low + 1), start, end)


def _roofs(limits: Limits, across: Axis, up: Axis) -> list[Roof]:
    roofs = []
    bandwidth, left, right = limits.bandwidth, 10.0**across.low, 10.0**across.high
    top = max((rate for rate in limits.rates.values()), default=0.0) or 10.0**up.high
    if bandwidth:
        # Only the part inside the drawing: from where it enters at the left or at the bottom, to the highest roof.
        first, last = max(left, 10.0**up.low / bandwidth), min(right, top / bandwidth)
        if first < last:
            points = _points(across, up, (first, first * bandwidth), (last, last * bandwidth))
            middle = math.sqrt(first * last)
            label = f"{amount(bandwidth, 'B/s')} (copy)"
            roofs.append(Roof(points, label, across.at(middle) - 10, up.at(middle * bandwidth) - 6))
    for dtype, rate in limits.rates.items():
        if rate:
            begin = min(max(rate / bandwidth, left), right) if bandwidth else left
            points = _points(across, up, (begin, rate), (right, rate))
            roofs.append(Roof(points, f"{amount(rate, 'FLOP/s')} in {dtype}", across.end, up.at(rate) - 6))
    return roofs


def _points(across: Axis, up: Axis, *places: tuple[float, float]) -> str:
    return " ".join(f"{across.at(x)},{up.at(y)}" for x, y in places)
