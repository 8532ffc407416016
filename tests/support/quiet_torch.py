"""What Python, pytest and torch do beside a test, at a cost, and no test looks at: left out.

A fifth of the time of tests that compile: Dynamo evicts the processor's caches to time its guards once, for a log;
pytest listens to the logger of `TORCH_TRACE`, so that each graph is written as text; the garbage collector walks
all modules over and over; and each `torch.manual_seed` writes the stack as text, once for each kind of device that has
not been used yet (2 ms in all, from inside a test).
"""

from __future__ import annotations

import atexit
import gc
import logging
import types
from collections.abc import Callable
from typing import Any

import torch._dynamo.guards

_STACKS = types.SimpleNamespace(format_stack=list)


def quieten() -> None:
    """For the rest of this process."""
    torch._dynamo.guards.profile_guard_manager = _not_timed
    trace = logging.getLogger("torch.__trace")
    trace.addHandler = _unless_of_pytest(trace.addHandler)
    torch.cuda.traceback = torch.xpu.traceback = _STACKS  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # what is left to libraries when Python ends, some call leaks
    gc.set_threshold(20_000, 20, 500)


class Garbage:
    """Graphs that are garbage, and not collected yet: each slows down the tracing of others.

    A `GraphModule` is a class of its own, and whenever torch traces, it changes methods of `torch.nn.Module` and back,
    at which Python looks at every class below. Nor is so much memory at hand that none would have to be collected.
    """

    def __init__(self, most: int = 200) -> None:
        self._most, self._limit = most, most

    def collect(self) -> None:
        """Where there are more than so many."""
        if _graphs() > self._limit:
            gc.collect()
            self._limit = _graphs() + self._most


def _graphs() -> int:
    return len(torch.fx.GraphModule.__subclasses__())


def _not_timed(*_: Any) -> float:
    """Microseconds that guards take."""
    return 0.0


def _unless_of_pytest(add: Callable[[logging.Handler], None]) -> Callable[[logging.Handler], None]:
    def add_handler(handler: logging.Handler) -> None:
        if not type(handler).__module__.startswith("_pytest"):
            add(handler)

    return add_handler
