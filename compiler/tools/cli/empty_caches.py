"""Caches on disk of this process alone, so that a first call is cold: those of regraft, Inductor and Triton."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_FOLDERS = ("REGRAFT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@contextlib.contextmanager
def empty_caches() -> Iterator[Callable[[], None]]:
    """Empty caches for as long as this lasts, and a function that empties them again."""
    before = {name: os.environ.get(name) for name in _FOLDERS}
    with tempfile.TemporaryDirectory(prefix="regraft-cold-", ignore_cleanup_errors=True) as folder:
        os.environ.update({name: str(Path(folder, name.lower())) for name in _FOLDERS})
        try:
            yield lambda: _empty(Path(folder))
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _empty(folder: Path) -> None:
    for name in _FOLDERS:
        shutil.rmtree(folder / name.lower(), ignore_errors=True)
