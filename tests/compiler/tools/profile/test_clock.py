"""Clocks of calls: the host's, and the GPU's against a device that is made up."""

import time

import pytest
import torch

from regraft.compiler.tools.profile.clock import EventClock, HostClock
from regraft.rewrites.compat import memory


def test_host_clock_adds_up_by_name():
    clock = HostClock()
    for _ in range(2):
        clock.start("a")
        time.sleep(0.01)
        clock.stop()
    clock.start("b")
    clock.stop()
    seconds = clock.collect()
    assert seconds.keys() == {"a", "b"} and seconds["a"] > 0.019 > seconds["b"]
    assert clock.collect() == {}


class Gpu:
    """A stream: events are marks in milliseconds, kernels and spinning move it on."""

    def __init__(self):
        self.now = 0.0
        self.spins = []

    def spin(self, seconds):
        self.spins.append(seconds)
        self.now += seconds * 1e3

    def event(self, enable_timing):
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, gpu):
        self._gpu = gpu

    def record(self):
        self._gpu.now += 0.002  # what an event costs
        self.at = self._gpu.now

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.fixture
def gpu(monkeypatch):
    made = Gpu()
    monkeypatch.setattr(memory, "cuda_spin", made.spin)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def test_event_clock_takes_off_events_and_spinning(gpu):
    clock = EventClock()
    for name, milliseconds in (("mm", 0.5), ("add", 0.01), ("mm", 0.25)):
        clock.start(name)
        gpu.now += milliseconds
        clock.stop()
    assert clock.collect() == pytest.approx({"mm": 0.75e-3, "add": 0.01e-3})
    assert clock.collect() == {}


def test_event_clock_spins_as_long_as_launching_takes(gpu):
    clock = EventClock()
    for _ in range(2):
        clock.start("slow")
        time.sleep(0.002)
        clock.stop()
    low, high = clock.LIMITS
    assert gpu.spins[0] == pytest.approx(1.5 * clock.UNKNOWN + low)
    assert 0.003 <= gpu.spins[1] <= high
