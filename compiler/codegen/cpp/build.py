"""Turns kernels into callables: C++ text, one or two translation units, machine code, bindings."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...ir.canonical import canonical
from ...ir.index.bounds import bounds
from ...ir.kernel import Kernel
from .binding import bind
from .compiler import LibrarySource, compile_all
from .cost import GRAIN, work_of_all
from .kernel_text import kernel_text
from .prelude_math import operations
from .prelude_memory import MEMORY
from .prelude_runtime import RUNTIME
from .prelude_turns import TURNS
from .prelude_types import TYPES
from .prelude_use import used_of
from .target import InstructionSet, host_target

_BIG = 16 * GRAIN  # work of a kernel from which on its call releases the interpreter lock
_SPLIT = 24  # number of distinct kernels from which on two compilers share the work


@dataclass(frozen=True)
class CppKernel:
    """A kernel as machine code; call it with tensors in the order of the kernel's params, then sizes.

    The code assumes the sizes and strides of the kernel's buffers; it does not check those of the tensors. The object
    is pickled as its source: unpickling finds the library on disk or compiles it again.

    Args:
        name: the name of its function.
        unit: the C++ source that contains the function.
        source: the file of that source.
        kinds: the kinds of its params; see `bind`.
        sizes: the number of sizes that follow the params.
        big: whether other Python threads run during a call.
        bare: the callable itself, which is a little faster than the object.

    Raises:
        IndexOutOfRange: an index read from memory was out of range. The outputs are then incomplete.
        RuntimeError: an integer was divided by zero.
    """

    name: str
    unit: LibrarySource = field(repr=False)
    source: Path
    kinds: str
    sizes: int
    big: bool
    bare: Callable[..., None] = field(repr=False)

    def __call__(self, *args: Any) -> None:
        """Run the kernel."""
        self.bare(*args)

    def __reduce__(self) -> Any:
        return _restored, (self.name, self.unit, self.kinds, self.sizes, self.big)


def _restored(name: str, unit: LibrarySource, kinds: str, sizes: int, big: bool) -> CppKernel:
    return _bound(name, unit, kinds, sizes, big, *_restored_library(unit))


@functools.lru_cache(maxsize=8)  # the kernels of one graph come one after the other
def _restored_library(unit: LibrarySource) -> tuple[ctypes.CDLL, Path]:
    return compile_all([unit])[0]


def build(kernels: Sequence[Kernel], target: InstructionSet | None = None) -> list[CppKernel]:
    """Compile kernels; kernels that are equal except for names are compiled once.

    Args:
        kernels: scheduled loop trees.
        target: the instruction set; by default the widest of this machine.

    Raises:
        CompilerMissing: there is no C++ compiler.
        CompileFailed: the compiler refused the source.
        UnsupportedDtype: a kernel computes with a dtype that C++ has no type for.
    """
    target = target or host_target()
    named = _functions(kernels, target)
    functions, names = dict(named), [name for name, _ in named]
    units = [source_of([functions[n] for n in unit], target) for unit in _units(list(functions))]
    where: dict[str, tuple[LibrarySource, ctypes.CDLL, Path]] = {}
    for names_of_unit, unit, library in zip(_units(list(functions)), units, compile_all(units), strict=True):
        where.update(dict.fromkeys(names_of_unit, (unit, *library)))
    return [_compiled(kernel, name, *where[name]) for kernel, name in zip(kernels, names, strict=True)]


def source_text(kernels: Sequence[Kernel], target: InstructionSet | None = None) -> str:
    """The C++ source of kernels in one unit, for people to read."""
    target = target or host_target()
    return source_of(list(dict(_functions(kernels, target)).values()), target).text


def _functions(kernels: Sequence[Kernel], target: InstructionSet) -> list[tuple[str, str]]:
    """The name and text of each kernel's function; kernels that are equal except for names share the first one."""
    written: dict[Kernel, tuple[str, str]] = {}
    named: list[tuple[str, str]] = []
    for kernel in kernels:
        key = canonical(kernel)
        if key not in written:
            written[key] = _named(kernel_text(kernel, target))
        named.append(written[key])
    return named


def _named(text: str) -> tuple[str, str]:
    name = "k" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return name, text.replace("KERNEL", name)


def _units(names: Sequence[str]) -> list[list[str]]:
    ordered = sorted(names)
    if len(ordered) < _SPLIT:
        return [ordered] if ordered else []
    return [ordered[::2], ordered[1::2]]


@functools.cache
def _prelude(target: InstructionSet) -> str:
    return "\n".join([TYPES, MEMORY, TURNS, RUNTIME, operations(target.vector_bytes, target.functions)])


def source_of(functions: Sequence[str], target: InstructionSet) -> LibrarySource:
    """One translation unit: the prelude for a target, as far as it is used, then the functions."""
    libraries = ("-lmvec", "-lm") if target.functions else ("-lm",)
    text = "\n\n".join(functions)
    return LibrarySource(f"{used_of(_prelude(target), text)}\n\n{text}\n", (*target.flags, *libraries), plain=True)


def _compiled(kernel: Kernel, name: str, unit: LibrarySource, library: ctypes.CDLL, source: Path) -> CppKernel:
    kinds = "".join(_kind(p.buffer.dtype, p.buffer.scalar) for p in kernel.params)
    high = bounds(work_of_all(kernel.body))[1]
    big = high is None or high > _BIG
    return _bound(name, unit, kinds, len(kernel.sizes), big, library, source)


def _bound(
    name: str, unit: LibrarySource, kinds: str, sizes: int, big: bool, library: ctypes.CDLL, source: Path
) -> CppKernel:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None, name
    return CppKernel(name, unit, source, kinds, sizes, big, bind(address, kinds, sizes, big))


def _kind(dtype: torch.dtype, scalar: bool) -> str:
    return "t" if not scalar else "f" if dtype.is_floating_point else "i"
