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


@contextmanager
def collected_once() -> Iterator[None]:
    """No garbage is collected inside; at the end what is garbage of all that is young goes, and the rest counts as old.

    For work that makes many objects of which most live on: each of these would be looked at several times for nothing.
    Where something was frozen, nothing counts as old: it would be thawed. Nothing happens where collecting is disabled.
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
    """Python counts by walking all that is frozen: a program that has frozen something once is asked no more."""
    if not _FROZEN and gc.get_freeze_count() > 0:
        _FROZEN.append(True)
    return bool(_FROZEN)
