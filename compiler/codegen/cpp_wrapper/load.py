"""C++ of graphs as callables: compiled, loaded, and bound to this process's kernels, constants and Python."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ....rewrites import compat
from ....rewrites.compat import export
from ....rewrites.compat.logs import profiler_switches
from ..cpp.compiler import LibrarySource, compile_all
from ..cpp.errors import CompileFailed, IndexOutOfRange
from ..cpp.extension import for_this_python, load_extension, python_headers
from ..cpp.runtime import entry_points
from .errors import NotInCppError
from .graph import CppGraph
from .runtime_source import RUNTIME

_FLAGS = ("-O1", "-fexceptions", "-fasynchronous-unwind-tables")


def load_cpp(graph: CppGraph, python: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Compile (or find compiled) and load a graph's function.

    Args:
        graph: its text and what that refers to.
        python: the same graph's wrapper in Python, called while a profiler is on: each of its calls is a range.

    Returns:
        the function in boxed convention: one list of inputs in, which it empties; the graph's outputs out.

    Raises:
        CompilerMissing, CompileFailed: there is no compiler, or it refuses a source.
        NotInCppError: C++ and Python cannot meet on this machine.
    """
    module = runtime()
    units = list(dict.fromkeys(unit for _, unit in graph.kernels))
    (library, _), *loaded = compile_all([LibrarySource(graph.text, _FLAGS), *units])
    libraries = {unit: found for unit, (found, _) in zip(units, loaded, strict=True)}
    kernels = tuple(_address(libraries[unit], name) for name, unit in graph.kernels)
    made = module.make(
        _address(library, "regraft_bind"), _address(library, "regraft_call"), kernels, graph.constants,
        graph.functions, graph.inputs, graph.outputs, graph.fixed,
        _tupled(python) if graph.alone else python, tuple(f"compiled by regraft from {site}" for site in graph.sites),
    )  # fmt: skip
    call = _first(made) if graph.alone else made
    compat.mark_boxed(call)
    return call


def _tupled(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], tuple[Any]]:
    return lambda args: (function(args),)


def _first(function: Callable[[list[Any]], tuple[Any, ...]]) -> Callable[[list[Any]], Any]:
    return lambda args: function(args)[0]


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None, name
    return address


@functools.cache
def runtime() -> Any:
    """The extension module that generated functions and Python meet in, compiled where it is not on disk.

    Raises:
        CompilerMissing, CompileFailed: there is no compiler, or it refuses the source.
        NotInCppError: the headers of Python or of torch are missing.
    """
    python, (torchs, libraries) = python_headers(), export.library_paths()
    if python is None:
        raise NotInCppError("headers", "the headers of Python are not installed: Python.h is missing")
    tensor = Path(torchs) / "ATen" / "core" / "Tensor.h"
    if not tensor.exists():
        raise NotInCppError("headers", f"the headers of torch are not installed: {tensor} is missing")
    text = for_this_python(f"// torch {export.version()}\n{RUNTIME}")
    flags = (
        *_FLAGS, "-frtti", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={int(export.uses_new_strings())}", f"-I{python}",
        f"-I{torchs}", f"-I{torchs}/torch/csrc/api/include", f"-L{libraries}", "-ltorch_python", "-ltorch_cpu", "-lc10",
    )  # fmt: skip
    module = load_extension("regraft_graphs", _compiled_runtime(LibrarySource(text, flags)))
    module.setup(IndexOutOfRange, profiler_switches(), torch.Tensor, *entry_points())
    return module


def _compiled_runtime(source: LibrarySource) -> Path:
    """The path of the module's text, without torch's headers about Python if they are not needed."""
    offset = export.tensor_offset()
    if offset is not None:
        with contextlib.suppress(CompileFailed):  # this torch lacks what the text declares of it
            return compile_all([replace(source, flags=(*source.flags, f"-DTENSOR_AT={offset}"))])[0][1]
    return compile_all([source])[0][1]
