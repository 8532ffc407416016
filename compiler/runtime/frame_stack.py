"""Room for the frames of deep calls.

    chunk of 16 KB   | caller | ... | loop |    no room for one more frame: every call made in the loop maps a chunk of
                                                its own, faults its pages in and unmaps it again

Python keeps the frames of its functions in chunks of memory, and gives one back when the first frame in it returns.
Where a loop happens to run at the end of one, a small call in it costs as much as forty elsewhere. A compilation is
hundreds of calls deep, and spent up to a quarter of its time there. A chunk is as large as the frame that it was made
for asks for, rounded up to a power of two: one frame that asks for much and uses nothing of it leaves room for all
above it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

_SLOTS = 1 << 16  # of 8 bytes: half a megabyte that is never touched, and as much for the frames above

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _call(function: Callable[[], Any]) -> Any:
    return function()


_roomy = FunctionType(_call.__code__.replace(co_stacksize=_SLOTS), globals(), "_roomy")


def with_room(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, called where there is room for the frames of whatever it calls."""

    @functools.wraps(function)
    def roomy(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return _roomy(functools.partial(function, *args, **kwargs))

    return roomy
