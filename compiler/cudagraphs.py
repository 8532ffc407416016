"""CUDA graphs: a compiled graph's launches recorded once for each set of sizes, and replayed as one.

    call 1    runs as it is: everything is loaded, chosen and warm
    call 2    inputs copied into buffers;  captured;  replayed;  outputs given out
    call 3    inputs copied into buffers;             replayed;  outputs given out

Parameters and buffers (and what a forward kept for its backward) are read where they are: they are known by address.
All other inputs are copied into memory that the capture reads, one copy each; but large results of other graphs, which
come to lie at the same place in every step, are read there once they have been seen there twice.

Results are safe: no later call changes what the program still holds. Large results, gradients and what a forward keeps
for its backward are given out as they are, in the capture's memory, and as long as any of it lives, that capture is not
replayed. A loop that holds one result while it computes the next gets a second capture, and the two take turns; with
`SLOTS` of them in use, results come from a capture that copies them out. Small results, and what a forward gives to
the program, are copied: a loss that is held must not hold a whole step's memory.

Memory: all inference captures of one stream share one pool, since nothing in it but results outlives a call; a training
step holds a pool for each of its forward captures, shared with the backward that belongs to it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..rewrites.reason import Reason
from . import torch_compat
from .collector import uncollected
from .cudagraph_memory import LARGE, Given, copy_of, flat, layout, memory, same_memory, size_of

logger = logging.getLogger("regraft")

SLOTS = 4  # captures of one set of sizes: by addresses, and while results of others are in use
_TRIES = 4  # calls in which large results of other graphs are waited for, to lie where they have been before
_BOUND = 2  # captures that read such results where they are: the program may hold one while the next is computed
_ALL = 1 << 62
_SMALL = 1 << 18  # bytes of a result of an inference graph that is copied out
Boxed = Callable[[list[Any]], Any]

_LOCK = threading.RLock()  # captures that share a pool are replayed and read by turns


class _Pool:
    """Memory that captures share, held by each of them.

    Torch frees a pool when the last graph of it dies, and refuses its handle from then on: the next needs a new one.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle


_GIVEN = Given()
_INFERENCE_POOLS: weakref.WeakValueDictionary[tuple[torch.device, int], _Pool] = weakref.WeakValueDictionary()


class Device:
    """What CUDA graphs need of torch and the GPU; tests have another."""

    def stream(self, device: torch.device) -> int:
        """The current stream of a device."""
        return torch_compat.cuda_stream()(device.index or 0)

    def is_capturing(self) -> bool:
        """Whether the user is capturing already."""
        return torch.cuda.is_current_stream_capturing()

    def new_pool(self) -> Any:
        """A handle of memory that captures may share."""
        return torch.cuda.graph_pool_handle()

    def capture(self, call: Boxed, given: Sequence[Any], pool: Any, device: torch.device) -> tuple[Any, Any]:
        """Record what `call` launches on these inputs, without running it: the recording, and what `call` gave.

        Raises:
            Exception: what was called cannot be recorded; nothing has run.
        """
        graph = torch.cuda.CUDAGraph()
        current, side = torch.cuda.current_stream(device), _side_stream(device)
        torch.cuda.empty_cache()  # so that the pool can grow
        torch_compat.clear_cublas_workspaces()
        side.wait_stream(current)
        # Garbage may own graphs and events, which must not be freed during a capture.
        with torch.cuda.device(device), torch.cuda.stream(side), uncollected():
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = call(list(given))
            except BaseException:
                with contextlib.suppress(Exception):
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(side)
        torch_compat.clear_cublas_workspaces()
        return graph, result


@functools.cache
def _side_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)


class CudaGraphs:
    """The captures of one compilation, its forward and its backward.

    Args:
        limit: how many sets of sizes are captured; calls of more run as they are.
        note: told of every reason not to capture, once.
        device: of tests.
    """

    def __init__(self, limit: int, note: Callable[[Reason], None], device: Device | None = None) -> None:
        self.limit, self.note, self.device = limit, note, device or Device()
        self.pools: dict[int, _Pool] = {}  # of what forwards keep, by address
        self.steady: set[int] = set()  # addresses of static inputs of forwards

    def inference(self, call: Boxed, static: frozenset[int]) -> Boxed:
        """An inference graph; `static` are the positions of inputs whose addresses stay."""
        return _boxed(_Graphed(self, call, static, None))

    def forward(self, call: Boxed, static: frozenset[int], returned: int) -> Boxed:
        """A forward graph; its first `returned` outputs go to the program, the others to the backward."""
        return _boxed(_Graphed(self, call, static, returned))

    def backward(self, call: Boxed) -> Boxed:
        """A backward graph; it is captured where the forward has been."""
        return _boxed(_Graphed(self, call, None, None))


def _boxed(graphed: _Graphed) -> Boxed:
    def run(args: list[Any]) -> Any:
        return graphed.run(args)

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark of the calling convention
    return run


