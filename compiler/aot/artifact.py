"""The file: a shared library, then the constants, the manifest as JSON, and a footer that says where they are.

    | library (ELF) | constants, each on a line of a cache | manifest (JSON) | footer (64 bytes) |

The system's loader reads no further than the library's end, so the file is loaded as it is; constants are mapped from
it. Nothing is pickled: what can run code is the library alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from .errors import AotError

_MAGIC = b"REGRAFT-AOT-001\0"
_FOOTER = struct.Struct("<16s6Q")
FORMAT = 1  # of the manifest
_PAGE = 1 << 16  # no page of memory is larger


def room(value: torch.Tensor) -> int:
    """Bytes that a stored constant takes in the file: whole lines of a cache."""
    return -(-span(value) // 64) * 64


def span(value: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last."""
    if not value.numel():
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))) * value.dtype.itemsize


def write(path: Path, library: bytes, constants: Iterable[torch.Tensor], manifest: dict[str, Any]) -> None:
    """Write an artifact, aside and then into its place: readers see a whole one or none.

    Raises:
        OSError: it cannot be written there.
    """
    told = json.dumps(manifest, indent=1).encode()
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(library)
            begin = _padded(file, _PAGE)
            for tensor in constants:
                file.write(_bytes(tensor))
                file.write(b"\0" * (room(tensor) - span(tensor)))
            end = file.tell()
            file.write(told)
            total = end + len(told) + _FOOTER.size
            file.write(_FOOTER.pack(_MAGIC, len(library), begin, end, end, end + len(told), total))
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of an artifact; none of its code runs.

    Raises:
        AotError: there is none, or not a whole one.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < _FOOTER.size:
                raise AotError(f"{path} is no artifact of regraft: it has {size} bytes")
            file.seek(size - _FOOTER.size)
            magic, _, _, _, begin, end, total = _FOOTER.unpack(file.read(_FOOTER.size))
            if magic != _MAGIC or total != size or not begin <= end <= size:
                raise AotError(f"{path} is no artifact of regraft, or not a whole one: compile it again")
            file.seek(begin)
            manifest = json.loads(file.read(end - begin))
    except OSError as error:
        raise AotError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise AotError(f"{path} is damaged: its manifest is no JSON") from error
    return manifest


def _padded(file: Any, to: int) -> int:
    file.write(b"\0" * (-file.tell() % to))
    return int(file.tell())


def _bytes(tensor: torch.Tensor) -> Any:
    """The memory from a tensor's first element to its last."""
    count = span(tensor)
    return (ctypes.c_char * count).from_address(tensor.data_ptr()) if count else b""
