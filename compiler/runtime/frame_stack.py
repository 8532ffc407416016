"""Reserves memory for the frames of deep calls.

    chunk of 16 KB   | caller | ... | loop |    no room for another frame: every call in the loop maps a new chunk,
        takes
                                                its page faults, and unmaps it again

Python stores the frames of its functions in chunks of memory, and frees a chunk when its first frame returns. If a loop
runs at the end of a chunk, a small call in it costs as much as forty calls elsewhere. Compilations are hundreds of
calls deep, and spent up to a quarter of their time in this way. The size of a chunk is that of the frame for which it
was allocated, rounded up to a power of two. A frame that declares a large stack without using it therefore leaves room
for all frames above it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

_SLOTS = 1 << 16  # slots of 8 bytes: half a megabyte that is never touched, and as much for the frames above

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _call(function: Callable[[], Any]) -> Any:
    return function()


_roomy = FunctionType(_call.__code__.replace(co_stacksize=_SLOTS), globals(), "_roomy")


def with_room(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function that reserves memory for frames, and calls `function`."""

    @functools.wraps(function)
    def roomy(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return _roomy(functools.partial(function, *args, **kwargs))

    return roomy
