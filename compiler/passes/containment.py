"""Containment of faults: a pass that fails is left out, and the program is compiled anew without it.

    a, b, c       b raises       ->       a, c       and a fallback that names b

Passes change graphs in place, so that a failing pass may leave a graph half changed. No copy is kept for that case: the
compilation starts again from its original input.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ...rewrites.faults import Faults

T = TypeVar("T")

_LISTS = ("applied", "declined", "near_misses", "fallbacks", "passes", "code", "snapshots")


class PassFailedError(Exception):
    """A pass has raised the error in `__cause__`; the caller starts again without that pass."""

    def __init__(self, name: str) -> None:
        super().__init__(f"pass {name} failed")
        self.name = name


class Containment:
    """Runs the passes of one compilation, and leaves out those that fail.

    Args:
        faults: is told about passes that fail, and decides which errors are raised.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self._left_out: set[str] = set()

    def do(self, function: Callable[..., Any], *args: Any, name: str = "", default: Any = None, **kwargs: Any) -> Any:
        """The result of a pass, or `default` if the pass is left out.

        Args:
            function: the pass.
            args: its positional arguments.
            name: the name of the pass in reports; by default the name of the function.
            default: the result if the pass is left out.
            kwargs: its arguments by name.
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
                self.faults.name(error, f"pass {name}")
                raise
            raise PassFailedError(name) from error

    def leaves_out(self, *names: str) -> bool:
        """Whether one of these passes has failed."""
        return not self._left_out.isdisjoint(names)

    def run(self, work: Callable[[], T], undo: Callable[[], None] = lambda: None) -> T:
        """The result of `work`, which starts again without each pass that fails.

        Args:
            work: calls passes through `do`.
            undo: restores everything that `work` changes, except for the record.
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
        """The result of a pass that leaves nothing to undo when it fails, or `default`."""
        return self.run(lambda: self.do(function, *args, default=default))

    def _leave_out(self, failure: PassFailedError) -> None:
        error = failure.__cause__
        assert isinstance(error, Exception)
        self._left_out.add(failure.name)
        self.faults.tell(f"pass {failure.name}", "it is left out", error, stage="passes")


def _name_of(function: Callable[..., Any]) -> str:
    """The name of a function, of the function in a partial, or of an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
