"""Pauses Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector inside; afterwards it is enabled again if it was."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def collected_once() -> Iterator[None]:
    """Disable the garbage collector inside; at the end, collect young garbage and promote all survivors.

    For work that creates many objects, most of which survive: the collector would visit each of them several times in
    vain. If the program has frozen objects, survivors are not promoted, since this would unfreeze them. If the
    collector is disabled already, nothing happens.
    """
    with uncollected():
        yield
    if gc.isenabled():
        gc.collect(1)
        if not _is_something_frozen():
            gc.freeze()
            gc.unfreeze()


_FROZEN: list[bool] = []


def _is_something_frozen() -> bool:
    """Whether `gc.freeze` was used. Python counts by walking all frozen objects, so that yes is remembered."""
    if not _FROZEN and gc.get_freeze_count() > 0:
        _FROZEN.append(True)
    return bool(_FROZEN)
