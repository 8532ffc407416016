"""C++ for CPUs: kernels are compiled into a shared library.

    Kernel -> flatten -> plan (which loops run in lanes, what threads share) -> text (regions, loops, values)
           -> compiler -> binding

`build` is the only entry point.
"""

from .build import CppKernel, build, source_text
from .compiler import can_build
from .dtypes import UnsupportedDtype
from .errors import CompileFailed, CompilerMissing
from .kernel_text import planned
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
    "planned",
    "source_text",
    "target",
]  # fmt: skip
