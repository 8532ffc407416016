"""C++ compiled with less effort: the same source takes half the time, and gives the same values.

Programs of most tests run once, on few elements. What is tested as users run it has `optimized` code: code generation,
templates, random programs, and what is timed. In thorough runs all has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from regraft.compiler.codegen.cpp import compiler

from .thorough import THOROUGH

OPTIMIZED = compiler.FLAGS
LIGHT = OPTIMIZED if THOROUGH else tuple("-Og" if flag == "-O3" else flag for flag in OPTIMIZED)


FAST = bool(os.environ.get("REGRAFT_TEST_FAST"))
"""Whether this is `.ci/test --fast`."""


@contextmanager
def light() -> Iterator[None]:
    """Kernels are compiled with less effort, but in thorough runs; in fast ones, a test that compiles is left out."""
    with _flags(LIGHT), pytest.MonkeyPatch.context() as patch:
        if FAST:
            patch.setattr(compiler, "_compile", _leave_out)
        yield


def _leave_out(*_: Any) -> None:
    pytest.skip("fast runs compile no C++")


@pytest.fixture(autouse=True, scope="module")
def optimized() -> Iterator[None]:
    """For the tests of a folder or a file that imports this: kernels are compiled as users' are."""
    with _flags(OPTIMIZED):
        yield


@contextmanager
def _flags(flags: tuple[str, ...]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "FLAGS", flags)
        yield
