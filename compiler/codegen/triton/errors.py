"""Errors of compiling and launching kernels on a GPU."""

from __future__ import annotations

from collections.abc import Mapping


class TritonMissing(RuntimeError):  # noqa: N818
    """There is no Triton in this environment."""


class TritonFailed(RuntimeError):  # noqa: N818
    """Triton did not compile a generated kernel, or the driver did not load it; the message quotes their error."""


class UnsupportedKernels(Exception):  # noqa: N818
    """Kernels that have no machine code.

    Args:
        why: the reason, by name of the kernel.
    """

    def __init__(self, why: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, text in why.items()))
        self.why = dict(why)
