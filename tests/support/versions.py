"""The torch, Triton and transformers that the tests run on, where an older one does otherwise whatever the backend."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest
import torch

OLD_TORCH = torch.__version__ < (2, 12)


def release(package: str) -> tuple[int, int]:
    """The first two numbers of a package's version; zeros where it is not installed."""
    try:
        major, minor, *_ = version(package).split(".")
    except PackageNotFoundError:
        return 0, 0
    return int(major), int(minor)


OLD_TRITON = release("triton") < (3, 7)


def not_in_old_torch(reason: str) -> pytest.MarkDecorator:
    """Leaves a test out below torch 2.12: the reason says what torch does there, for all backends."""
    return pytest.mark.skipif(OLD_TORCH, reason=f"torch 2.11 {reason}")
