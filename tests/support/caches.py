"""What tests keep on disk: compiled code for all runs, by the hash of its text; all else for this process alone.

Graphs and measured decisions of other runs would be recalled where a test is to see how they are made. Code is the same
whoever compiled it, and takes longest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regraft.compiler.codegen import code_cache_dir
from regraft.compiler.options.environment import cache_dir
from regraft.compiler.storage import seal

_SHARED = ("code", "triton", "keys")  # code is loaded where it bears this user's seal
_FOLDERS: dict[str, dict[str, Path]] = {}  # by a cache's folder: those of its code, by kind; the session's is the first


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """The cache is in a folder, but for code, which stays where it is; nothing is shared where a test names another."""
    own_folder = code_cache_dir.own_folder
    shared = {kind: found for kind in _SHARED if (found := own_folder(kind))}

    def own_or_shared(kind: str) -> Path | None:
        return shared[kind] if kind in shared and cache_dir() == folder else own_folder(kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGRAFT_CACHE_DIR", str(folder))
        patch.setitem(_FOLDERS, str(folder), shared)
        for module in (code_cache_dir, seal):
            patch.setattr(module, "own_folder", own_or_shared)
        yield


def left_behind() -> str | None:
    """The cache's folder if it is not the session's, though no test runs; the tests that follow get the session's."""
    left = str(cache_dir())
    if not _FOLDERS or left == next(iter(_FOLDERS)):
        return None
    os.environ["REGRAFT_CACHE_DIR"] = next(iter(_FOLDERS))
    return left


def code_of_all_runs(cache: str | None = None) -> dict[str, str]:
    """Folders of compiled code that a process of its own may use too, by kind.

    Args:
        cache: the folder of the process's cache; that of a test's session if None.

    Returns:
        none where the cache holds its own code.
    """
    shared = next(iter(_FOLDERS.values()), {}) if cache is None else _FOLDERS.get(cache, {})
    return {kind: str(folder) for kind, folder in shared.items()}
