"""The size of the cache: least recently used files go, whatever else happens at the time."""

from __future__ import annotations

import os
import time

import pytest

from regraft.compiler.options.environment import cache_limit
from regraft.compiler.storage import space
from regraft.compiler.storage.files import note_use, write_whole


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    return tmp_path


def keep(cache, name, size=100, age=0.0):
    path = cache / name
    write_whole(path, b"x" * size)
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_the_least_recently_used_go_first(cache):
    paths = [keep(cache, f"{kind}/aa/{n}.bin", age=1000 - 10 * n) for n, kind in enumerate(["graphs", "code"] * 5)]
    assert space.sweep(1000) == []
    gone = space.sweep(500)
    assert [one.path for one in gone] == paths[:6]
    assert sum(one.size for one in space.stored()) == 400 and paths[-1].exists()


def test_use_counts(cache):
    old, used = keep(cache, "graphs/aa/a.bin", age=8000), keep(cache, "graphs/aa/b.bin", age=9000)
    note_use(used)
    space.sweep(150)
    assert used.exists() and not old.exists()


def test_what_killed_writers_left_goes(cache):
    dead, alive = keep(cache, "code/aa/.3f-dead.so", age=7200), keep(cache, "code/aa/.3f-alive.so", age=5)
    space.sweep(1 << 30)
    assert alive.exists() and not dead.exists()


def test_keys_and_foreign_files_stay(cache):
    key, other = keep(cache, "keys/seal.key"), keep(cache, "mine.txt")
    space.clear()
    space.sweep(0)
    assert key.exists() and other.exists()


def test_writing_sweeps_now_and_then(cache, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_LIMIT", "0.001")
    swept = []
    monkeypatch.setattr(space, "sweep", lambda: swept.append(1))
    monkeypatch.setattr(space, "_written", [0])
    space.note_written(1)  # the first of all
    space.note_written(1)
    assert len(swept) == 1
    space.note_written(500)  # a tenth of the limit
    assert len(swept) == 2


@pytest.mark.parametrize(("given", "limit"), [("", 8 << 30), ("1.5", 3 << 19), ("many", 8 << 30), ("-1", 8 << 30)])
def test_limit(monkeypatch, given, limit):
    monkeypatch.setenv("REGRAFT_CACHE_LIMIT", given)
    assert cache_limit() == limit
