"""The collector held back, and what counts as old."""

from __future__ import annotations

import gc
import weakref

import pytest

from regraft.compiler.runtime import gc_pause
from regraft.compiler.runtime.gc_pause import collected_once, uncollected


class _Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True, scope="module")
def frozen_again():
    """What all tests have frozen."""
    yield
    gc.freeze()


@pytest.fixture(autouse=True)
def thawed(monkeypatch, collecting):
    monkeypatch.setattr(gc_pause, "_FROZEN", [])
    gc.unfreeze()


def test_nothing_is_collected_inside():
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()


def test_garbage_goes_and_the_rest_counts_as_old():
    with collected_once():
        gone, kept = weakref.ref(_Cycle()), [_Cycle() for _ in range(3)]
        assert not gc.isenabled() and gone() is not None
    assert gc.isenabled() and gone() is None
    young = {id(x) for generation in (0, 1) for x in gc.get_objects(generation)}
    assert all(gc.is_tracked(x) and id(x) not in young for x in kept)


def test_where_collecting_is_disabled_nothing_happens():
    gc.disable()
    with collected_once():
        there = weakref.ref(_Cycle())
    assert there() is not None and not gc.isenabled()


def test_what_was_frozen_stays_so():
    frozen = _Cycle()
    gc.freeze()
    with collected_once():
        gone = weakref.ref(_Cycle())
    assert gone() is None and not any(x is frozen for x in gc.get_objects())


def test_what_is_frozen_is_counted_once(monkeypatch):
    """Counting takes as long as there are objects."""
    counted = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(1) or 5)
    monkeypatch.setattr(gc, "unfreeze", lambda: pytest.fail("thawed"))
    for _ in range(3):
        with collected_once():
            pass
    assert len(counted) == 1
