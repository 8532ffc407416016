"""Containment of faults: a pass that fails is left out, and the program is compiled anew without it.

    a, b, c       b raises       ->       a, c       and a fallback that names b

Passes change graphs in place, so that one that fails may leave half of a change. Nothing is copied for that case: the
work starts again from what it started from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ...rewrites.faults import Faults

T = TypeVar("T")

_LISTS = ("applied", "declined", "near_misses", "fallbacks", "passes", "code", "snapshots")


class PassFailedError(Exception):
    """A pass has raised its `__cause__`; whoever runs the work leaves it out."""

    def __init__(self, name: str) -> None:
        super().__init__(f"pass {name} failed")
        self.name = name


class Containment:
    """Runs passes of one compilation.

    Args:
        faults: what is told of passes that fail, and says which errors go through.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self._left_out: set[str] = set()

    def do(self, function: Callable[..., Any], *args: Any, name: str = "", default: Any = None, **kwargs: Any) -> Any:
        """The result of a pass, or `default` where it is left out.

        Args:
            function: the pass, called with what else is given.
            args: its arguments, as are `kwargs`.
            name: what it is known by; by default the function's own name.
            default: what stands for its result.
            kwargs: its arguments.
        """
        name = name or _name_of(function)
        if name in self._left_out:
            return default
        try:
            return function(*args, **kwargs)
        except PassFailedError:
            raise
        except Exception as error:
            if self.faults.lets_through(error):
                raise
            raise PassFailedError(name) from error

    def leaves_out(self, *names: str) -> bool:
        """Whether one of these passes has failed."""
        return not self._left_out.isdisjoint(names)

    def run(self, work: Callable[[], T], undo: Callable[[], None] = lambda: None) -> T:
        """The result of `work`, which starts again without each pass that fails.

        Args:
            work: calls passes by `do`.
            undo: puts back what `work` changes, but for the record.
        """
        record = self.faults.record
        while True:
            known = {name: len(getattr(record, name)) for name in _LISTS}
            try:
                return work()
            except PassFailedError as failure:
                if failure.name in self._left_out:
                    raise
                undo()
                for name, length in known.items():
                    del getattr(record, name)[length:]
                self._leave_out(failure)

    def attempt(self, function: Callable[..., Any], *args: Any, default: Any = None) -> Any:
        """The result of a pass that needs nothing undone, or `default`."""
        return self.run(lambda: self.do(function, *args, default=default))

    def _leave_out(self, failure: PassFailedError) -> None:
        error = failure.__cause__
        assert isinstance(error, Exception)
        self._left_out.add(failure.name)
        self.faults.tell(f"pass {failure.name}", "it is left out", error, stage="passes")


def _name_of(function: Callable[..., Any]) -> str:
    """The name of a function, of what a partial one calls, or of an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
