"""How much the cache holds, and what goes where it becomes too much: what was used longest ago.

A file's time of modification is the time of its last use, more or less (`files.note_use`). Deleting is safe at any
time: whoever has a library loaded keeps it, whoever looks for an entry makes it anew.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..options.environment import cache_dir, cache_limit
from .files import discard

KINDS = ("decisions", "graphs", "code", "triton", "faults")
"""Folders whose files may go."""
_TARGET = 0.8  # of the limit, that is left after a sweep
_OFTEN = 600.0  # seconds between sweeps, of all processes
_SHARE = 10  # a process that writes one part in so many of the limit sweeps without waiting for that
_ABANDONED = 3600.0  # seconds after which the file of a writer that was killed goes


@dataclass(frozen=True)
class Stored:
    """A file of the cache: its kind, path, bytes, and when it was used last (seconds since 1970)."""

    kind: str
    path: Path
    size: int
    used: float


def stored(root: Path | None = None) -> Iterator[Stored]:
    """Every file of the cache, also of folders of this user's own (see `folder`)."""
    root = root or cache_dir()
    if root is None:
        return
    for base in (root, *sorted(root.glob("user-*"))):
        for kind in KINDS:
            for folder, _, names in os.walk(base / kind):
                for name in names:
                    path = Path(folder) / name
                    with contextlib.suppress(OSError):
                        status = path.lstat()
                        yield Stored(kind, path, status.st_size, status.st_mtime)


def sweep(limit: int | None = None, root: Path | None = None) -> list[Stored]:
    """Delete what killed writers left, and the least recently used files beyond `limit` bytes; gives these."""
    limit = cache_limit() if limit is None else limit
    now = time.time()
    kept: list[Stored] = []
    gone: list[Stored] = []
    for one in stored(root):
        unfinished = one.path.name.startswith(".")
        (gone if unfinished and now - one.used > _ABANDONED else kept).append(one)
    total = sum(one.size for one in kept)
    if total > limit:
        for one in sorted(kept, key=lambda one: one.used):
            if total <= _TARGET * limit:
                break
            gone.append(one)
            total -= one.size
    for one in gone:
        discard(one.path)
    return gone


def clear(kinds: tuple[str, ...] = KINDS, root: Path | None = None) -> list[Stored]:
    """Delete all files of some kinds; gives these."""
    gone = [one for one in stored(root) if one.kind in kinds]
    for one in gone:
        discard(one.path)
    return gone


_written = [0]  # bytes since the last sweep of this process
_lock = threading.Lock()


def note_written(count: int) -> None:
    """Tell of bytes that were written; sweeps now and then."""
    root = cache_dir()
    if root is None:
        return
    with _lock:
        _written[0] += count
        much = _written[0] * _SHARE > cache_limit()
        if much:
            _written[0] = 0
    with contextlib.suppress(OSError):
        if much or _is_due(root / "swept"):
            sweep()


def _is_due(marker: Path) -> bool:
    """Whether the last sweep of any process is long ago; this one counts as begun."""
    with contextlib.suppress(FileNotFoundError):
        if time.time() - marker.stat().st_mtime < _OFTEN:
            return False
    marker.touch()
    return True
