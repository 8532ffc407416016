"""The environment variables."""

from __future__ import annotations

from pathlib import Path

from regraft.compiler.options import cache_dir


def test_cache_dir(monkeypatch, tmp_path):
    for name in ("REGRAFT_CACHE_DIR", "REGRAFT_DISABLE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_dir() == Path.home() / ".cache" / "regraft"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "regraft"
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.setenv("REGRAFT_DISABLE_CACHE", "0")
    assert cache_dir() == tmp_path / "own"
    monkeypatch.setenv("REGRAFT_DISABLE_CACHE", "1")
    assert cache_dir() is None
