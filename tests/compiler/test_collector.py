"""The collector held back, and what counts as old."""

from __future__ import annotations

import gc
import weakref

import pytest

from regraft.compiler.collector import grow_old, uncollected


class _Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed():
    gc.collect()
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_inside():
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()


def test_old_garbage_waits_for_a_full_collection():
    gone = weakref.ref(_Cycle())
    grow_old()
    gc.collect(1)
    assert gone() is not None
    gc.collect()
    assert gone() is None


def test_what_was_frozen_stays_so():
    gc.freeze()
    before = gc.get_freeze_count()
    grow_old()
    assert gc.get_freeze_count() == before > 0
