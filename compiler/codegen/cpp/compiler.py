"""Runs the C++ compiler on sources, and stores the shared libraries on disk by the hash of everything they depend on.

    code/3f/3f9a...c1.so      the library        code/3f/3f9a...c1.cpp     its source, to read

A file is written under a temporary name and then renamed, so other processes see a complete library or none. A seal
follows the library in its file; the loader ignores it. A library is deleted and compiled again if it is damaged, if
another user or program wrote it, if it cannot be loaded, or if it was replaced after it was checked. If the disk is
full, a library lasts as long as the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ....rewrites.machine import cpu_model
from ...options import compiler_setting
from ...storage import seal
from ...storage.artifacts import note_entry
from ...storage.files import NO_SPACE, aside, discard, note_use
from ...storage.space import note_written
from ..code_cache_dir import code_folder, temporary_folder
from .errors import CompileFailed, CompilerMissing

SECONDS = 600.0
"""The time limit of the compiler for one source."""

_VERSION_SECONDS = 60.0
_ATTEMPTS = 3
_KIND = "code"
_given_up: dict[str, str] = {}  # by path of a compiler, the reason why it is not run again
_NO_SPACE = "No space left on device"
_CANDIDATES = ("g++", "clang++", "c++")
# NaN, infinities and signed zeros are preserved; errno and floating-point traps are not, since nobody observes them.
# A multiplication and an addition are not contracted, since eager rounds the product.
FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-shared", "-w", "-fwrapv", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables",
    "-fno-semantic-interposition",
)  # fmt: skip
_PLAIN = ("-nodefaultlibs", "-lc", "-lgcc")
_OF_CPP = frozenset(("-std=c++17", "-fno-rtti", "-fno-exceptions"))


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    Args:
        path: the path of the program.
        version: the first line that it prints for ``--version``.
    """

    path: str
    version: str


@dataclass(frozen=True)
class LibrarySource:
    """The source of one shared library.

    Args:
        text: the C++ text.
        flags: additional flags, for the target and for libraries.
        plain: whether the library calls functions of C alone, and need not be linked with C++'s libraries.
        c: whether the text is C, which reads headers of C (Python's) in a third of the time.
    """

    text: str
    flags: tuple[str, ...] = ()
    plain: bool = False
    c: bool = False


def find_compiler() -> Compiler:
    """The compiler that ``$CXX`` names, or else the first of g++, clang++ and c++ on the path.

    Raises:
        CompilerMissing: there is none.
    """
    given = compiler_setting()
    for name in [given] if given else _CANDIDATES:
        path = shutil.which(name)
        if path in _given_up:
            raise CompilerMissing(f"no C++ compiler: {_given_up[path]}")
        if path is not None:
            return Compiler(path, _version(path))
    where = f"$CXX names {given!r}, which is not there" if given else f"none of {', '.join(_CANDIDATES)} is on the path"
    raise CompilerMissing(f"no C++ compiler: {where}")


def kernel_flags() -> tuple[str, ...]:
    """The flags of every kernel, except the flag that creates a shared library."""
    return tuple(flag for flag in FLAGS if flag != "-shared")


def can_build() -> bool:
    """Whether there is a C++ compiler."""
    try:
        find_compiler()
    except CompilerMissing:
        return False
    return True


