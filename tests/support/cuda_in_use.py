"""Tests whose program forks: skipped in a process that uses CUDA already, which forks do not survive."""

import pytest
import torch


def skip_forks() -> None:
    """Skip the test that runs if this process uses CUDA."""
    if torch.cuda.is_initialized():
        pytest.skip("forks, which CUDA does not survive, and this process uses it already")
