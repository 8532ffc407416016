"""The target of generated code: the width of vectors, compiler flags, and the available vector functions."""

from __future__ import annotations

import ctypes
import functools
import platform
from dataclasses import dataclass
from pathlib import Path

from .prelude_math import vector_symbols


@dataclass(frozen=True)
class InstructionSet:
    """An instruction set.

    Args:
        name: the name of the instruction set, which is part of every cache key.
        vector_bytes: the width of a vector register; 0 for scalar code only.
        flags: the compiler flags for it.
        functions: the names of functions of libmvec that may be called.
    """

    name: str
    vector_bytes: int
    flags: tuple[str, ...]
    functions: frozenset[str] = frozenset()


def target(name: str) -> InstructionSet:
    """A target by name: ``"avx512"``, ``"avx2"``, ``"generic"`` (16-byte vectors) or ``"scalar"``.

    Raises:
        KeyError: there is no such target.
    """
    width, flags = {
        "avx512": (64, ("-march=native", "-mprefer-vector-width=512")),
        "avx2": (32, ("-march=native", "-mno-avx512f") if "avx512f" in cpu_flags() else ("-march=native",)),
        "generic": (16, _native()),
        "scalar": (0, _native()),
    }[name]
    return InstructionSet(name, width, flags, _functions() if name in ("avx512", "avx2") else frozenset())


@functools.cache
def host_target() -> InstructionSet:
    """The target with the widest vectors on this machine."""
    have = cpu_flags()
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= have:
        return target("avx512")
    return target("avx2" if {"avx2", "fma"} <= have else "generic")


def _native() -> tuple[str, ...]:
    return ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ("-mcpu=native",)


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The names that the system gives the features of the processor; empty if the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


@functools.cache
def _functions() -> frozenset[str]:
    """The vector functions of the installed glibc; newer versions have more."""
    try:
        library = ctypes.CDLL("libmvec.so.1")
    except OSError:
        return frozenset()
    return frozenset(symbol for symbol in vector_symbols() if hasattr(library, symbol))
