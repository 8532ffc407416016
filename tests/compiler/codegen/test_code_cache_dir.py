"""Compiled code is kept in the cache, or for as long as the process."""

import functools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from regraft.compiler.codegen import code_cache_dir as module
from regraft.compiler.codegen.code_cache_dir import code_folder

KINDS = pytest.mark.parametrize("kind", ["code", "triton"])


@KINDS
def test_the_cache_has_a_folder_of_each_kind(monkeypatch, tmp_path, kind):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    assert code_folder(kind) == tmp_path / kind and (tmp_path / kind).is_dir()


@KINDS
def test_threads_share_the_folder_where_the_cache_is_off(monkeypatch, kind):
    made = module._temporary.__wrapped__

    @functools.cache
    def slow(kind):
        folder = made(kind)
        time.sleep(0.05)
        return folder

    monkeypatch.setenv("REGRAFT_DISABLE_CACHE", "1")
    monkeypatch.setattr(module, "_temporary", slow)
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: code_folder(kind), range(4)))
    assert len(set(folders)) == 1 and folders[0].is_dir()
    slow(kind).cleanup()
