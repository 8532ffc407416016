"""The entries that this process has stored or used, for torch's `save_cache_artifacts` and `load_cache_artifacts`.

Each file that is written or read tells its name here; when torch asks for its artifacts, it gets a bundle of these.
"""

from __future__ import annotations

import contextlib
import threading

from ...rewrites.compat.artifacts import register_artifact
from .bundle import BundleError, imported, packed, read_entry

_used: dict[str, None] = {}
_lock = threading.Lock()


def note_entry(name: str) -> None:
    """Tell that a file of the cache, ``graphs/3f/3f9a...c1.bin``, is part of what this process needs."""
    with _lock:
        _used[name] = None


def _save() -> bytes | None:
    """A bundle of all files that this process has stored or used; None where there are none."""
    with _lock:
        names = list(_used)
    files = {name: content for name in names if (content := read_entry(name)) is not None}
    return packed(files)[0] if files else None


def _load(data: bytes) -> None:
    with contextlib.suppress(BundleError):  # torch's artifacts of other compilers are loaded all the same
        imported(data)


register_artifact("regraft", _save, _load)
