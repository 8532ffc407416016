"""Large results in large pages: fresh memory of many megabytes costs a page fault for every page that is touched first.

    empty_strided_cpu((8192, 4096), ...)  ->  empty_large_cpu((8192, 4096), ...)    advised to use pages of 2 MiB

Writing 128 MiB of fresh memory is three times faster so. Nothing changes if the system has no such advice.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from ....rewrites.compat import memory

LARGE_BYTES = 8 << 20  # from here on: at most a quarter of a page of 2 MiB is lost in every 8
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)


def is_large(sizes: Sequence[Any], dtype: torch.dtype) -> bool:
    """Whether memory of these sizes is worth the advice; symbolic sizes are not looked at."""
    return all(isinstance(n, int) for n in sizes) and prod(sizes) * dtype.itemsize >= LARGE_BYTES


@functools.cache
def empty_large(device: torch.device) -> Callable[..., torch.Tensor]:
    """``f(sizes, strides, dtype)``: uninitialised memory on a device, on the CPU in large pages where possible."""
    allocate = memory.empty_strided(device)
    advise = _advice() if device.type == "cpu" else None
    if advise is None:
        return allocate

    return _Large(device, allocate, advise)


class _Large:
    """Allocates in large pages. Stored programs hold it by its device."""

    def __init__(self, device: torch.device, allocate: Callable[..., torch.Tensor], advise: Any) -> None:
        self._device, self._allocate, self._advise = device, allocate, advise

    def __call__(self, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        made = self._allocate(sizes, strides, dtype)
        start = -(-made.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (made.data_ptr() + made.untyped_storage().nbytes() - start) // mmap.PAGESIZE * mmap.PAGESIZE
        self._advise(start, size, _ADVICE)  # advice only: it may fail, and nothing is lost
        return made

    def __reduce__(self) -> Any:
        return empty_large, (self._device,)


def _advice() -> Any:
    """The system's `madvise`, None where it has none or no large pages."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None or _ADVICE is None:
        return None
    madvise.argtypes, madvise.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return madvise
