"""The cache as one file, for another machine of the same kind: `regraft cache export` and `import`.

A bundle is a ZIP archive with `manifest.json` (versions, machine, a hash of every file) and the files without their
seals. What it holds is machine code and pickles: whoever imports it vouches for it, as for a program that he runs; it
is then sealed as this user's own. What is of another machine or version is never found under its key, and does no harm.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...rewrites.machine import environment
from ..options.environment import cache_dir
from . import seal
from .files import write_whole
from .folder import own_folder
from .space import stored

SCHEMA, VERSION = "regraft-cache", 1
SEALED = {"graphs": (".bin",), "code": (".so",), "triton": (".cubin",)}
"""Files that have a seal behind them, by folder."""
_PORTABLE = re.compile(r"(decisions|graphs|code|triton)/[0-9a-f]{2}/[0-9a-f]{64}\.(json|bin|so|cpp|cubin|py)")


class BundleError(ValueError):
    """Not a bundle, or a damaged one; nothing of it was imported."""


def read_entry(name: str) -> bytes | None:
    """The content of a file of the cache, ``graphs/3f/3f9a...c1.bin``, without its seal; None where there is none."""
    path = _path(name)
    try:
        data = path.read_bytes() if path is not None else b""
    except OSError:
        return None
    return seal.opened(_entry(name), data) if _is_sealed(name) else data or None


def write_entry(name: str, content: bytes) -> bool:
    """Store the content of a file under its name, sealed where that is due; False where it can't be written.

    Raises:
        BundleError: the cache has no files of such names.
    """
    if not _PORTABLE.fullmatch(name):
        raise BundleError(f"{name!r} is no file of a cache")
    path = _path(name)
    if path is None:
        return False
    try:
        write_whole(path, seal.sealed(_entry(name), content) if _is_sealed(name) else content)
    except OSError:
        return False
    return True


def exported(kinds: Iterable[str] = ("decisions", "graphs", "code", "triton")) -> tuple[bytes, int]:
    """The cache as a bundle, and how many files it has; damaged ones and those of others are left out."""
    names = sorted({f"{one.kind}/{one.path.parent.name}/{one.path.name}" for one in stored() if one.kind in set(kinds)})
    found = {name: read_entry(name) for name in names if _PORTABLE.fullmatch(name)}
    return packed({name: content for name, content in found.items() if content is not None})


def packed(files: Mapping[str, bytes]) -> tuple[bytes, int]:
    """A bundle of files by name, and how many they are."""
    manifest = {
        "schema": SCHEMA, "version": VERSION, "environment": environment(),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }  # fmt: skip
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue(), len(files)


def imported(data: bytes) -> tuple[int, dict[str, Any]]:
    """Store what a bundle holds; gives how many files were written, and the environment that they are from.

    Raises:
        BundleError: it is none, or damaged: nothing was written.
    """
    manifest, files = _unpacked(data)
    if cache_dir() is None:
        raise BundleError("there is no cache to import into: REGRAFT_DISABLE_CACHE is set")
    return sum(write_entry(name, content) for name, content in files.items()), manifest.get("environment", {})


def _unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            manifest = json.loads(archive.read("manifest.json"))
            listed = manifest["files"]
            files = {name: archive.read(name) for name in listed}
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError, NotImplementedError) as error:
        raise BundleError(f"not a bundle of a cache, or damaged: {error}") from error
    if manifest.get("schema") != SCHEMA or manifest.get("version") != VERSION:
        raise BundleError(f"a bundle of {manifest.get('schema')} {manifest.get('version')}, not {SCHEMA} {VERSION}")
    for name, content in files.items():
        if not _PORTABLE.fullmatch(name) or hashlib.sha256(content).hexdigest() != listed[name]:
            raise BundleError(f"{name!r} in the bundle is damaged, or no file of a cache")
    return manifest, files


def _path(name: str) -> Path | None:
    kind, rest = name.split("/", 1)
    folder = cache_dir() if kind == "decisions" else own_folder(kind)
    if folder is None:
        return None
    return folder / name if kind == "decisions" else folder / rest


def _is_sealed(name: str) -> bool:
    return Path(name).suffix in SEALED.get(name.split("/", 1)[0], ())


def _entry(name: str) -> str:
    """The name that a seal is bound to: ``graphs/3f9a...c1``."""
    return f"{name.split('/', 1)[0]}/{Path(name).stem}"
