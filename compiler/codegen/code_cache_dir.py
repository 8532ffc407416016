"""Where compiled code is kept, for every target: ``<cache>/code`` for C++, ``<cache>/triton`` for Triton."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
from pathlib import Path

from ..options import cache_dir

_MAKING = threading.Lock()


def code_folder(kind: str) -> Path:
    """The cache's folder of that name, or where there is none that can be written, one that lasts as the process."""
    kept = cache_dir()
    if kept is not None:
        with contextlib.suppress(OSError):
            (kept / kind).mkdir(parents=True, exist_ok=True)
            if os.access(kept / kind, os.W_OK):
                return kept / kind
    with _MAKING:  # a cached function may run twice at once, and the folder that lost goes with its object
        return Path(_temporary(kind).name)


@functools.cache
def _temporary(kind: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=f"regraft-{kind}-")
