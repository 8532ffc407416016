"""Kernels to callables: text, one or two translation units, machine code, bindings."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..ir.bounds import bounds
from ..ir.kernel import Kernel
from .binding import bind
from .compiler import Source, compile_all
from .cost import GRAIN, work_of_all
from .kernel_text import kernel_text
from .prelude import MEMORY, RUNTIME, TYPES
from .prelude_math import operations
from .target import Target, host_target

_SPLIT = 24  # distinct kernels from which on two compilers share the work


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel as machine code; call it with tensors in the order of the kernel's params, then sizes.

    Sizes and strides of buffers are those of the kernel, not looked up: tensors must have them. What the kernel does
    not state is not checked.

    Args:
        kernel: what it computes.
        source: the C++ file.
        call: the bare callable, a little faster than the object.

    Raises:
        IndexError: an index read from memory was out of range; outputs are then incomplete.
        RuntimeError: an integer was divided by zero.
    """

    kernel: Kernel
    source: Path
    call: Callable[..., None] = field(repr=False)

    def __call__(self, *args: Any) -> None:
        self.call(*args)


def build(kernels: Sequence[Kernel], target: Target | None = None) -> list[CompiledKernel]:
    """Compile kernels, equal ones (names apart) once.

    Args:
        kernels: scheduled loop trees.
        target: instructions to use; the widest that this machine has if None.

    Raises:
        CompilerMissing: there is no C++ compiler.
        CompileFailed: the compiler refused the source.
        UnsupportedDtype: a kernel computes with a dtype that C++ has no type for.
    """
    target = target or host_target()
    named = [_named(kernel_text(kernel, target)) for kernel in kernels]
    functions, names = dict(named), [name for name, _ in named]
    where: dict[str, tuple[ctypes.CDLL, Path]] = {}
    units = _units(list(functions))
    libraries = compile_all([_source([functions[n] for n in unit], target) for unit in units])
    for unit, library in zip(units, libraries, strict=True):
        where.update(dict.fromkeys(unit, library))
    return [_bound(kernel, name, *where[name]) for kernel, name in zip(kernels, names, strict=True)]


def source_text(kernels: Sequence[Kernel], target: Target | None = None) -> str:
    """The C++ of kernels in one unit, for reading."""
    target = target or host_target()
    return _source([_named(kernel_text(k, target))[1] for k in kernels], target).text


def _named(text: str) -> tuple[str, str]:
    name = "k" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return name, text.replace("KERNEL", name)


def _units(names: Sequence[str]) -> list[list[str]]:
    ordered = sorted(names)
    if len(ordered) < _SPLIT:
        return [ordered] if ordered else []
    return [ordered[::2], ordered[1::2]]


@functools.cache
def _prelude(target: Target) -> str:
    return "\n".join([TYPES, MEMORY, RUNTIME, operations(target.vector_bytes, target.functions)])


def _source(functions: Sequence[str], target: Target) -> Source:
    libraries = ("-lmvec", "-lm") if target.functions else ("-lm",)
    return Source("\n\n".join([_prelude(target), *functions]) + "\n", (*target.flags, *libraries))


def _bound(kernel: Kernel, name: str, library: ctypes.CDLL, source: Path) -> CompiledKernel:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None, name
    kinds = "".join(_kind(p.buffer.dtype, p.buffer.scalar) for p in kernel.params)
    high = bounds(work_of_all(kernel.body))[1]
    return CompiledKernel(kernel, source, bind(address, kinds, len(kernel.sizes), high is None or high > 16 * GRAIN))


def _kind(dtype: torch.dtype, scalar: bool) -> str:
    return "t" if not scalar else "f" if dtype.is_floating_point else "i"
