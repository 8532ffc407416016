"""Entries on disk: ``graphs/3f/3f9a...c1.bin``, the content with a seal behind it.

A store may be lost but never wrong: entries are written aside and renamed into place, so that readers in other
processes see a whole entry or none; what is damaged, or was not written by this user's regraft, is not believed.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ...storage import seal
from ...storage.artifacts import note_entry
from ...storage.files import discard as discard_file
from ...storage.files import note_use, write_whole
from ...storage.folder import own_folder
from ...storage.space import note_written

logger = logging.getLogger("regraft")
_FOLDER = "graphs"


def read(key: str) -> bytes | None:
    """The content stored under `key`, or None; what can't be believed is deleted."""
    path = _path(key)
    try:
        data = path.read_bytes() if path is not None else None
    except OSError:
        return None
    if path is None or data is None:
        return None
    content = seal.opened(f"{_FOLDER}/{key}", data)
    if content is None:
        discard_file(path)
        return None
    note_use(path)
    note_entry(f"{_FOLDER}/{key[:2]}/{key}.bin")
    return content


def write(key: str, content: bytes) -> bool:
    """Store `content`; False where the directory can't be written or there is none."""
    path = _path(key)
    if path is None:
        return False
    try:
        write_whole(path, seal.sealed(f"{_FOLDER}/{key}", content))
    except OSError as error:
        logger.debug("regraft: the graph cache can't be written: %s", error)
        return False
    note_entry(f"{_FOLDER}/{key[:2]}/{key}.bin")
    note_written(len(content))
    return True


def discard(key: str) -> None:
    """Delete an entry; one that may not be deleted is overwritten by the next compilation or stays unread."""
    path = _path(key)
    if path is not None:
        discard_file(path)


def _path(key: str) -> Path | None:
    folder = own_folder(_FOLDER)
    return None if folder is None else folder / key[:2] / f"{key}.bin"
