"""Entries on disk: ``graphs/3f/3f9a...c1.bin``, a hash of the content and then the content.

A store may be lost but never wrong: entries are written aside and renamed into place, so that readers in other
processes see a whole entry or none, and what is damaged is deleted and made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import uuid
from pathlib import Path

from ...options import cache_dir

logger = logging.getLogger("regraft")
_FOLDER = "graphs"
_DIGEST = hashlib.sha256().digest_size


def read(key: str) -> bytes | None:
    """The content stored under `key`, or None; a damaged entry is deleted."""
    path = _path(key)
    try:
        data = path.read_bytes() if path is not None else b""
    except OSError:
        return None
    if len(data) > _DIGEST and hashlib.sha256(data[_DIGEST:]).digest() == data[:_DIGEST]:
        return data[_DIGEST:]
    if path is not None:
        discard(key)
    return None


def write(key: str, content: bytes) -> bool:
    """Store `content`; False where the directory can't be written or there is none."""
    path = _path(key)
    if path is None:
        return False
    aside = path.with_name(f".{key[:8]}-{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(hashlib.sha256(content).digest() + content)
        aside.replace(path)
    except OSError as error:
        logger.debug("regraft: the graph cache can't be written: %s", error)
        with contextlib.suppress(OSError):
            aside.unlink()
        return False
    return True


def discard(key: str) -> None:
    """Delete an entry; one that may not be deleted is overwritten by the next compilation or stays unread."""
    path = _path(key)
    with contextlib.suppress(OSError):
        if path is not None:
            path.unlink()


def _path(key: str) -> Path | None:
    directory = cache_dir()
    return None if directory is None else directory / _FOLDER / key[:2] / f"{key}.bin"
