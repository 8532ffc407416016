"""The CUDA driver: machine code to functions, and how to launch them, where no C++ compiler makes that faster.

Functions belong to the primary context of their device, which is the one that torch uses.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

from .compiler import Cubin
from .errors import TritonFailed

_LIBRARY = "libcuda.so.1"
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_FREE_SHARED = 48 << 10  # bytes that every function may use without an attribute of its own
MAX_PROGRAMS = 2**31 - 1


@dataclass(frozen=True)
class GpuFunction:
    """A function on a GPU.

    Args:
        handle: the driver's; `context` that of its device.
        name: for errors.
        shared: bytes of shared memory of a program, `threads` of it.
    """

    handle: int
    context: int
    name: str
    shared: int
    threads: int


class Driver:
    """The driver library.

    Raises:
        TritonFailed: it is not there, or refuses to start.
    """

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise TritonFailed(f"no CUDA driver: {error}") from error
        self._contexts: dict[int, int] = {}
        self._check("start", self._library.cuInit(0))

    def load(self, cubin: Cubin, device: int) -> GpuFunction:
        """Load machine code.

        Raises:
            TritonFailed: the driver refuses it.
        """
        context = self.context(device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        library = self._library
        self._check("enter the context", library.cuCtxPushCurrent_v2(ctypes.c_void_p(context)))
        try:
            self._check("load", library.cuModuleLoadData(ctypes.byref(module), cubin.code), cubin)
            name = cubin.name.encode()
            self._check("find", library.cuModuleGetFunction(ctypes.byref(function), module, name), cubin)
            if cubin.shared > _FREE_SHARED:
                code = library.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, cubin.shared)
                self._check(f"give {cubin.shared} bytes of shared memory to", code, cubin)
        finally:
            library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        assert function.value is not None, cubin.name
        return GpuFunction(function.value, context, cubin.name, cubin.shared, 32 * cubin.warps)

    def context(self, device: int) -> int:
        """The primary context of a device."""
        if device not in self._contexts:
            ordinal, context = ctypes.c_int(), ctypes.c_void_p()
            self._check("find the device", self._library.cuDeviceGet(ctypes.byref(ordinal), device))
            self._check("retain", self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal))
            self._contexts[device] = context.value or 0
        return self._contexts[device]

    def launch(self, function: GpuFunction, programs: int, arguments: list[Any], stream: int) -> None:
        """Launch a function on ctypes values of 8 bytes each.

        Raises:
            RuntimeError: the driver refuses, or an earlier launch has failed.
        """
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        now, library = ctypes.c_void_p(), self._library
        library.cuCtxGetCurrent(ctypes.byref(now))
        apart = now.value != function.context
        if apart:
            library.cuCtxPushCurrent_v2(ctypes.c_void_p(function.context))
        code = library.cuLaunchKernel(
            ctypes.c_void_p(function.handle), programs, 1, 1, function.threads, 1, 1, function.shared,
            ctypes.c_void_p(stream), pointers, None,
        )  # fmt: skip
        if apart:
            library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        if code:
            raise RuntimeError(f"{function.name} was not launched: CUDA error {code}")

    def addresses(self, *names: str) -> tuple[int, ...]:
        """The addresses of functions of the library."""
        return tuple(ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0 for name in names)

    def _check(self, what: str, code: int, cubin: Cubin | None = None) -> None:
        if code:
            of = f" {cubin.name} of {cubin.source}" if cubin is not None else ""
            raise TritonFailed(f"the CUDA driver did not {what}{of}: error {code}")


@functools.cache
def driver() -> Driver:
    """The one driver of this process.

    Raises:
        TritonFailed: there is none.
    """
    return Driver(_LIBRARY)
