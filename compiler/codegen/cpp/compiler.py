"""Runs the C++ compiler: sources in, shared libraries out, kept on disk by the hash of all that they depend on.

    code/3f/3f9a...c1.so      the library        code/3f/3f9a...c1.cpp     its source, to read

Files are written aside and renamed into place: readers in other processes see a whole library or none. A library that
can't be loaded is deleted and compiled again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ....rewrites.machine import cpu_model
from ...options import compiler_setting
from ..code_cache_dir import code_folder
from .errors import CompileFailed, CompilerMissing

_CANDIDATES = ("g++", "clang++", "c++")
# NaN, infinities and signed zeros are kept; only what nobody can see is given up: errno and floating-point traps.
# Multiplications and additions are not contracted: eager rounds in between.
_FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-shared", "-w", "-fwrapv", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables",
    "-fno-semantic-interposition",
)  # fmt: skip


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    Args:
        path: of the program.
        version: what it says about itself.
    """

    path: str
    version: str


@dataclass(frozen=True)
class Source:
    """What becomes one shared library.

    Args:
        text: C++.
        flags: further flags, those of the target and of libraries.
    """

    text: str
    flags: tuple[str, ...] = ()


def find_compiler() -> Compiler:
    """The compiler named by ``$CXX``, else the first of g++, clang++ and c++ on the path.

    Raises:
        CompilerMissing: there is none.
    """
    given = compiler_setting()
    for name in [given] if given else _CANDIDATES:
        path = shutil.which(name)
        if path is not None:
            return Compiler(path, _version(path))
    where = f"$CXX names {given!r}, which is not there" if given else f"none of {', '.join(_CANDIDATES)} is on the path"
    raise CompilerMissing(f"no C++ compiler: {where}")


def can_build() -> bool:
    """Whether there is a C++ compiler."""
    try:
        find_compiler()
    except CompilerMissing:
        return False
    return True


@functools.cache
def _version(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


def compile_all(sources: Sequence[Source]) -> list[tuple[ctypes.CDLL, Path]]:
    """The loaded libraries of sources, and where their sources lie; those not on disk are compiled side by side.

    Raises:
        CompilerMissing: something must be compiled, and there is no compiler.
        CompileFailed: the compiler refused a source.
    """
    if len(sources) < 2:
        return [_library(source) for source in sources]
    with ThreadPoolExecutor(len(sources)) as pool:
        return list(pool.map(_library, sources))


def _library(source: Source) -> tuple[ctypes.CDLL, Path]:
    compiler = find_compiler()
    path = _path(source, compiler)
    loaded = _loaded(path)
    if loaded is None:
        _compile(source, compiler, path)
        loaded = ctypes.CDLL(str(path))
    return loaded, path.with_suffix(".cpp")


def _path(source: Source, compiler: Compiler) -> Path:
    parts = [source.text, *_FLAGS, *source.flags, compiler.path, compiler.version, cpu_model()]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return code_folder("code") / name[:2] / f"{name}.so"


def _loaded(path: Path) -> ctypes.CDLL | None:
    """The library at `path`, None where there is none; what can't be loaded is deleted."""
    if not path.exists():
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def _compile(source: Source, compiler: Compiler, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.stem[:8]}-{uuid.uuid4().hex}")
    text, made = aside.with_suffix(".cpp"), aside.with_suffix(".so")
    text.write_text(source.text, encoding="utf-8")
    try:
        _run(source, compiler, path.with_suffix(".cpp"), text, made)
        made.replace(path)
    finally:
        # A source that was refused stays, to be looked at.
        text.replace(path.with_suffix(".cpp"))
        made.unlink(missing_ok=True)


def _run(source: Source, compiler: Compiler, kept: Path, text: Path, made: Path) -> None:
    command = [compiler.path, *_FLAGS, str(text), "-o", str(made), *source.flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileFailed(kept, (done.stderr or done.stdout).strip().replace(str(text), str(kept)))
