"""Measured decisions on disk: one readable JSON file each, named by the hash of what it depends on.

The layout under the cache directory, so that people can read, grep and delete entries by hand::

    decisions/3f/3f9a...c1.json
    {
      "schema": 1,
      "key": "3f9a...c1",
      "created": "2026-11-21T09:30:00+00:00",
      "environment": {"regraft": "0.1.0", "torch": "2.13.0", "cpu": "AMD EPYC 9654", "gpu": "", "threads": 1},
      "value": {"rule": "linear", "chosen": "onednn", "evidence": {"times": {...}, "note": ""}, ...}
    }

Entries may be lost but are never wrong: files are written under another name and renamed, so that readers in other
processes see a complete entry or none. Unreadable entries are counted, deleted and measured again.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..._version import __version__
from ...rewrites.machine import cpu_model
from ..storage.artifacts import note_entry
from ..storage.files import note_use, write_whole
from ..storage.space import note_written

SCHEMA = 1
_FOLDER = "decisions"


@dataclass
class CacheStats:
    """Counts of requests: hits in memory and on disk, misses, writes, and unreadable entries (`discarded`)."""

    memory_hits: int = 0
    disk_hits: int = 0
    misses: int = 0
    writes: int = 0
    discarded: int = 0


class DecisionCache:
    """A content-addressed store of JSON objects in a directory, with a cache in memory.

    Safe under concurrent processes. If the directory is not writable, the cache uses memory, with one warning; existing
    entries are still read.

    Args:
        directory: the directory of entries (created at the first write); None for memory only.
    """

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        self.directory = None if directory is None else Path(directory)
        self.stats = CacheStats()
        self._memory: dict[str, dict[str, Any]] = {}
        self._writable = True

    def get(self, key: str) -> dict[str, Any] | None:
        """The value stored under `key` (a copy), or None."""
        value = self._memory.get(key)
        if value is not None:
            self.stats.memory_hits += 1
            return copy.deepcopy(value)
        value = self._read(key)
        if value is None:
            self.stats.misses += 1
            return None
        self.stats.disk_hits += 1
        self._memory[key] = value
        return copy.deepcopy(value)

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Store `value` under `key`, replacing what was there.

        Raises:
            TypeError: `value` holds something that JSON can't.
        """
        entry = {
            "schema": SCHEMA,
            "key": key,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": environment(),
            "value": dict(value),
        }
        text = json.dumps(entry, indent=2) + "\n"
        # Memory and disk return equal values: tuples are lists in both.
        self._memory[key] = json.loads(text)["value"]
        self.stats.writes += 1
        path = self.path(key)
        if self._writable and path is not None:
            self._write(path, text)

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every readable entry on disk with its header, in the order of their keys."""
        if self.directory is None:
            return
        for path in sorted((self.directory / _FOLDER).glob("??/*.json")):
            entry = self._load(path, path.stem)
            if entry is not None:
                yield entry

    def path(self, key: str) -> Path | None:
        """The file of `key`, whether it exists or not; None for a cache in memory."""
        if self.directory is None:
            return None
        name = key if _is_digest(key) else digest(key)
        return self.directory / _FOLDER / name[:2] / f"{name}.json"

    def _read(self, key: str) -> dict[str, Any] | None:
        path = self.path(key)
        entry = None if path is None else self._load(path, key)
        return None if entry is None else entry["value"]

    def _load(self, path: Path, key: str) -> dict[str, Any] | None:
        try:
            entry = json.loads(path.read_bytes())
        except OSError:
            return None
        except (ValueError, RecursionError):
            entry = None
        # Keys that are not hashes are stored under their hash, so that any text can be a key.
        if _is_entry(entry) and key in (entry["key"], digest(entry["key"])):
            note_use(path)
            note_entry(f"{_FOLDER}/{path.parent.name}/{path.name}")
            return entry
        self._discard(path)
        return None

    def _discard(self, path: Path) -> None:
        """Count and delete an unreadable entry; without permission to delete, it is measured again each time."""
        self.stats.discarded += 1
        with contextlib.suppress(OSError):
            path.unlink()

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
            note_entry(f"{_FOLDER}/{path.parent.name}/{path.name}")
            note_written(len(text))
        except OSError as error:
            self._writable = False
            warnings.warn(
                f"regraft: decisions can't be cached in {self.directory} ({error}); they are kept in memory only",
                RuntimeWarning,
                stacklevel=2,
            )


@functools.cache
def decision_cache(directory: str | os.PathLike[str] | None) -> DecisionCache:
    """The cache of this process for `directory`; all compilations share its memory and its warning."""
    return DecisionCache(directory)


def digest(text: str) -> str:
    """The hash of `text` as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def environment() -> dict[str, Any]:
    """The environment on which measurements depend: versions, devices, threads."""
    return {
        "regraft": __version__,
        "torch": str(torch.__version__),
        "cpu": cpu_model(),
        "gpu": gpu_model(torch.cuda.current_device()) if torch.cuda.is_initialized() else "",
        "threads": torch.get_num_threads(),
    }


@functools.cache
def gpu_model(index: int) -> str:
    """The name of CUDA device `index`, e.g. ``"NVIDIA H200"``."""
    return torch.cuda.get_device_name(index)


def _is_digest(key: str) -> bool:
    return len(key) == 64 and set(key) <= set("0123456789abcdef")


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and entry.get("schema") == SCHEMA
        and isinstance(entry.get("key"), str)
        and isinstance(entry.get("value"), dict)
    )
