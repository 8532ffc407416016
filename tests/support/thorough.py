"""How many examples slow properties draw: few by default, more where `REGRAFT_TEST_THOROUGH` is set."""

import os

THOROUGH = bool(os.environ.get("REGRAFT_TEST_THOROUGH"))


def examples(few: int, many: int) -> int:
    """The number for this run; `many` on a machine that has the time."""
    return many if THOROUGH else few
