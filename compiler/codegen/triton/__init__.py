"""Triton for GPUs: kernels of the loop IR as Triton functions, readable and on their own.

    Kernel with its launches -> text (values, folds, stores) -> module -> machine code (workers, files) -> function

`build` is the one entry.
"""

from .build import TritonKernel, begin, blamed, build, source_text, start
from .compiler import can_build, triton_version
from .device import processors
from .dtypes import UnsupportedDtypeError
from .errors import TritonFailed, TritonMissing, UnsupportedKernels
from .kernel_body import UnsupportedStoreError
from .kernel_text import LaunchText, Workspace
from .source import KernelSource, kernel_source

__all__ = [
    "KernelSource",
    "LaunchText",
    "TritonFailed",
    "TritonKernel",
    "TritonMissing",
    "UnsupportedDtypeError",
    "UnsupportedKernels",
    "UnsupportedStoreError",
    "Workspace",
    "begin",
    "blamed",
    "build",
    "can_build",
    "kernel_source",
    "processors",
    "source_text",
    "start",
    "triton_version",
]  # fmt: skip
