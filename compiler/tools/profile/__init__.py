"""Profiles of compiled programs: where the time goes, kernel by kernel, and how far each is from what a device can do.

compile, observed  ->  calls with a clock around each kernel  ->  bytes, FLOPs  ->  measured limits  ->  report
"""

from .comparison import Comparison, compare
from .profiler import kernels
from .report import KernelReport

__all__ = ["Comparison", "KernelReport", "compare", "kernels"]
