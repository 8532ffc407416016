"""C++ for CPUs: kernels are compiled into a shared library.

    Kernel -> flatten -> plan (which loops run in lanes) -> text (regions, loops, values) -> compiler -> binding

`build` is the only entry point.
"""

from .build import CppKernel, build, source_text
from .compiler import can_build
from .dtypes import UnsupportedDtype
from .errors import CompileFailed, CompilerMissing
from .target import InstructionSet, host_target, target

__all__ = [
    "CompileFailed",
    "CompilerMissing",
    "CppKernel",
    "InstructionSet",
    "UnsupportedDtype",
    "build",
    "can_build",
    "host_target",
    "source_text",
    "target",
]  # fmt: skip
