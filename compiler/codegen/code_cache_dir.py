"""The folders of compiled code, for every target: ``<cache>/code`` for C++, ``<cache>/triton`` for Triton.

Only where nobody else may write: what is there will be loaded. Otherwise, and where the disk is full, code lasts as
long as the process.
"""

from __future__ import annotations

import functools
import os
import tempfile
import threading
from pathlib import Path

from ..storage.folder import own_folder

_MAKING = threading.Lock()


def code_folder(kind: str) -> Path:
    """The cache's folder of that name, or where there is none that can be written, one that lasts as the process."""
    kept = own_folder(kind)
    if kept is not None and os.access(kept, os.W_OK):
        return kept
    return temporary_folder(kind)


def temporary_folder(kind: str) -> Path:
    """A folder that lasts as the process."""
    with _MAKING:  # a cached function may run twice at once, and the folder that lost goes with its object
        return Path(_temporary(kind).name)


@functools.cache
def _temporary(kind: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=f"regraft-{kind}-")
