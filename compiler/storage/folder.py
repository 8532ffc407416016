"""Folders of the cache that belong to this user and that nobody else may write.

<cache>/code                  where this user made it
<cache>/user-1000/code        where another user's is in its place: of that nothing is loaded
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from ..options.environment import cache_dir

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def own_folder(kind: str) -> Path | None:
    """The folder of that name in the cache, made if need be; None where there is none that is safe to load from."""
    cache = cache_dir()
    if cache is None:
        return None
    for folder in (cache / kind, cache / f"user-{_user()}" / kind):
        if _is_own(folder):
            return folder
    return None


def is_ours(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user, and nobody else may write it."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS


def _is_own(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        if not folder.is_dir():
            return False
    with contextlib.suppress(OSError):
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and not is_ours(status):
            folder.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)  # made under a lenient umask, or not ours
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and is_ours(status)
    return False


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0
