"""Captures of one graph and one set of sizes, by where parameters lie.

A graph that breaks in a loop over layers is one graph that is called with the parameters of each layer in turn: every
set of addresses has captures of its own. Parameters stay where they are, so there are as many sets as layers; for a
program that moves its parameters all the time, capturing would cost more than it saves:

    the first sets       captured when they are met
    further ones         when they are met a second time
    more than `PLACES`   not captured; those whose parameters have died make room
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef

from ....rewrites.compat.memory import storage_reference
from ....rewrites.reason import Reason
from .capture import Capture

AT_ONCE = 4  # sets of addresses that are captured when they are met
# A capture of one layer costs the driver some hundred KiB, and a few 100 ms to make: more than this pays for nobody.
PLACES = 256
_MET = 1024  # sets of addresses that are remembered as met once

_Place = tuple[tuple[int, int], ...]


class Places:
    """Lists of captures, one for each set of addresses.

    Args:
        say: told why a set of addresses gets none.
    """

    def __init__(self, say: Callable[[Reason], None]) -> None:
        self._say = say
        self._captures: dict[_Place, list[Capture]] = {}
        self._owners: dict[_Place, list[StorageWeakRef]] = {}
        self._met: set[_Place] = set()

    def __iter__(self) -> Iterator[list[Capture]]:
        return iter(list(self._captures.values()))

    def at(self, addresses: Mapping[int, int], args: Sequence[Any]) -> list[Capture] | None:
        """The captures of what lies there, perhaps none yet; None where nothing is to be captured.

        Args:
            addresses: of the inputs that are read where they are, by position.
            args: all inputs.
        """
        place = tuple(addresses.items())
        if place not in self._captures:
            if len(self._captures) >= AT_ONCE and not self._admits(place):
                return None
            self._met.discard(place)
            self._captures[place] = []
            self._owners[place] = [storage_reference(args[k]) for k in addresses]
        return self._captures[place]

    def drop(self, dropped: Sequence[Capture]) -> None:
        """Forget some captures."""
        for captures in self._captures.values():
            captures[:] = [c for c in captures if c not in dropped]

    def dead(self) -> list[Capture]:
        """Forget the sets of addresses of which something has died; gives the captures that read it.

        Those that the program holds something of stay: who replays next must know of it.
        """
        gone = [
            place
            for place, owners in self._owners.items()
            if any(owner.expired() for owner in owners) and not any(map(_is_used, self._captures[place]))
        ]
        captures = [c for place in gone for c in self._captures[place]]
        for place in gone:
            del self._captures[place], self._owners[place]
        return captures

    @property
    def is_full(self) -> bool:
        """Whether there is no room for further sets of addresses."""
        return len(self._captures) >= PLACES

    def _admits(self, place: _Place) -> bool:
        if self.is_full:
            message = (
                f"captures for {PLACES} sets of addresses of parameters are kept; calls with others run as they are: "
                "write new values into parameters instead of replacing them"
            )
            self._say(Reason("many-places", message))
            return False
        if place in self._met:
            return True
        if len(self._met) >= _MET:
            self._met.clear()
            message = (
                "parameters lie elsewhere at nearly every call, and a capture reads them where they lie: write new "
                "values into parameters instead of replacing them"
            )
            self._say(Reason("moving-parameters", message))
        self._met.add(place)
        return False


def _is_used(capture: Capture) -> bool:
    return capture.is_pending() or capture.is_held()
