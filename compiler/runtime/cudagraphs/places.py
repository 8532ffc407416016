"""Captures of one graph and one set of sizes, by the addresses of parameters.

If a graph breaks in a loop over layers, one graph is called with the parameters of each layer in turn. Every set of
addresses has its own captures. If parameters do not move, there are as many sets as layers. For programs that move
their parameters all the time, capturing would cost more than it saves:

    the first sets       captured at first use
    further sets         captured at second use
    more than `PLACES`   not captured; sets whose parameters are dead make room
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef

from ....rewrites.compat.memory import storage_reference
from ....rewrites.reason import Reason
from .capture import Capture

AT_ONCE = 4  # sets of addresses that are captured at first use
# A capture of one layer takes some hundred KiB in the driver, and a few hundred ms: more captures than this never pay.
PLACES = 256
_MET = 1024  # sets of addresses that are remembered after their first use

_Place = tuple[tuple[int, int], ...]


class CapturesByAddress:
    """Lists of captures, one for each set of addresses.

    Args:
        say: is told why a set of addresses is not captured.
    """

    def __init__(self, say: Callable[[Reason], None]) -> None:
        self._say = say
        self._captures: dict[_Place, list[Capture]] = {}
        self._owners: dict[_Place, list[StorageWeakRef]] = {}
        self._met: set[_Place] = set()

    def __iter__(self) -> Iterator[list[Capture]]:
        return iter(list(self._captures.values()))

    def at(self, addresses: Mapping[int, int], args: Sequence[Any]) -> list[Capture] | None:
        """The captures for these addresses, perhaps none yet; None if nothing should be captured.

        Args:
            addresses: the addresses of inputs that are read in place, by position.
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
        """Forget the sets of addresses of dead parameters; returns the captures that read them.

        Captures whose results the program still holds are kept, since the next replay must know about them.
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
        """Whether no further sets of addresses can be captured."""
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
