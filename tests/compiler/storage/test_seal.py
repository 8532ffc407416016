"""Seals and folders: what is believed of a cache that others can reach, that is damaged, or can't be written."""

from __future__ import annotations

import os
import stat

import pytest

from regraft.compiler.storage import seal
from regraft.compiler.storage.folder import own_folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    seal._kept.cache_clear()
    return tmp_path


def another_user(monkeypatch, uid=54321):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    seal._kept.cache_clear()


def test_what_was_sealed_opens_under_its_name_only():
    data = seal.sealed("graphs/a", b"content")
    assert seal.opened("graphs/a", data) == b"content"
    assert seal.opened("graphs/b", data) is None


def test_any_changed_byte_is_noticed():
    data = seal.sealed("a", b"content")
    for place in range(len(data)):
        assert seal.opened("a", data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]) is None
    for end in range(len(data)):
        assert seal.opened("a", data[:end]) is None


def test_the_key_is_for_its_owner_and_lasts(cache):
    data = seal.sealed("a", b"content")
    key = cache / "keys" / "seal.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    seal._kept.cache_clear()  # as another process
    assert seal.opened("a", data) == b"content"
    assert [path.name for path in key.parent.iterdir()] == ["seal.key"]


@pytest.mark.parametrize("spoil", [
    lambda key: key.write_bytes(b"short"), lambda key: key.chmod(0o644), lambda key: key.chmod(0o622),
    lambda key: (key.rename(key.with_name("x")), key.symlink_to("x")),
], ids=["short", "readable", "writable", "link"])  # fmt: skip
def test_a_key_that_others_may_know_is_none(cache, spoil):
    data = seal.sealed("a", b"content")
    spoil(cache / "keys" / "seal.key")
    seal._kept.cache_clear()
    assert seal.opened("a", data) is None
    made = seal.sealed("a", b"content")
    seal._kept.cache_clear()
    assert seal.opened("a", made) == b"content"  # there is a new one, that lasts


def test_without_a_place_for_a_key_it_lasts_as_the_process(cache, monkeypatch):
    monkeypatch.setenv("REGRAFT_DISABLE_CACHE", "1")
    assert seal.opened("a", seal.sealed("a", b"content")) == b"content"
    assert not list(cache.iterdir())


def test_folders_are_made_for_this_user(cache):
    folder = own_folder("graphs")
    assert folder == cache / "graphs" and not folder.stat().st_mode & 0o022


def test_a_folder_that_others_may_write_is_closed_to_them(cache):
    (cache / "code").mkdir()
    (cache / "code").chmod(0o777)
    assert own_folder("code") == cache / "code"
    assert stat.S_IMODE((cache / "code").stat().st_mode) == 0o755


def test_another_users_folder_is_left_alone(cache, monkeypatch):
    data = seal.sealed("graphs/a", b"content")
    own_folder("graphs")
    another_user(monkeypatch)
    # What this process makes belongs to the real user, so nothing can be this other one's: nothing is believed.
    assert own_folder("graphs") is None
    assert seal.opened("graphs/a", data) is None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give folders away")
def test_a_user_gets_a_folder_beside_another_users(cache):
    for kind in ("graphs", "keys"):
        (cache / kind).mkdir()
        os.chown(cache / kind, 54321, 54321)
    assert own_folder("graphs") == cache / "user-0" / "graphs"
    assert seal.opened("a", seal.sealed("a", b"content")) == b"content"
    assert (cache / "user-0" / "keys" / "seal.key").exists()


def test_a_link_in_place_of_a_folder_is_not_followed(cache, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (cache / "graphs").symlink_to(elsewhere)
    assert own_folder("graphs") == cache / f"user-{os.geteuid()}" / "graphs"
