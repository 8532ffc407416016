"""What Python, pytest and torch do beside a test, at a cost, and no test looks at: left out.

A fifth of the time of tests that compile: Dynamo evicts the processor's caches to time its guards once, for a log;
pytest listens to the logger of `TORCH_TRACE`, so that each graph is written as text; and the garbage collector walks
all modules over and over.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import torch._dynamo.guards


def quieten() -> None:
    """For the rest of this process."""
    torch._dynamo.guards.profile_guard_manager = _not_timed
    trace = logging.getLogger("torch.__trace")
    trace.addHandler = _unless_of_pytest(trace.addHandler)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 500)


def _not_timed(*_: Any) -> float:
    """Microseconds that guards take."""
    return 0.0


def _unless_of_pytest(add: Callable[[logging.Handler], None]) -> Callable[[logging.Handler], None]:
    def add_handler(handler: logging.Handler) -> None:
        if not type(handler).__module__.startswith("_pytest"):
            add(handler)

    return add_handler
