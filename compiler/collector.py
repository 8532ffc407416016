"""Python's garbage collector, held back for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected inside; afterwards it is as it was before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def grow_old() -> None:
    """Let all objects count as old: the next collections of young ones do not look at them.

    After work that made many objects of which most live on, where each of these would be looked at several times for
    nothing. What of them is garbage waits for the next full collection. Where something was frozen, nothing is done:
    it would be thawed.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()
