"""The decision cache: what it gives back, and what it survives."""

from __future__ import annotations

import json
import multiprocessing
import warnings

import pytest

from regraft.compiler.autotune import decision_cache as cache_module
from regraft.compiler.autotune.decision_cache import SCHEMA, DecisionCache, decision_cache, digest, environment

KEY = digest("a question")
VALUE = {"chosen": "flash", "evidence": {"times": {"original": 2.0, "flash": 1.0}, "note": ""}}


@pytest.fixture
def store(tmp_path) -> DecisionCache:
    return DecisionCache(tmp_path / "cache")


def reopened(store: DecisionCache) -> DecisionCache:
    return DecisionCache(store.directory)


def test_gives_back_what_was_put(store):
    assert store.get(KEY) is None
    store.put(KEY, VALUE)
    assert store.get(KEY) == VALUE
    assert (store.stats.misses, store.stats.memory_hits, store.stats.writes) == (1, 1, 1)


def test_persists_across_instances(store):
    store.put(KEY, VALUE)
    other = reopened(store)
    assert other.get(KEY) == VALUE
    assert other.get(KEY) == VALUE
    assert (other.stats.disk_hits, other.stats.memory_hits) == (1, 1)


def test_memory_and_disk_agree_on_types(store):
    store.put(KEY, {"tags": ("scale", "mask")})
    assert store.get(KEY) == reopened(store).get(KEY) == {"tags": ["scale", "mask"]}


def test_callers_get_copies(store):
    store.put(KEY, VALUE)
    store.get(KEY)["evidence"]["times"].clear()
    assert store.get(KEY) == VALUE


def test_replaces_an_entry(store):
    store.put(KEY, VALUE)
    store.put(KEY, {"chosen": None})
    assert store.get(KEY) == reopened(store).get(KEY) == {"chosen": None}


def test_entry_is_readable_json_with_its_circumstances(store):
    store.put(KEY, VALUE)
    path = store.path(KEY)
    assert path.parent.name == KEY[:2]
    entry = json.loads(path.read_text())
    assert entry["schema"] == SCHEMA
    assert entry["key"] == KEY
    assert entry["value"] == VALUE
    assert entry["created"].startswith("20")
    assert entry["environment"] == environment()
    assert {"regraft", "torch", "cpu", "gpu", "threads"} <= entry["environment"].keys()
    assert path.read_text().count("\n") > 5
    assert list(store.entries()) == [entry]


def test_any_text_is_a_key(store):
    key = "linear/../../etc: 128 × 768"
    store.put(key, VALUE)
    assert store.path(key).resolve().is_relative_to(store.directory.resolve())
    assert reopened(store).get(key) == VALUE


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[1, 2]",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"value"', '"valve"'),
        lambda text: text.replace(f'"schema": {SCHEMA}', '"schema": 0'),
        lambda text: text.replace(KEY, digest("another question")),
    ],
    ids=["empty", "partial", "not an object", "deep", "no value", "old schema", "another key"],
)
def test_unreadable_entries_are_discarded_and_counted(store, damage):
    store.put(KEY, VALUE)
    path = store.path(KEY)
    path.write_text(damage(path.read_text()))
    other = reopened(store)
    assert other.get(KEY) is None
    assert other.stats.discarded == 1
    assert not path.exists()
    other.put(KEY, VALUE)
    assert reopened(store).get(KEY) == VALUE


def test_binary_garbage_is_discarded(store):
    store.put(KEY, VALUE)
    store.path(KEY).write_bytes(b"\xff\xfe\x00garbage")
    assert reopened(store).get(KEY) is None
    assert list(reopened(store).entries()) == []


def test_a_failed_write_leaves_nothing_behind(store, monkeypatch):
    store.put(KEY, VALUE)

    def fail(self, target):
        raise OSError("disk full")

    monkeypatch.setattr(cache_module.Path, "replace", fail)
    with pytest.warns(RuntimeWarning, match="disk full"):
        store.put(KEY, {"chosen": None})
    assert [path.name for path in store.path(KEY).parent.iterdir()] == [store.path(KEY).name]
    assert reopened(store).get(KEY) == VALUE
    assert store.get(KEY) == {"chosen": None}


def test_unwritable_directory_degrades_to_memory_with_one_warning(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    store = DecisionCache(blocked / "cache")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store.put(KEY, VALUE)
        store.put(digest("b"), VALUE)
    assert [warning.category for warning in caught] == [RuntimeWarning]
    assert store.get(KEY) == store.get(digest("b")) == VALUE
    assert list(store.entries()) == []


def test_read_only_entries_are_still_read(store, monkeypatch):
    store.put(KEY, VALUE)

    def fail(*args, **kwargs):
        raise PermissionError("read-only file system")

    monkeypatch.setattr(cache_module, "write_whole", fail)
    other = reopened(store)
    with pytest.warns(RuntimeWarning, match="read-only"):
        other.put(digest("b"), VALUE)
    assert other.get(KEY) == VALUE


def test_memory_only():
    store = DecisionCache(None)
    store.put(KEY, VALUE)
    assert store.get(KEY) == VALUE
    assert store.path(KEY) is None
    assert list(store.entries()) == []


def test_one_cache_per_directory(tmp_path):
    assert decision_cache(tmp_path) is decision_cache(tmp_path)
    assert decision_cache(tmp_path) is not decision_cache(tmp_path / "other")


KEYS = [digest(str(number)) for number in range(5)]
ROUNDS = 40


def write_often(directory, name):
    store = DecisionCache(directory)
    for number in range(ROUNDS):
        for key in KEYS:
            store.put(key, {"chosen": name, "filler": [f"{name}-{number}"] * 500})


def test_two_writers_and_a_reader(store):
    # Forked: the children touch files only, and need not import torch again.
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_often, args=(store.directory, name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        check_entries(DecisionCache(store.directory))
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert check_entries(DecisionCache(store.directory)) == len(KEYS)
    assert not list(store.directory.rglob("*.tmp"))


def check_entries(reader: DecisionCache) -> int:
    found = [value for value in map(reader.get, KEYS) if value is not None]
    for value in found:
        assert len(set(value["filler"])) == 1 and value["filler"][0].startswith(value["chosen"])
    assert reader.stats.discarded == 0
    return len(found)