@functools.cache
def _version(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", check=False, timeout=_VERSION_SECONDS
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        _given_up[path] = why = f"{path} --version fails ({type(error).__name__}: {error})"
        raise CompilerMissing(f"no C++ compiler: {why}") from error
    return done.stdout.partition("\n")[0]


def compile_all(sources: Sequence[LibrarySource]) -> list[tuple[ctypes.CDLL, Path]]:
    """Load the libraries of sources; those that are not on disk are compiled in parallel.

    Returns:
        for each source, its library and the path of its text.

    Raises:
        CompilerMissing: a source must be compiled, and there is no compiler.
        CompileFailed: the compiler refused a source.
    """
    if len(sources) < 2:
        return [_library(source) for source in sources]
    with ThreadPoolExecutor(len(sources)) as pool:
        return list(pool.map(_library, sources))


def _library(source: LibrarySource) -> tuple[ctypes.CDLL, Path]:
    compiler = find_compiler()
    name = _name(source, compiler)
    path = _place(code_folder(_KIND), name)
    try:
        loaded = _loaded(path) or _made(source, compiler, path)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        path = _place(temporary_folder(_KIND), name)
        loaded = _loaded(path) or _made(source, compiler, path)
    return loaded, path.with_suffix(".cpp")


def _made(source: LibrarySource, compiler: Compiler, path: Path) -> ctypes.CDLL:
    """Compile a source and load its library; try again if another process damages the file before it is loaded."""
    why = "it was damaged before it was loaded"
    for _ in range(_ATTEMPTS):
        _compile(source, compiler, path)
        try:
            loaded = _opened(path)
        except OSError as error:
            loaded, why = None, str(error).removeprefix(f"{path}: ")
        if loaded is not None:
            return loaded
        discard(path)
    raise CompileFailed(path.with_suffix(".cpp"), f"its library: {why}")


def _place(folder: Path, name: str) -> Path:
    return folder / name[:2] / f"{name}.so"


def _name(source: LibrarySource, compiler: Compiler) -> str:
    parts = [source.text, *_flags(source, compiler), compiler.path, compiler.version, cpu_model()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _loaded(path: Path) -> ctypes.CDLL | None:
    """The library at `path`; None if there is none. A library that is invalid or cannot be loaded is deleted."""
    try:
        loaded = _opened(path)
    except FileNotFoundError:  # another process may also have deleted it, and may create it again
        return None
    except OSError:
        loaded = None
    if loaded is None:
        discard(path)
    return loaded


def _opened(path: Path) -> ctypes.CDLL | None:
    """The library at `path`; None if its seal is wrong, or if other processes keep replacing it.

    Raises:
        OSError: it cannot be read or loaded.
    """
    for _ in range(_ATTEMPTS):  # another process may replace it by an equal one
        with path.open("rb") as file:
            if seal.opened(_entry(path), file.read()) is None:
                return None
            if _is_at(file.fileno(), path):
                loaded = ctypes.CDLL(str(path))
                note_use(path)
                _note(path)
                return loaded
    return None


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still names an open file: the loader takes a path, and crashes on an incomplete library."""
    return os.path.samestat(os.fstat(descriptor), path.stat())


def _entry(path: Path) -> str:
    return f"{_KIND}/{path.stem}"


def _note(path: Path) -> None:
    for suffix in (".so", ".cpp"):
        note_entry(f"{_KIND}/{path.parent.name}/{path.stem}{suffix}")


def _compile(source: LibrarySource, compiler: Compiler, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text, made = aside(path, ".cpp"), aside(path, ".so")
    try:
        text.write_text(source.text, encoding="utf-8")
        _run(source, compiler, path.with_suffix(".cpp"), text, made)
        if not made.exists() or not made.stat().st_size:
            raise CompileFailed(path.with_suffix(".cpp"), f"{compiler.path} wrote no library")
        with made.open("ab") as library:
            library.write(seal.seal(_entry(path), made.read_bytes()))
        made.replace(path)
    except OSError:
        discard(text)
        raise
    finally:
        made.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a source that was refused is kept for inspection
            text.replace(path.with_suffix(".cpp"))
    _note(path)
    with contextlib.suppress(OSError):  # another process may have deleted it
        note_written(path.stat().st_size + len(source.text))


def _flags(source: LibrarySource, compiler: Compiler) -> tuple[str, ...]:
    """The flags of a source, with one level of optimization: its own where it has one.

    Half the time of linking a small library goes to C++'s libraries, which it may not need.
    """
    own_level = any(map(_is_level, source.flags))
    common = [flag for flag in FLAGS if not (own_level and _is_level(flag)) and not (source.c and flag in _OF_CPP)]
    flags = (*common, *source.flags)
    gnu = sys.platform == "linux" and "clang" not in compiler.version
    return (*flags, *_PLAIN) if source.plain and gnu else flags


def _is_level(flag: str) -> bool:
    return flag.startswith("-O")


def _run(source: LibrarySource, compiler: Compiler, kept: Path, text: Path, made: Path) -> None:
    language = ("-x", "c") if source.c else ()
    command = [compiler.path, *language, str(text), "-o", str(made), *_flags(source, compiler)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired as late:
        _given_up[compiler.path] = why = f"{compiler.path} was not done after {SECONDS:g} s"
        raise CompileFailed(kept, f"{why}; it is not asked again") from late
    if done.returncode < 0:
        raise CompileFailed(kept, f"{compiler.path} crashed: signal {-done.returncode}\n{done.stderr.strip()}")
    if done.returncode and _NO_SPACE in (done.stderr or done.stdout):
        raise OSError(errno.ENOSPC, _NO_SPACE, str(text))
    if done.returncode:
        raise CompileFailed(kept, (done.stderr or done.stdout).strip().replace(str(text), str(kept)))
