"""A template's C++ kernel as a callable: it is compiled when first needed, and allocates its result."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ....rewrites.compat import is_fake
from ....rewrites.compat.memory import empty_strided
from ...codegen.cpp.binding import bind
from ...codegen.cpp.build import source_of
from ...codegen.cpp.compiler import LibrarySource, compile_all
from ...codegen.cpp.errors import CompileFailed, CompilerMissing
from ...codegen.cpp.target import host_target
from ...codegen.kernel_call import CppTemplateCall, Layout
from .micro_kernel import PRELUDE

_empty = empty_strided(torch.device("cpu"))


@dataclass(eq=False)
class TemplateKernel(CppTemplateCall):
    """A generated kernel as the target of a `call_function` node: takes its inputs, returns a new tensor.

    Pickles as its source: after loading, the first call finds the library on disk or compiles it again.

    Args:
        name: a readable name, unique to the source; also the name of the function to call.
        template: the name of the template, e.g. ``"attention"``.
        source: C++ that follows the preludes of `cpp` and `micro_kernel`.
        inputs: the layouts for which the kernel was generated; tensors in other layouts are copied first.
        output: the layout of the result.
        flops: the number of multiplications and additions of its products.
        numbers: what the function takes besides tensors: sizes, where one source serves many of them.
    """

    name: str
    template: str
    source: str
    inputs: tuple[Layout, ...]
    output: Layout
    flops: int = 0
    numbers: tuple[int, ...] = ()
    _run: Callable[..., None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.__name__ = self.__qualname__ = self.name
        self.__module__ = "regraft"

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Run the kernel on the tensors it reads, on as many threads as torch would use.

        Raises:
            CompilerMissing, CompileFailed: see `build`.
            IndexError: an index that the score function reads was out of range.
        """
        out = self.output
        if type(tensors[0]) is not torch.Tensor and is_fake(tensors[0]):
            return tensors[0].new_empty_strided(out.sizes, out.strides, dtype=out.dtype)
        for tensor, layout in zip(tensors, self.inputs, strict=True):
            if tensor.stride() != layout.strides:
                tensors = tuple(x.placed(t) for x, t in zip(self.inputs, tensors, strict=True))
                break
        made = _empty(out.sizes, out.strides, out.dtype)
        (self._run or self.build())(*tensors, made, *self.numbers)
        return made

    def build(self) -> Callable[..., None]:
        """Compile the kernel, or find it on disk, and load it: a function of the inputs and the result.

        Raises:
            CompilerMissing, CompileFailed: there is no compiler, or it refuses the source.
        """
        ((library, _),) = compile_all([self.unit()])
        address = ctypes.cast(getattr(library, self.name), ctypes.c_void_p).value
        assert address is not None, self.name
        self._run = bind(address, "t" * (len(self.inputs) + 1), len(self.numbers), True)
        return self._run

    def unit(self) -> LibrarySource:
        """The C++ source that contains the kernel's function."""
        return source_of([PRELUDE, self.source], host_target())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}


@functools.lru_cache(maxsize=256)
def template_kernel(
    template: str,
    source: str,
    inputs: tuple[Layout, ...],
    output: Layout,
    flops: int,
    numbers: tuple[int, ...] = (),
) -> TemplateKernel:
    """The kernel of a source in which ``KERNEL`` stands for its name; equal sources give the same kernel."""
    name = f"{template}_{hashlib.blake2b(source.encode(), digest_size=6).hexdigest()}"
    return TemplateKernel(name, template, source.replace("KERNEL", name), inputs, output, flops, numbers)


def compiles(kernel: TemplateKernel) -> bool:
    """Whether the kernel can be compiled here."""
    try:
        kernel.build()
    except (CompilerMissing, CompileFailed):
        return False
    return True


def lanes() -> int:
    """The number of floats in a vector of this machine; at least 4, which compilers split if registers are narrower."""
    return max(host_target().vector_bytes // 4, 4)