class _Graphed:
    """A compiled graph that is captured; `static` is None where addresses tell which inputs are: in a backward."""

    def __init__(self, owner: CudaGraphs, call: Boxed, static: frozenset[int] | None, returned: int | None) -> None:
        self._owner, self._call, self._static, self._returned = owner, call, static, returned
        self._captures: dict[Any, list[_Capture]] = {}  # by stream and layouts
        self._chains: dict[Any, list[dict[int, int]]] = {}  # where large results of other graphs lay, as above
        self._all: list[_Capture] = []
        self._warm: set[Any] = set()  # numbers that it has run with
        self._noted: set[str] = set()
        self._failed = False

    def run(self, args: list[Any]) -> Any:
        """The graph on inputs, in boxed convention."""
        device = next((x.device for x in args if isinstance(x, torch.Tensor)), None)
        if self._failed or device is None or self._owner.device.is_capturing():
            return self._call(args)
        with _LOCK:
            stream = self._owner.device.stream(device)
            capture = next((c for c in self._all if c.fits(args, stream) and not c.in_use()), None)
            capture = capture or self._new_capture(args, device, stream)
            if capture is not None:
                return capture.replay(args)
        results = self._call(args)
        for result in results[: self._returned]:
            _GIVEN.note(result)
        return results

    def _new_capture(self, args: list[Any], device: torch.device, stream: int) -> _Capture | None:
        """A capture of this call; None where it is to run as it is."""
        addresses = self._addresses(args)
        key = (stream, *(layout(x) for k, x in enumerate(args) if k not in addresses))
        captures = self._known(key)
        numbers = tuple(x for x in args if not isinstance(x, torch.Tensor))
        if captures is None or numbers not in self._warm:
            self._warm.add(numbers)
            return None
        chained = self._chained(key, args, addresses, len(captures))
        pool = self._pool(device, stream, addresses)
        if chained is None or pool is None:
            return None
        if len(captures) >= SLOTS and (self._returned is not None or captures[-1].gives_nothing):
            self._say("captures", f"{SLOTS} captures of one set of sizes are in use, or have other addresses")
            return None
        made = self._captured(args, _Read(addresses, chained), pool, device, self._limit(len(captures)))
        if made is not None:
            made.stream = stream
            captures.append(made)
            self._all.append(made)
        return made

    def _limit(self, others: int) -> int:
        """Bytes up to which results of the program are copied out, in a capture beside so many."""
        if self._returned is not None or others >= SLOTS - 1:
            return _ALL
        return _SMALL if self._static is not None else 0

    def _addresses(self, args: Sequence[Any]) -> dict[int, int]:
        """Where the inputs lie that are read where they are, by position."""
        if self._static is not None:
            return {k: args[k].data_ptr() for k in self._static if isinstance(args[k], torch.Tensor)}
        pools, steady = self._owner.pools, self._owner.steady
        found = {k: x.data_ptr() for k, x in enumerate(args) if isinstance(x, torch.Tensor)}
        return {k: at for k, at in found.items() if at in pools or at in steady}

    def _chained(self, key: Any, args: Sequence[Any], addresses: dict[int, int], others: int) -> dict[int, int] | None:
        """Where large results of other graphs lie that this capture is to read there; None to wait with it."""
        large = {k: x.data_ptr() for k, x in enumerate(args) if k not in addresses and x in _GIVEN}
        if not large or others >= _BOUND:
            return {}
        seen = self._chains.setdefault(key, [])
        if large in seen:
            return large
        seen.append(large)
        return {} if len(seen) > _TRIES else None

    def _known(self, key: Any) -> list[_Capture] | None:
        """The captures of one set of sizes; None for one too many."""
        if key not in self._captures:
            if len(self._captures) >= self._owner.limit:
                self._say("many-sizes", f"{self._owner.limit} sets of sizes are captured; further ones run as they are")
                return None
            self._captures[key] = []
        return self._captures[key]

    def _pool(self, device: torch.device, stream: int, addresses: dict[int, int]) -> _Pool | None:
        """Where a capture allocates: of a backward, where its forward did; None where that was not captured."""
        if self._static is None:
            return next((self._owner.pools[at] for at in addresses.values() if at in self._owner.pools), None)
        if self._returned is not None:
            return _Pool(self._owner.device.new_pool())
        shared = _INFERENCE_POOLS.get((device, stream))
        if shared is None:
            shared = _INFERENCE_POOLS[device, stream] = _Pool(self._owner.device.new_pool())
        return shared

    def _captured(self, args: list[Any], read: _Read, pool: _Pool, device: torch.device, limit: int) -> _Capture | None:
        addresses = read.addresses | read.chained
        moving = {k: x for k, x in enumerate(args) if isinstance(x, torch.Tensor) and k not in addresses}
        try:
            with torch.inference_mode(False), torch.no_grad():  # results may be used in another mode later
                buffers = {k: same_memory(x) for k, x in moving.items()}
                given = [buffers.get(k, x) for k, x in enumerate(args)]
                graph, results = self._owner.device.capture(self._call, given, pool.handle, device)
        except Exception as error:  # whatever cannot be recorded runs as it is
            self._failed = True
            logger.warning("regraft: a graph runs without CUDA graphs, its capture failed", exc_info=True)
            self._say("capture-failed", f"{type(error).__name__}: {error}")
            return None
        if _looks_at(results, [args[k] for k in read.chained]):  # it would keep them alive, at their place
            return self._captured(args, _Read(read.addresses, {}), pool, device, limit)
        capture = _Capture(graph, pool, read, buffers, given, results, self._returned, limit)
        if self._returned is not None:
            self._owner.pools.update((x.data_ptr(), pool) for x in capture.kept)
            self._owner.steady.update(addresses.values())
        return capture

    def _say(self, code: str, message: str) -> None:
        if code not in self._noted:
            self._noted.add(code)
            self._owner.note(Reason(code, message))


