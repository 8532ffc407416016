"""One recording of a compiled graph: when it may be replayed, and how its results are given out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ....rewrites.compat import memory as torch_memory
from .memory import LARGE, Given, flat, in_memory_of, memory, same_memory, size_of
from .pool import Pool

GIVEN = Given()
Made = dict[tuple[int, bool], torch.Tensor]  # results of a replay, by what they are of, and whether they are copies


class Read(NamedTuple):
    """Where the inputs lie that are read where they are: parameters and the like, and large results of other graphs.

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
        graph: the recording.
        pool: where it allocates.
        read: inputs that are read where they are.
        buffers: memory for the others that are tensors, by position.
        given: the inputs, as they were in the capture.
        results: what the capture gave.
        returned: how many of them go to the program, in a forward; None for all, in other graphs.
        copies: whether a result that goes to the program is to be copied out.
    """

    def __init__(
        self,
        graph: Any,
        pool: Pool,
        read: Read,
        buffers: dict[int, torch.Tensor],
        given: Sequence[Any],
        results: Sequence[Any],
        returned: int | None,
        copies: Callable[[torch.Tensor], bool],
    ) -> None:
        self.stream, self.pool, self.home = 0, pool, pool
        self._places = [*read.all.items()]
        # In a backward an address is not all that is known of a parameter.
        varying = (*buffers, *read.chained, *(k for k in read.addresses if read.kept and k not in read.kept))
        self._layouts = [(k, given[k].shape, given[k].stride(), given[k].dtype) for k in varying]
        self._numbers = [(k, x) for k, x in enumerate(given) if not isinstance(x, torch.Tensor)]
        self._graph, self._buffers = graph, buffers
        places = {id(x): k for k, x in enumerate(given) if isinstance(x, torch.Tensor) and k not in read.kept}
        self._inputs = [places.get(id(result)) for result in results]
        self._results = [x if at is None else None for x, at in zip(results, self._inputs, strict=True)]
        # What looks at a parameter is given as it is, as without a capture.
        steady = {memory(given[k]) for k in read.all if k not in read.kept}
        own = [isinstance(x, torch.Tensor) and memory(x) not in steady for x in self._results]
        count = len(results) if returned is None else returned
        # The program may write to what it is given, and the backward must not see it; nor does the program get what a
        # forward keeps, which its next replay overwrites.
        kept = {memory(x) for x in results[count:]}
        self._copied = [
            k < count and mine and (copies(x) or memory(x) in kept)
            for k, (x, mine) in enumerate(zip(results, own, strict=True))
        ]
        # Results that share memory share it when they are copied, too.
        copied = {id(x): x for x, it in zip(results, self._copied, strict=True) if it}.values()
        users = Counter(map(memory, copied))
        self._shared = {memory(x): _bytes(x) for x in copied if users[memory(x)] > 1}
        self._given = [k for k, at in enumerate(self._inputs[:count]) if at is None and size_of(results[k]) >= LARGE]
        given_out = [mine and not copied for mine, copied in zip(own, self._copied, strict=True)]
        self.kept = [x for x, out in zip(results[count:], given_out[count:], strict=True) if out]
        self._pending = _users(self.kept)
        watched = [x for x, out in zip(results[:count], given_out, strict=False) if out]
        self._held = _users({memory(x): x for x in watched}.values())

    @property
    def gives_nothing(self) -> bool:
        """Whether all results are copied out, so that it can always be replayed."""
        return not self._held

    def fits(self, args: Sequence[Any], stream: int) -> bool:
        """Whether inputs lie, or are laid out, as those that it was made for; this is all that a replay checks."""
        return (
            stream == self.stream
            and all(args[k].data_ptr() == address for k, address in self._places)
            and all(
                (x := args[k]).shape == shape and x.stride() == stride and x.dtype == dtype
                for k, shape, stride, dtype in self._layouts
            )
            and all(args[k] == number for k, number in self._numbers)
        )

    def is_pending(self) -> bool:
        """Whether a backward may still come: what the forward keeps for it lives."""
        return any(torch_memory.storage_users(key) > idle for key, idle in self._pending)

    def is_held(self) -> bool:
        """Whether the program holds a result that lies in the capture's memory."""
        return any(torch_memory.storage_users(key) > idle for key, idle in self._held)

    def replay(self, args: list[Any]) -> tuple[Any, ...]:
        """Run on these inputs; empties the list."""
        for position, buffer in self._buffers.items():
            flat(buffer).copy_(flat(args[position]))
        self._graph.replay()
        made: Made = {}
        results = [
            self._result(x, at, copied, args, made)
            for x, at, copied in zip(self._results, self._inputs, self._copied, strict=True)
        ]
        self._copy(made)
        args.clear()
        for k in self._given:
            GIVEN.note(results[k])
        return tuple(results)

    def _result(self, x: Any, at: int | None, copied: bool, args: list[Any], made: Made) -> Any:
        if at is not None:
            return args[at]
        if not isinstance(x, torch.Tensor):
            return x
        if (id(x), copied) not in made:
            # A tensor of its own, so that it can be told whether it lives.
            made[id(x), copied] = self._copy_of(x, made) if copied else x.data
        return made[id(x), copied]

    def _copy_of(self, x: torch.Tensor, made: Made) -> torch.Tensor:
        """Memory for a copy of a result, beside that of results that share its own."""
        shared = self._shared.get(memory(x))
        if shared is None:
            return same_memory(x)
        key = memory(x), True
        if key not in made:
            made[key] = torch.empty_like(shared)
        return in_memory_of(made[key], x)

    def _copy(self, made: Made) -> None:
        """Fill the copies among the results, all in few launches."""
        pairs = {id(x): x for x, copied in zip(self._results, self._copied, strict=True) if copied and x is not None}
        alone = {key: x for key, x in pairs.items() if memory(x) not in self._shared} if self._shared else pairs
        sources = alone | self._shared
        if sources:
            torch_memory.copy_all([flat(made[key, True]) for key in sources], [flat(x) for x in sources.values()])


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """All memory behind a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def _users(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Which memory tensors lie in, and how many references there are to it while nobody else has one."""
    keys = [torch_memory.storage_key(x) for x in tensors]
    return [(key, torch_memory.storage_users(key)) for key in keys]


def looks_at(results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a result lies in the memory of one of these inputs, and is not the input itself."""
    places, same = {memory(x) for x in inputs}, {id(x) for x in inputs}
    return any(isinstance(x, torch.Tensor) and memory(x) in places and id(x) not in same for x in results)
