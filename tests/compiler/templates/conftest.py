"""Kernels of these tests are compiled once a run, into a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def kernel_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where kernels go, instead of the user's own directory."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("kernels")
        patch.setenv("REGRAFT_CACHE_DIR", str(path))
        yield path
