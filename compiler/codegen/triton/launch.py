"""Callables that launch functions on a GPU: through a small extension module, or ctypes without a C++ compiler."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ....rewrites.compat import memory
from ..cpp.compiler import LibrarySource, compile_all
from ..cpp.errors import CompileFailed, CompilerMissing
from ..cpp.extension import for_this_python, load_extension, python_headers
from .driver import MAX_PROGRAMS, GpuFunction, driver
from .launch_source import LAUNCHER

_ADDRESSES = ("cuLaunchKernel", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuLaunchKernelEx")
_MAKING = threading.Lock()
_NUMBERS = {"i": ctypes.c_longlong, "f": ctypes.c_double}


@dataclass(frozen=True)
class Convention:
    """How a callable's arguments become those of a function.

    Args:
        count: arguments of the callable. Where `programs` is -1, the last one is the number of programs.
        order: positions of the function's arguments among them.
        kinds: of these: ``a`` a tensor that must be aligned to 16 bytes, ``t`` a tensor, ``i`` an integer, ``f`` a
            float.
        programs: to launch, -1 where that depends on sizes.
        early: whether it may begin before kernels before it have ended: it waits for them by itself.
    """

    count: int
    order: tuple[int, ...]
    kinds: str
    programs: int
    early: bool = False


def launcher(
    function: GpuFunction, device: int, convention: Convention, otherwise: Callable[..., None]
) -> Callable[..., None]:
    """A callable that launches `function` on the current stream of a device.

    Args:
        function: loaded.
        device: its index.
        convention: how to call it.
        otherwise: called instead, with the same arguments, where a tensor is not aligned.

    Returns:
        a function of tensors and numbers that raises RuntimeError where the driver refuses; errors of earlier launches
        come up there, too, as in eager. No programs, no launch.
    """
    module = _made_once()
    if module is None:
        return functools.partial(_call, function, device, convention, otherwise)
    return module.make(
        function.handle, function.context, function.name, function.threads, function.shared, device,
        convention.programs, convention.kinds, convention.order, convention.count, otherwise,
        convention.early,
    )  # fmt: skip


def begin_launcher() -> None:
    """Have the extension module compiled in another thread, for the first launcher."""
    threading.Thread(target=_made_once, daemon=True).start()


def _made_once() -> Any:
    """The extension module; whoever comes second waits for the first."""
    with _MAKING:
        return _module()


@functools.cache
def _module() -> Any:
    """The extension module, None where Python's headers or a C++ compiler are missing."""
    include = python_headers()
    if include is None:
        return None
    text = for_this_python(LAUNCHER)
    try:
        ((_, source),) = compile_all([LibrarySource(text, (f"-I{include}",))])
    except (CompileFailed, CompilerMissing):
        return None
    module = load_extension("regraft_launcher", source)
    module.setup(torch.Tensor.data_ptr, memory.cuda_stream(), *driver().addresses(*_ADDRESSES))
    return module


def _call(function: GpuFunction, device: int, convention: Convention, otherwise: Any, *args: Any) -> None:
    """Launch a function, in Python: the same steps as in the extension module."""
    if len(args) != convention.count:
        raise TypeError(f"{function.name} takes {convention.count} arguments, not {len(args)}")
    programs = args[-1] if convention.programs < 0 else convention.programs
    if programs == 0:
        return
    if not 0 < programs <= MAX_PROGRAMS:
        raise ValueError(f"{function.name} cannot run {programs} programs")
    values: list[Any] = []
    for kind, position in zip(convention.kinds, convention.order, strict=True):
        if kind in _NUMBERS:
            values.append(_NUMBERS[kind](args[position]))
            continue
        given = args[position]
        address = given if isinstance(given, int) else given.data_ptr()
        if kind == "a" and address % 16:
            otherwise(*args)
            return
        values.append(ctypes.c_void_p(address))
    values += [ctypes.c_void_p(), ctypes.c_void_p()]
    driver().launch(function, programs, values, memory.cuda_stream()(device))
