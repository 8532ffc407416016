"""Triton for GPUs: kernels of the loop IR as Triton functions, readable and on their own.

Kernel -> launches (what programs enumerate, what lanes do) -> text (values, folds, stores) -> module
"""

from .dtypes import UnsupportedDtypeError
from .kernel_text import LaunchText, UnsupportedStoreError, Workspace
from .plan import Blocks, Launch, launches
from .source import KernelSource, kernel_source

__all__ = [
    "Blocks", "KernelSource", "Launch", "LaunchText", "UnsupportedDtypeError", "UnsupportedStoreError", "Workspace",
    "kernel_source", "launches",
]  # fmt: skip
