"""C++ compiled with less effort: the same source takes a third of the time, and gives the same values.

Programs of most tests run once, on few elements. What is timed has `optimized` code, as users have it, and of each file
about code generation or templates a tenth of the rows (`optimized_in_turns`). In thorough runs all has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from regraft.compiler.codegen.cpp import compiler

from .thorough import ROW, THOROUGH

OPTIMIZED = compiler.FLAGS
LIGHT = OPTIMIZED if THOROUGH else tuple("-O0" if flag == "-O3" else flag for flag in OPTIMIZED)


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


_TURNS = 10


@pytest.fixture(autouse=True)
def optimized_in_turns(request: pytest.FixtureRequest) -> Iterator[None]:
    """For a folder that imports this beside `optimized`: of a file's rows, every tenth is compiled as users' are.

    The flags change no result. What rows share has those of users, and so have rows that are asked for by name, and all
    with the mark `optimized`: where it is the compiler that was wrong, or that is looked at.
    """
    marked = request.node.get_closest_marker("optimized") is not None
    with _flags(OPTIMIZED if marked or request.node.stash.get(ROW, 0) % _TURNS == 0 else LIGHT):
        yield


@contextmanager
def _flags(flags: tuple[str, ...]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "FLAGS", flags)
        yield