class _Read(NamedTuple):
    """Where the inputs lie that are read where they are: parameters and the like, and large results of other graphs."""

    addresses: dict[int, int]
    chained: dict[int, int]


class _Capture:
    """One recording, and the memory that it reads and writes; `kept` are results that are given out as they are."""

    def __init__(
        self,
        graph: Any,
        pool: _Pool,
        read: _Read,
        buffers: dict[int, torch.Tensor],
        given: Sequence[Any],
        results: Sequence[Any],
        returned: int | None,
        limit: int,
    ) -> None:
        self.stream, self._pool = 0, pool
        addresses = read.addresses | read.chained
        self._places, self._addresses = [*addresses], [*addresses.values()]
        varying = (*buffers, *read.chained)
        self._layouts = [(k, given[k].shape, given[k].stride(), given[k].dtype) for k in varying]
        self._numbers = [(k, x) for k, x in enumerate(given) if not isinstance(x, torch.Tensor)]
        self._graph, self._buffers = graph, buffers
        places = {id(x): k for k, x in enumerate(given) if isinstance(x, torch.Tensor)}
        self._inputs = [places.get(id(result)) for result in results]
        self._results = [x if at is None else None for x, at in zip(results, self._inputs, strict=True)]
        steady = {memory(given[k]) for k in addresses}
        returned_count, returned = returned, len(results) if returned is None else returned
        # What looks at a parameter is given as it is, as without a capture.
        self._copied = [k < returned and memory(x) not in steady and size_of(x) <= limit for k, x in enumerate(results)]
        given_out = [
            x
            for x, at, copied in zip(results, self._inputs, self._copied, strict=True)
            if isinstance(x, torch.Tensor) and at is None and not copied and memory(x) not in steady
        ]
        self._given = [k for k, at in enumerate(self._inputs[:returned]) if at is None and size_of(results[k]) >= LARGE]
        self.kept = given_out
        # What a forward keeps is let go as one: one tensor of its own tells for all.
        self._sentinel = next(iter(given_out), None) if returned_count is not None else None
        watched = given_out if self._sentinel is None else [self._sentinel]
        self._watched = list({memory(x): x for x in watched}.values())
        self._idle = [torch_compat.storage_users(x) for x in self._watched]

    @property
    def gives_nothing(self) -> bool:
        """Whether all results are copied out, so that it can always be replayed."""
        return not self._watched

    def fits(self, args: Sequence[Any], stream: int) -> bool:
        """Whether inputs lie, or are laid out, as those that it was made for; this is all that a replay checks."""
        return (
            stream == self.stream
            and [args[k].data_ptr() for k in self._places] == self._addresses
            and all(
                (x := args[k]).shape == shape and x.stride() == stride and x.dtype == dtype
                for k, shape, stride, dtype in self._layouts
            )
            and all(args[k] == number for k, number in self._numbers)
        )

    def in_use(self) -> bool:
        """Whether anything that was given out as it is still lives."""
        return any(torch_compat.storage_users(x) > n for x, n in zip(self._watched, self._idle, strict=True))

    def replay(self, args: list[Any]) -> tuple[Any, ...]:
        """Run on these inputs; empties the list."""
        for position, buffer in self._buffers.items():
            flat(buffer).copy_(flat(args[position]))
        self._graph.replay()
        made: dict[int, torch.Tensor] = {}
        results = [
            x if self._is_held(x, at, copied) else self._result(x, at, copied, args, made)
            for x, at, copied in zip(self._results, self._inputs, self._copied, strict=True)
        ]
        args.clear()
        for k in self._given:
            _GIVEN.note(results[k])
        return tuple(results)

    def _is_held(self, x: Any, at: int | None, copied: bool) -> bool:
        """Whether a result goes out as the tensor that is held here: all that a forward keeps but the sentinel."""
        return self._sentinel is not None and x is not self._sentinel and at is None and not copied

    @staticmethod
    def _result(x: Any, at: int | None, copied: bool, args: list[Any], made: dict[int, torch.Tensor]) -> Any:
        if at is not None:
            return args[at]
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in made:
            # A tensor of its own, so that it can be told whether it lives.
            made[id(x)] = copy_of(x) if copied else x.data
        return made[id(x)]


def _looks_at(results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a result lies in the memory of one of these inputs, and is not the input itself."""
    places, same = {memory(x) for x in inputs}, {id(x) for x in inputs}
    return any(isinstance(x, torch.Tensor) and memory(x) in places and id(x) not in same for x in results)
