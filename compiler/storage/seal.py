"""Seals: what this user's regraft wrote, and nobody has changed since.

    content  ->  content + HMAC-SHA256(key, kind/name, content)

What is unpickled or loaded as code is read through a seal. The key is random, made once for each user and cache, and
readable by its owner alone; without a place for it, it lasts as long as the process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from .files import aside
from .folder import is_ours, own_folder

SIZE = hashlib.sha256().digest_size
"""Bytes of a seal."""


def seal(name: str, content: bytes) -> bytes:
    """The seal of what is stored under a name."""
    return hmac.new(_key(), name.encode() + b"\0" + content, hashlib.sha256).digest()


def sealed(name: str, content: bytes) -> bytes:
    """The content with its seal behind it."""
    return content + seal(name, content)


def opened(name: str, data: bytes) -> bytes | None:
    """The content of what `sealed` gave; None where it is damaged, of another name, or not from this user."""
    content, given = data[:-SIZE], data[-SIZE:]
    return content if len(data) > SIZE and hmac.compare_digest(seal(name, content), given) else None


def _key() -> bytes:
    folder = own_folder("keys")
    return _only_here() if folder is None else _kept(folder / "seal.key", os.getpid())


@functools.cache
def _only_here() -> bytes:
    return secrets.token_bytes(SIZE)


@functools.lru_cache(maxsize=8)
def _kept(path: Path, _process: int) -> bytes:
    for _ in range(2):
        key = _read(path)
        if key is not None:
            return key
        with contextlib.suppress(OSError):
            _make(path)
    return _read(path) or _only_here()


def _read(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        private = not hasattr(os, "geteuid") or not status.st_mode & 0o077
        key = file.read(SIZE + 1)
    return key if is_ours(status) and private and len(key) == SIZE else None


def _make(path: Path) -> None:
    """Make a key, unless another process makes one at this moment; one that is no key goes."""
    made = aside(path)
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SIZE))
        if path.exists() and _read(path) is None:
            path.unlink()
        try:
            os.link(made, path)  # of two, the first wins
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            made.replace(path)
    finally:
        made.unlink(missing_ok=True)
