"""Room for frames: what is called keeps its meaning, and no depth of calls is slow."""

from __future__ import annotations

import resource
import sys

import pytest

from regraft.compiler.runtime.frame_stack import with_room


def test_calls_are_as_they_were():
    @with_room
    def function(a, *more, b=2):
        """What it does."""
        return a, more, b

    assert function(1, 3, b=4) == (1, (3,), 4)
    assert function.__name__ == "function" and function.__doc__ == "What it does."


def test_errors_come_through():
    with pytest.raises(KeyError, match="missing"):
        with_room({}.__getitem__)("missing")


def _small():
    return None


def _loop():
    for _ in range(2000):
        _small()


def _deep(depth):
    return _loop() if depth == 0 else _deep(depth - 1)


def _faults(depth):
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    _deep(depth)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts page faults of a thread")
def test_no_depth_of_calls_maps_memory_again_and_again():
    @with_room
    def worst():
        return max(map(_faults, range(400)))

    assert worst() < 1000
