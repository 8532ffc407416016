"""Threads for kernels: torch's pool, found in the process, so that there is one pool and torch's settings apply."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from pathlib import Path

_NAMES = ("GOMP_parallel", "omp_get_max_threads", "omp_get_num_threads", "omp_get_thread_num")
_OPENMP = re.compile(r"/lib(?:gomp|iomp5|omp)[^/]*\.(?:so|dylib)[^/]*$")


class RuntimeTable(ctypes.Structure):
    """The struct `Runtime` of the prelude: the entry points, and the first error of a call."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("parallel", "max_threads", "threads", "thread")),
        *((name, ctypes.c_longlong) for name in ("kind", "index", "size")),
    )


@functools.cache
def entry_points() -> tuple[int, ...]:
    """Addresses of functions in the OpenMP library that torch has loaded; zeros, for one thread, if there is none."""
    for path in _loaded_libraries():
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)
            return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _NAMES)
    return (0,) * len(_NAMES)


def _loaded_libraries() -> list[str]:
    """The OpenMP libraries in this process; torch's comes first."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line[line.index("/") :] for line in lines if "/" in line)
    found = [path for path in paths if _OPENMP.search(path)]
    return sorted(found, key=lambda path: "torch" not in path)
