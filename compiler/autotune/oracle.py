"""The oracle of one compilation, as the options ask for it: always, never, or by measurement."""

from __future__ import annotations

from collections.abc import Callable

from ...rewrites.profit import Always, Never, Oracle
from ..options import Options
from .autotuner import BUDGET_SECONDS, Measured

_PATIENCE = 10  # factor on the time for measuring with max-autotune


def make_oracle(options: Options) -> Oracle:
    """The oracle that the options ask for."""
    patience = _PATIENCE if options.autotune.thorough else 1
    oracles: dict[str, Callable[[], Oracle]] = {
        "always": Always, "never": Never, "measured": lambda: Measured(patience * BUDGET_SECONDS),
    }  # fmt: skip
    return oracles[options.profit]()
