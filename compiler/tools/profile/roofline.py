"""The roofline of a kernel report as geometry: where each dot and line lies in a drawing, both axes logarithmic.

FLOP/s |        ________ 1 PFLOP/s in bfloat16
       |   o   /   o
       |      /  o            x: operations for each byte moved (intensity)
       |  o  / 4 TB/s         y: operations a second; the area of a dot is the kernel's time
       +------------------
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .limits import Limits
from .rows import KernelRow, KernelTimes
from .units import amount

WIDTH, HEIGHT = 1000, 520
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 22, 50
_RADII = (4.0, 26.0)
NAMED, _LETTERS, _LETTER = 12, 28, 7.4  # dots that may have names, letters of one, and the width of a letter
_ROW = 16.0  # between two names, one above the other
_FAR = 6  # rows that a name may be away from its dot
_SLOWEST = 1e-5  # of the highest speed: what is slower lies at the bottom


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis from 10**low to 10**high, drawn from `start` to `end`."""

    low: int
    high: int
    start: float
    end: float

    def at(self, value: float) -> float:
        """The position of a value; those out of range lie at the ends."""
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
class Name:
    """The name of a dot beside it: its text begins at (x, y), or ends there; `end` is the end of a line to the dot."""

    text: str
    x: float
    y: float
    at_start: bool
    end: tuple[float, float] | None = None

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom, by the width of an average letter."""
        return _text_box(self.text, self.x, self.y, self.at_start)


@dataclass(frozen=True)
class Roofline:
    """Everything that is drawn; `names` are of the dots that take most time, as far as there is room."""

    x: LogAxis
    y: LogAxis
    dots: list[Dot]
    roofs: list[Roof]
    names: list[Name]


def roofline(report: KernelTimes) -> Roofline | None:
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
    roofs = _roofs(limits, across, up)
    return Roofline(across, up, dots, roofs, _names(dots, roofs))


def _names(dots: Sequence[Dot], roofs: Sequence[Roof]) -> list[Name]:
    """Names of dots, the slowest kernels first, where they cover no other name and no dot.

    The name of a dot that has room on neither side stands farther off, with a line to the dot.
    """
    taken = [_text_box(roof.label, roof.x, roof.y, at_start=False) for roof in roofs]
    named: list[Name] = []
    for dot in sorted(dots, key=lambda dot: -dot.row.seconds)[:NAMED]:
        text = re.sub(r"(\.default)?(_[0-9a-f]{8,})?$", "", dot.row.name.removeprefix("aten."))[:_LETTERS]
        for name in _places(text, dot):
            left, top, right, bottom = name.box
            covers = any(_touches(name.box, d) for d in dots)
            inside = left >= LEFT and right <= WIDTH and top >= 0 and bottom <= HEIGHT - BOTTOM
            if inside and not covers and not any(_overlap(name.box, box) for box in taken):
                named.append(name)
                taken.append(name.box)
                break
    return named


def _places(text: str, dot: Dot) -> Iterator[Name]:
    """The places at which the name of a dot may stand, the nearest first."""
    gap = dot.radius + 4
    yield Name(text, dot.x + gap, dot.y + 4, True)
    yield Name(text, dot.x - gap, dot.y + 4, False)
    for rows in range(1, _FAR):
        for side in (-1, 1):  # above it, then below
            y = dot.y + side * (dot.radius + rows * _ROW)
            end = dot.x, dot.y + side * dot.radius
            yield Name(text, dot.x + 8, y + 4, True, end)
            yield Name(text, dot.x - 8, y + 4, False, end)


def _touches(box: tuple[float, float, float, float], dot: Dot) -> bool:
    left, top, right, bottom = box
    across, down = max(left - dot.x, dot.x - right, 0.0), max(top - dot.y, dot.y - bottom, 0.0)
    return math.hypot(across, down) < dot.radius


def _text_box(text: str, x: float, y: float, at_start: bool) -> tuple[float, float, float, float]:
    left = x if at_start else x - _LETTER * len(text)
    return left, y - 12, left + _LETTER * len(text), y + 4


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


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


def _axis(values: Sequence[float], start: float, end: float) -> LogAxis:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return LogAxis(low, max(high, low + 1), start, end)


def _roofs(limits: Limits, across: LogAxis, up: LogAxis) -> list[Roof]:
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
    return _apart(roofs)


def _apart(roofs: Sequence[Roof]) -> list[Roof]:
    """Roofs whose names begin in rows of their own: limits of two dtypes may be nearly equal."""
    placed: list[Roof] = []
    for roof in sorted(roofs, key=lambda roof: -roof.y):
        below = [p.y for p in placed if p.x == roof.x and p.y - roof.y < _ROW]
        placed.append(replace(roof, y=min(below) - _ROW) if below else roof)
    return placed


def _points(across: LogAxis, up: LogAxis, *places: tuple[float, float]) -> str:
    return " ".join(f"{across.at(x)},{up.at(y)}" for x, y in places)
