"""Makes callables from addresses of kernels: by an extension module, or by ctypes if Python's headers are missing."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from .binding_source import BINDING
from .compiler import LibrarySource, compile_all
from .errors import CompileFailed, IndexOutOfRange
from .extension import for_this_python, load_extension, python_headers
from .runtime import RuntimeTable, entry_points

_TYPES = {"i": ctypes.c_longlong, "f": ctypes.c_double}


def bind(address: int, kinds: str, sizes: int, big: bool) -> Callable[..., None]:
    """Make a callable that runs the kernel at `address`.

    Args:
        address: the address of its function.
        kinds: a letter for each param: ``t`` a tensor, ``i`` an integer by value, ``f`` a float by value.
        sizes: the number of sizes that follow the params.
        big: whether to release the interpreter lock during a call, since it takes long.

    Returns:
        a function of tensors, numbers and sizes. It raises IndexOutOfRange if an index is out of range, and
        RuntimeError if an integer is divided by zero.
    """
    module = _module()
    if module is not None:
        return module.make(address, kinds, sizes, big)
    return functools.partial(_call, _PROTOTYPE(address), kinds)


@functools.cache
def _module() -> Any:
    """The extension module; None if Python's headers are missing."""
    include = python_headers()
    if include is None:
        return None
    text = for_this_python(BINDING)
    try:
        ((_, source),) = compile_all([LibrarySource(text, (f"-I{include}",), plain=True, c=True)])
    except CompileFailed:
        return None
    module = load_extension("regraft_binding", source)
    module.setup(torch.Tensor.data_ptr, IndexOutOfRange, *entry_points())
    return module


_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(RuntimeTable))


def _address(given: Any) -> int:
    return given if isinstance(given, int) else given.data_ptr()  # type: ignore[no-any-return]


def _call(function: Any, kinds: str, *args: Any) -> None:
    numbers: list[Any] = [None if k == "t" else _TYPES[k](a) for k, a in zip(kinds, args, strict=False)]
    pointers = [_address(a) if n is None else ctypes.addressof(n) for a, n in zip(args, numbers, strict=False)]
    sizes = args[len(kinds) :]
    runtime = RuntimeTable(*entry_points())
    function(
        (ctypes.c_void_p * len(pointers))(*pointers),
        (ctypes.c_longlong * len(sizes))(*sizes),
        ctypes.byref(runtime),
    )
    if runtime.kind == 2:
        raise RuntimeError("ZeroDivisionError")
    if runtime.kind:
        raise IndexOutOfRange(f"index {runtime.index} is out of bounds for dimension with size {runtime.size}")
