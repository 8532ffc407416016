"""How much slow properties draw and tables hold: little by default, all of it where `REGRAFT_TEST_THOROUGH` is set."""

import os
from typing import Any

import pytest

THOROUGH = bool(os.environ.get("REGRAFT_TEST_THOROUGH"))


def examples(few: int, many: int) -> int:
    """The number for this run; `many` on a machine that has the time."""
    return many if THOROUGH else few


def thorough(*values: Any) -> Any:
    """A parameter of a test that takes the same path as another one, at a cost: left out of short runs."""
    return pytest.param(*values, marks=pytest.mark.skipif(not THOROUGH, reason="REGRAFT_TEST_THOROUGH is not set"))
