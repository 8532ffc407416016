"""Clocks for the calls inside one run of a wrapper: on the host, or by events on a GPU.

clock.start("addmm"); addmm = aten.addmm(...); clock.stop()   ...   clock.collect() -> {"addmm": 4.1e-5, ...}
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Protocol

import torch

from ....rewrites.compat import memory


class Clock(Protocol):
    """Times calls by name; several calls of one name between two collections are added up."""

    def start(self, name: str) -> None:
        """The call of that name comes next."""

    def stop(self) -> None:
        """The call has returned."""

    def collect(self) -> dict[str, float]:
        """Seconds by name since the last collection."""


class HostClock:
    """Wall time: what a call on the CPU takes."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._name = ""
        self._begin = 0.0

    def start(self, name: str) -> None:
        """The call of that name comes next."""
        self._name = name
        self._begin = time.perf_counter()

    def stop(self) -> None:
        """The call has returned."""
        self._seconds[self._name] += time.perf_counter() - self._begin

    def collect(self) -> dict[str, float]:
        """Seconds by name since the last collection."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds


class EventClock:
    """Seconds that calls keep the GPU busy, by events on the current stream.

    Before each call the GPU is kept spinning for as long as the host needs to launch it, so that launching is not
    counted; the time between two events with nothing in between is taken off.
    """

    LIMITS = (2e-5, 5e-3)  # seconds of spinning
    UNKNOWN = 1e-3  # the same before a call's first launch

    def __init__(self) -> None:
        self._launch: dict[str, float] = {}
        self._pairs: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._name = ""
        self._begin = 0.0
        self._empty: float | None = None

    def start(self, name: str) -> None:
        """The call of that name comes next."""
        low, high = self.LIMITS
        memory.cuda_spin(min(max(1.5 * self._launch.get(name, self.UNKNOWN) + low, low), high))
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self._pairs.append((name, begin, end))
        self._name, self._begin = name, time.perf_counter()

    def stop(self) -> None:
        """The call has returned; the GPU may not have run it yet."""
        launch = time.perf_counter() - self._begin
        self._pairs[-1][2].record()
        self._launch[self._name] = min(launch, self._launch.get(self._name, launch))

    def collect(self) -> dict[str, float]:
        """Seconds by name since the last collection; waits for the GPU."""
        if self._empty is None:
            self._empty = self._measure_empty()
        torch.cuda.synchronize()
        seconds: defaultdict[str, float] = defaultdict(float)
        for name, begin, end in self._pairs:
            seconds[name] += max(begin.elapsed_time(end) * 1e-3 - self._empty, 0.0)
        self._pairs = []
        return dict(seconds)

    def _measure_empty(self) -> float:
        """Seconds between two events with nothing in between."""
        pairs, self._pairs = self._pairs, []
        for _ in range(20):
            self.start("")
            self.stop()
        torch.cuda.synchronize()
        empty = statistics.median(begin.elapsed_time(end) for _, begin, end in self._pairs)
        self._pairs = pairs
        return empty * 1e-3
