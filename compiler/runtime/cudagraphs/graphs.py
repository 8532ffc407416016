"""CUDA graphs: a compiled graph's launches recorded once for each set of sizes, and replayed as one.

    call 1    runs as it is: everything is loaded, chosen and warm
    call 2    inputs copied into buffers;  captured;  replayed;  outputs given out
    call 3    inputs copied into buffers;             replayed;  outputs given out

Parameters and buffers (and what a forward kept for its backward) are read where they are: they are known by address,
and each set of addresses has captures of its own (`places`): one graph may be that of every layer.
All other inputs are copied into memory that the capture reads, and later writes over, small ones in one launch; but
results of other captures, which lie at the same place in every step, are read there, and large results of other graphs
once they have been seen there twice.

Results are safe: no later call changes what the program still holds. Large results, gradients and what a forward keeps
for its backward are given out as they are, in the capture's memory, and as long as any of it lives, that capture is not
replayed. A loop that holds one result while it computes the next gets a second capture, and the two take turns; with
`SLOTS` of them in use, results come from a capture that copies them out. Small results are copied: a loss that is held
must not hold a whole step's memory. A program that holds large results or gradients of one training step while it runs
the next forward, to accumulate them, say, gets copies of these too.

Memory: all inference captures of one stream share one pool, since nothing in it but results outlives a call; results
that lie where another capture wrote before are copied out, as its replays write there again. A training step holds a
pool for each of its forward captures, shared with the backward that belongs to it, which writes its own values over
what it has read of the forward's.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch

from ....rewrites import compat
from ....rewrites.compat.memory import storage_reference
from ....rewrites.reason import Reason
from ..calls import Boxed
from .capture import GIVEN, Capture, Read, looks_at
from .device import Device
from .memory import GIVEN_OUT, layout, lies_in, memory, size_of, within
from .places import CapturesByAddress
from .pool import MemoryPool

logger = logging.getLogger("regraft")

SLOTS = 4  # captures of one set of sizes and addresses, while results of others are in use
_TRIES = 4  # calls in which large results of other graphs are waited for, to lie where they have been before
_BOUND = 2  # captures that read such results where they are: the program may hold one while the next is computed
_ALL = 1 << 62
_SMALL = 1 << 18  # bytes of a result of an inference graph that is copied out

_ALIVE: weakref.WeakSet[CudaGraphs] = weakref.WeakSet()
_LOCK = threading.RLock()  # captures that share a pool are replayed and read by turns
_INFERENCE_POOLS: weakref.WeakValueDictionary[tuple[torch.device, int], MemoryPool] = weakref.WeakValueDictionary()


def drop_captures() -> None:
    """Give the memory of all captures back, when `torch._dynamo` is reset; what still runs is captured anew."""
    for graphs in list(_ALIVE):
        graphs.clear()


class CudaGraphs:
    """The captures of one compilation, its forward and its backward.

    Args:
        limit: how many sets of sizes are captured; calls of more run as they are.
        note: told of every reason not to capture, once.
        device: of tests.
    """

    def __init__(self, limit: int, note: Callable[[Reason], None], device: Device | None = None) -> None:
        self.limit, self.note, self.device = limit, note, device or Device()
        self.pools: dict[int, MemoryPool] = {}  # of what forwards keep, by address
        self.steady: set[int] = set()  # addresses of static inputs of forwards
        self._graphs: list[_Graphed] = []
        _ALIVE.add(self)

    def clear(self) -> None:
        """Forget all captures, but for those of forwards whose backwards may still come."""
        with _LOCK:
            captures = [c for graph in self._graphs for c in graph.captures]
            pending = {id(c.pool) for c in captures if c.is_pending()}
            for pool in {id(pool): pool for c in captures for pool in (c.pool, c.home)}.values():
                if id(pool) not in pending:
                    self.drop(pool)

    def drop(self, pool: MemoryPool) -> None:
        """Forget a step of which the program holds results."""
        self.pools = {address: p for address, p in self.pools.items() if p is not pool}
        for graph in self._graphs:
            graph.drop(pool)

    def inference(self, call: Boxed, static: frozenset[int]) -> Boxed:
        """An inference graph; `static` are the positions of inputs whose addresses stay."""
        return self._boxed(_Graphed(self, call, static, None))

    def forward(self, call: Boxed, static: frozenset[int], returned: int) -> Boxed:
        """A forward graph; its first `returned` outputs go to the program, the others to the backward."""
        return self._boxed(_Graphed(self, call, static, returned))

    def backward(self, call: Boxed) -> Boxed:
        """A backward graph; it is captured where the forward has been."""
        return self._boxed(_Graphed(self, call, None, None))

    def _boxed(self, graphed: _Graphed) -> Boxed:
        self._graphs.append(graphed)

        def run(args: list[Any]) -> Any:
            return graphed.run(args)

        compat.mark_boxed(run)
        return run


class _Graphed:
    """A compiled graph that is captured; `static` is None where addresses tell which inputs are: in a backward."""

    def __init__(self, owner: CudaGraphs, call: Boxed, static: frozenset[int] | None, returned: int | None) -> None:
        self._owner, self._call, self._static, self._returned = owner, call, static, returned
        self._captures: dict[Any, CapturesByAddress] = {}  # by stream and layouts
        self._chains: dict[Any, list[dict[int, int]]] = {}  # where large results of other graphs lay, as above
        self._rows: list[list[Capture]] = []  # of each set of addresses, in the order of their first use
        self._last = -1  # the row that was used last
        self._waited: set[Any] = set()  # which of these have waited for the graph before to be captured
        self._warm: set[Any] = set()  # numbers that it has run with
        self._noted: set[str] = set()
        self._failed = False
        self._copies = False  # results, large ones and gradients too, in training

    @property
    def captures(self) -> list[Capture]:
        """All that there are now."""
        return [capture for row in self._rows for capture in row]

    def run(self, args: list[Any]) -> Any:
        """The graph on inputs, in boxed convention."""
        device = None
        for x in args:
            if isinstance(x, torch.Tensor):
                device = x.device
                break
        if self._failed or device is None or self._owner.device.is_capturing() or self._is_kept():
            return self._as_it_is(args)
        with _LOCK:
            stream = self._owner.device.stream(device)
            capture = self._made(args, stream) or self._new_capture(args, device, stream)
            if capture is not None:
                return capture.replay(args)
        results = self._as_it_is(args)
        GIVEN.pass_on(results[: self._returned])
        return results

    def _as_it_is(self, args: list[Any]) -> Any:
        """The graph without a capture. What a forward's capture keeps is held until all that reads it is launched."""
        pools = self._owner.pools
        held = [x for x in args if isinstance(x, torch.Tensor) and x.data_ptr() in pools] if pools else []
        results = self._call(args)
        held.clear()
        return results

    def drop(self, pool: MemoryPool) -> None:
        """Forget all captures in a pool; what the program holds of them it may hold in every step."""
        dropped = [c for c in self.captures if c.pool is pool or c.home is pool]
        self._copies |= any(c.is_held() for c in dropped)
        for places in self._captures.values():
            places.drop(dropped)

    def _is_kept(self) -> bool:
        """Whether the program wants to run this backward again: then what it reads must not be written over."""
        if self._static is not None or not self._owner.device.keeps_graph():
            return False
        self._say("graph-kept", "a backward with retain_graph or create_graph runs as it is")
        return True

    def _made(self, args: list[Any], stream: int) -> Capture | None:
        """A capture that can be replayed now.

        Layers are called in the same order in each step, so that the addresses after those used last come first.
        """
        rows, first = self._rows, self._last + 1
        for at in chain(range(first, len(rows)), range(first)):
            for capture in tuple(rows[at]):
                if not capture.fits(args, stream) or capture.is_pending():
                    continue
                held = capture.is_held() or (self._returned is not None and capture.pool.is_lent())
                if not held:
                    self._last = at
                    return capture
                if self._returned is not None:
                    self._owner.drop(capture.pool)
        return None

    def _new_capture(self, args: list[Any], device: torch.device, stream: int) -> Capture | None:
        """A capture of this call; None where it is to run as it is."""
        addresses = self._addresses(args)
        key = (stream, *(layout(x) for k, x in enumerate(args) if k not in addresses))
        places = self._known(key)
        numbers = tuple(x for x in args if not isinstance(x, torch.Tensor))
        if places is None or numbers not in self._warm:
            self._warm.add(numbers)
            return None
        captures = self._at(places, addresses, args)
        if captures is None:
            return None
        chained = self._chained((key, *addresses.items()), args, addresses, len(captures))
        pool = self._pool(device, stream, addresses)
        if chained is None or pool is None:
            return None
        if len(captures) >= SLOTS and (self._returned is not None or captures[-1].gives_nothing):
            self._say(
                "captures",
                f"{SLOTS} captures of one set of sizes are in use: results of as many calls, or what their backwards "
                "need, are alive",
            )
            return None
        kept = frozenset(k for k, at in addresses.items() if self._static is None and at in self._owner.pools)
        made = self._captured(args, Read(addresses, chained, kept), pool, device, self._limit(len(captures)))
        if made is not None:
            made.stream = stream
            captures.append(made)
            self._last = self._row(captures)
        return made

    def _row(self, captures: list[Capture]) -> int:
        """The position of the captures of one set of addresses."""
        at = next((k for k, row in enumerate(self._rows) if row is captures), None)
        if at is not None:
            return at
        self._rows.append(captures)
        return len(self._rows) - 1

    def _limit(self, others: int) -> int:
        """Bytes up to which results of the program are copied out, in a capture beside so many."""
        if self._static is not None and self._returned is None:
            return _SMALL if others < SLOTS - 1 else _ALL
        if self._copies or others >= SLOTS - 1:
            return _ALL
        return 0 if self._static is None else GIVEN_OUT - 1

    def _addresses(self, args: Sequence[Any]) -> dict[int, int]:
        """The addresses of the inputs that are read in place, by position."""
        if self._static is not None:
            return {k: args[k].data_ptr() for k in self._static if isinstance(args[k], torch.Tensor)}
        pools, steady = self._owner.pools, self._owner.steady
        found = {k: x.data_ptr() for k, x in enumerate(args) if isinstance(x, torch.Tensor)}
        return {k: at for k, at in found.items() if at in pools or at in steady}

    def _chained(self, key: Any, args: Sequence[Any], addresses: dict[int, int], others: int) -> dict[int, int] | None:
        """The addresses of other graphs' results that this capture is to read there; None to wait with it."""
        moving = [(k, x) for k, x in enumerate(args) if k not in addresses]
        captured = {k: x.data_ptr() for k, x in moving if others == 0 and GIVEN.is_captured(x)}
        if others == 0 and key not in self._waited and any(GIVEN.is_passing(x) for k, x in moving if k not in captured):
            self._waited.add(key)  # the graph before this one is captured when it runs again
            return None
        large = {k: x.data_ptr() for k, x in moving if k not in captured and x in GIVEN}
        if not large or others >= _BOUND:
            return captured
        seen = self._chains.setdefault(key, [])
        if large in seen:
            return captured | large
        seen.append(large)
        return captured if len(seen) > _TRIES else None

    def _known(self, key: Any) -> CapturesByAddress | None:
        """The captures of one set of sizes; None for one too many."""
        if key not in self._captures:
            if len(self._captures) >= self._owner.limit:
                self._say("many-sizes", f"{self._owner.limit} sets of sizes are captured; further ones run as they are")
                return None
            self._captures[key] = CapturesByAddress(self._tell)
        return self._captures[key]

    def _at(self, places: CapturesByAddress, addresses: dict[int, int], args: Sequence[Any]) -> list[Capture] | None:
        """The captures of what lies at these addresses; None for a set too many, or one that may not come again."""
        if places.is_full:
            dead = places.dead()
            self._rows, self._last = [row for row in self._rows if row and row[0] not in dead], -1
            for capture in dead if self._returned is not None else ():
                self._owner.drop(capture.pool)
        return places.at(addresses, args)

    def _pool(self, device: torch.device, stream: int, addresses: dict[int, int]) -> MemoryPool | None:
        """The pool of a capture: of a backward, that of its forward; None where that was not captured."""
        if self._static is None:
            return next((self._owner.pools[at] for at in addresses.values() if at in self._owner.pools), None)
        if self._returned is not None:
            return MemoryPool(self._owner.device.new_pool())
        shared = _INFERENCE_POOLS.get((device, stream))
        if shared is None:
            shared = _INFERENCE_POOLS[device, stream] = MemoryPool(self._owner.device.new_pool())
        return shared

    def _captured(
        self, args: list[Any], read: Read, home: MemoryPool, device: torch.device, limit: int
    ) -> Capture | None:
        gpu = self._owner.device
        pool = home if not home.spent else MemoryPool(gpu.new_pool())
        moving = {k: x for k, x in enumerate(args) if isinstance(x, torch.Tensor) and k not in read.all}
        try:
            with torch.inference_mode(False), torch.no_grad():  # results may be used in another mode later
                staying: list[Any] = [None if k in moving else x for k, x in enumerate(args)]
                written = gpu.unused(pool.handle) if self._static is not None else []
                taken = pool.take(staying) if read.kept else staying
                kept = [storage_reference(taken[k]) for k in read.kept]
                recording = gpu.capture(self._call, taken, pool.handle, device, moving)
                results, given = recording.results, [recording.inputs.get(k, x) for k, x in enumerate(args)]
                looked_at = within(results, {reference.cdata for reference in kept})
                chains = looks_at(results, [args[k] for k in read.chained])  # it would keep them alive, at their place
                if self._returned is not None and not chains:
                    results = self._kept_by(pool, results, given)
        except Exception as error:  # whatever cannot be recorded runs as it is
            self._failed = True
            logger.info("regraft: a graph runs without CUDA graphs, its capture failed: %s", error)
            self._say("capture-failed", f"{type(error).__name__}: {error}")
            return None
        if chains:
            return self._captured(args, read._replace(chained={}), home, device, limit)

        def copies(x: torch.Tensor) -> bool:
            return size_of(x) <= limit or lies_in(x, written) or memory(x) in looked_at

        capture = Capture(recording, pool, read, given, results, self._returned, copies)
        if self._returned is not None:
            self._owner.pools.update((x.data_ptr(), pool) for x in capture.kept if size_of(x))
            self._owner.steady.update(read.addresses.values())
        if self._static is None:
            capture.home = home
            home.lends(capture)
        return capture

    def _kept_by(self, pool: MemoryPool, results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """A forward's results, with what it keeps of its own held by the pool; the program holds what it is given."""
        inputs = {memory(x) for x in given}
        own = {id(x): x for x in results[self._returned :] if isinstance(x, torch.Tensor) and memory(x) not in inputs}
        pool.keep(own.values())
        borrowed = {key: self._owner.device.borrowed(x) for key, x in own.items()}
        return [*results[: self._returned], *(borrowed.get(id(x), x) for x in results[self._returned :])]

    def _say(self, code: str, message: str) -> None:
        self._tell(Reason(code, message))

    def _tell(self, reason: Reason) -> None:
        if reason.code not in self._noted:
            self._noted.add(reason.code)
            self._owner.note(reason)
