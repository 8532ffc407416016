"""A template's kernel as something to call: compiled when first needed, allocating its result."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..cpp.errors import CompileFailed, CompilerMissing
from ..cpp.target import host_target
from ..options import cache_dir
from ..torch_compat import is_fake
from .attention import Attention
from .attention_cpp import PRELUDE, AttentionCpp

_FLAGS = (
    "-std=c++17", "-O3", "-fopenmp", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
    "-w",
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """What a kernel was generated for: sizes, strides and dtype of one tensor."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(eq=False)
class TemplateKernel:
    """A generated kernel as the target of a `call_function` node: takes the tensors it reads, gives a new one.

    Args:
        name: readable, and unique to the source.
        template: what it was made from, e.g. ``"attention"``.
        source: its C++: one function of that name.
        inputs: layouts it was generated for; tensors that come in others are copied into these first.
        output: the layout of the result.
    """

    name: str
    template: str
    source: str
    inputs: tuple[Layout, ...]
    output: Layout
    _run: Callable[..., None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.__name__ = self.__qualname__ = self.name
        self.__module__ = "regraft"

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Run the kernel on the tensors it reads, on as many threads as torch would use."""
        out = torch.empty_strided(
            self.output.sizes, self.output.strides, dtype=self.output.dtype, device=tensors[0].device
        )
        if is_fake(tensors[0]):
            return out.new_empty_strided(self.output.sizes, self.output.strides)
        placed = [
            tensor if tensor.stride() == layout.strides else _placed(tensor, layout)
            for tensor, layout in zip(tensors, self.inputs, strict=True)
        ]
        pointers = (ctypes.c_void_p * (len(placed) + 1))(*(t.data_ptr() for t in placed), out.data_ptr())
        (self._run or self.build())(pointers, torch.get_num_threads())
        return out

    def build(self) -> Callable[..., None]:
        """Compile (or find compiled) and load the kernel.

        Raises:
            CompilerMissing, CompileFailed: there is no compiler, or it refuses the source.
        """
        self._run = run = getattr(_library(self.source), self.name)
        run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_int], None
        return run

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}


def attention_kernel(attention: Attention) -> TemplateKernel:
    """The kernel of an attention; equal attentions have equal kernels, whatever their buffers are called.

    Raises:
        ScoreError: the score function has no C++.
    """
    body = AttentionCpp("NAME", attention, lanes()).source()
    digest = hashlib.blake2b((PRELUDE + body).encode(), digest_size=6).hexdigest()
    name = f"attention_{digest}"
    inputs = tuple(Layout(b.sizes, b.strides, b.dtype) for b in attention.reads)
    out = attention.out.buffer
    return TemplateKernel(name, "attention", body.replace("NAME", name), inputs, Layout(out.sizes, out.strides, out.dtype))


def lanes() -> int:
    """Floats in a vector of this machine; at least 4, which compilers make of narrower registers."""
    return max(host_target().vector_bytes // 4, 4)


def _placed(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    made = torch.empty_strided(layout.sizes, layout.strides, dtype=layout.dtype, device=tensor.device)
    return made.copy_(tensor)


@functools.cache
def _library(source: str) -> ctypes.CDLL:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++", "c++"))), None)
    if compiler is None:
        raise CompilerMissing("no C++ compiler: neither CXX nor g++, clang++, c++ is there")
    flags = (*_FLAGS, *host_target().flags, f"-DGEMM_LANES={lanes()}")
    text = PRELUDE + source
    key = hashlib.blake2b("\0".join([compiler, *flags, text]).encode(), digest_size=16).hexdigest()
    home = (cache_dir() or Path(tempfile.gettempdir()) / f"regraft-{os.getuid()}") / "templates"
    library = home / f"{key}.so"
    if not library.exists():
        home.mkdir(parents=True, exist_ok=True)
        _compile(compiler, flags, text, library)
    return ctypes.CDLL(str(library))


def _compile(compiler: str, flags: tuple[str, ...], text: str, library: Path) -> None:
    """Compile aside and move into place, so that other processes never see half a file."""
    with tempfile.TemporaryDirectory(dir=library.parent) as room:
        source, made = library.with_suffix(".cpp"), Path(room) / "made.so"
        source.write_text(text)
        command = [compiler, *flags, str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileFailed(source, done.stderr)
        made.replace(library)
