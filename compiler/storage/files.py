"""Files that are there as a whole or not at all: written aside, and renamed into place.

Readers in other processes see the old file or the new one. A writer that is killed leaves a file whose name begins
with a dot; `space.sweep` deletes it.
"""

from __future__ import annotations

import contextlib
import errno
import time
import uuid
from pathlib import Path

_RECENT = 3600.0  # seconds: how exactly the time of the last use is known
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG)
"""Errors of a place that can't be written, not of what is written."""


def aside(path: Path, suffix: str = "") -> Path:
    """A name beside a file for what will be renamed to it."""
    return path.with_name(f".{path.stem[:8]}-{uuid.uuid4().hex}{suffix}")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in one step.

    Raises:
        OSError: it can't be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written = aside(path)
    try:
        written.write_bytes(content)
        written.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            written.unlink()
        raise


def discard(path: Path) -> None:
    """Delete a file, where that is allowed."""
    with contextlib.suppress(OSError):
        path.unlink()


def note_use(path: Path) -> None:
    """Let a file count as used now, where that may be written."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _RECENT:
            path.touch()
