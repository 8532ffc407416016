"""One recording of a compiled graph: when it may be replayed, and how its results are given out."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from ....rewrites.compat import memory as torch_memory
from .device import Recording
from .liveness import Checks, Users
from .memory import CHAINED, LARGE, Given, flat, in_memory_of, memory, same_memory, size_of
from .plan import ReplayText, places_of
from .pool import MemoryPool

GIVEN = Given()
_FEW = 2  # results that are copied one by one


class Read(NamedTuple):
    """The addresses of inputs that are read in place: parameters and the like, and results of other graphs.

    Of the former, `kept` are those that a forward keeps.
    """

    addresses: dict[int, int]
    chained: dict[int, int]
    kept: frozenset[int]

    @property
    def all(self) -> dict[int, int]:
        """Both."""
        return self.addresses | self.chained


class Capture:
    """One recording, and the memory that it reads and writes.

    `kept` is what a forward keeps for its backward; `home` is the pool of the forward that a backward belongs to.

    Args:
        recording: the launches, and the memory of the inputs that are not read where they are.
        pool: where it allocates.
        read: inputs that are read where they are.
        given: the inputs; those that are results as well are the recording's.
        results: what the capture gave, with what the pool keeps borrowed.
        returned: how many of them go to the program, in a forward; None for all, in other graphs.
        copies: whether a result that goes to the program is to be copied out.
    """

    def __init__(
        self,
        recording: Recording,
        pool: MemoryPool,
        read: Read,
        given: Sequence[Any],
        results: Sequence[Any],
        returned: int | None,
        copies: Callable[[torch.Tensor], bool],
    ) -> None:
        self.stream, self.pool, self.home = 0, pool, pool
        buffers = recording.buffers
        # In a backward an address is not all that is known of a parameter.
        varying = (*buffers, *read.chained, *(k for k in read.addresses if read.kept and k not in read.kept))
        self._checks = Checks(given, read.all, varying)
        self._buffers = list(buffers)
        places = {id(x): k for k, x in enumerate(given) if isinstance(x, torch.Tensor) and k not in read.kept}
        inputs = [places.get(id(result)) for result in results]
        # What looks at a parameter is given as it is, as without a capture.
        steady = {memory(given[k]) for k in read.all if k not in read.kept}
        own = [
            isinstance(x, torch.Tensor) and at is None and memory(x) not in steady
            for x, at in zip(results, inputs, strict=True)
        ]
        count = len(results) if returned is None else returned
        # The program may write to what it is given, and the backward must not see it; nor does the program get what a
        # forward keeps, which its next replay overwrites.
        kept = {memory(x) for x in results[count:]}
        copied = [
            k < count and mine and (copies(x) or memory(x) in kept)
            for k, (x, mine) in enumerate(zip(results, own, strict=True))
        ]
        large = [k for k, at in enumerate(inputs[:count]) if at is None and size_of(results[k]) >= LARGE]
        given_out = [mine and not it for mine, it in zip(own, copied, strict=True)]
        self.kept = [x for x, out in zip(results[count:], given_out[count:], strict=True) if out]
        watched = [x for x, out in zip(results[:count], given_out, strict=False) if out]
        self._held = Users({memory(x): x for x in watched}.values())
        written = [memory(x) for x in watched if size_of(x) >= CHAINED]
        GIVEN.hold(written)
        weakref.finalize(self, GIVEN.release, written)
        # The program does not see what only the backward reads: the same tensors each time.
        same = {id(x): x.data if isinstance(x, torch.Tensor) else x for x in results[count:]}
        template = [same[id(x)] if k >= count and inputs[k] is None else None for k, x in enumerate(results)]
        times = Counter(map(id, template))
        given_again = [same[key] for key in {id(x): x for x in self.kept}]
        self._pending = Users(self.kept, [(x, times[id(x)]) for x in given_again])
        text = ReplayText(recording.graph.replay, buffers)
        for k, at in enumerate(inputs):
            if at is not None:
                text.give_input(k, at)
        for x, positions in places_of((k, results[k]) for k in range(count) if inputs[k] is None and not copied[k]):
            text.give_seen(x, positions)
        _give_copies(text, {k: x for k, (x, it) in enumerate(zip(results, copied, strict=True)) if it})
        self.replay = text.function(template, large, GIVEN.note)
        """Runs on these inputs; empties the list."""

    @property
    def gives_nothing(self) -> bool:
        """Whether all results are copied out, so that it can always be replayed."""
        return not self._held.keys

    def fits(self, args: Sequence[Any], stream: int) -> bool:
        """Whether inputs lie, or are laid out, as those that it was made for; this is all that a replay checks."""
        return stream == self.stream and self._checks.hold(args)

    def is_pending(self) -> bool:
        """Whether a backward may still come: what the forward keeps for it lives."""
        return self._pending.are_there()

    def is_held(self) -> bool:
        """Whether the program holds a result that lies in the capture's memory."""
        return self._held.are_there()


def _give_copies(text: ReplayText, copied: Mapping[int, torch.Tensor]) -> None:
    """Have results be copied out, in few launches; those that share memory share it when they are copied, too."""
    once = {id(x): x for x in copied.values()}
    users = Counter(map(memory, once.values()))
    shared = {memory(x): _bytes(x) for x in once.values() if users[memory(x)] > 1}
    if shared:
        text.give_made(partial(_copies, list(once.values()), shared), {k: id(x) for k, x in copied.items()})
    elif len(once) <= _FEW and all(x.is_contiguous() for x in once.values()):
        text.give_clones(copied)  # half of the host's time
    else:
        text.give_copies(copied)


def _copies(copied: Sequence[torch.Tensor], shared: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Copies of results by their identity, given all memory in which several of them lie."""
    memories = {key: torch.empty_like(x) for key, x in shared.items()}
    made = {id(x): in_memory_of(memories[memory(x)], x) if memory(x) in memories else same_memory(x) for x in copied}
    alone = [x for x in copied if memory(x) not in memories]
    targets = [*(flat(made[id(x)]) for x in alone), *memories.values()]
    torch_memory.copy_all(targets, [*map(flat, alone), *shared.values()])
    return made


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """All memory behind a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def looks_at(results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a result lies in the memory of one of these inputs, and is not the input itself."""
    places, same = {memory(x) for x in inputs}, {id(x) for x in inputs}
    return any(isinstance(x, torch.Tensor) and memory(x) in places and id(x) not in same for x in results)
