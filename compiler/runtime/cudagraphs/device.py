"""The calls of torch and of the GPU that CUDA graphs need; tests put others in their place."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ....rewrites import compat
from ....rewrites.compat import memory
from ..calls import Boxed
from ..gc_pause import uncollected
from .memory import same_memory


class Recording(NamedTuple):
    """The record of a capture.

    Args:
        graph: the launches, to be replayed.
        results: what the call gave.
        buffers: the memory from which a replay reads the inputs that move, by position; it is not kept alive, since
            later launches of the recording may write over what has been read.
        inputs: those of these inputs that are results as well.
    """

    graph: Any
    results: Any
    buffers: dict[int, torch.Tensor]
    inputs: dict[int, torch.Tensor]


class Device:
    """Streams, pools of memory, and captures of a GPU."""

    def stream(self, device: torch.device) -> int:
        """The current stream of a device."""
        return memory.cuda_stream()(device.index or 0)

    def is_capturing(self) -> bool:
        """Whether the user is capturing already."""
        return torch.cuda.is_current_stream_capturing()

    def keeps_graph(self) -> bool:
        """Whether the backward that is running may be run again."""
        return compat.keeps_graph()

    def new_pool(self) -> Any:
        """A handle of memory that captures may share."""
        return torch.cuda.graph_pool_handle()

    def unused(self, handle: Any) -> list[range]:
        """Addresses of a pool's memory that nothing holds: what its captures wrote in between, and will write again."""
        return memory.unused_memory(handle)

    def borrowed(self, x: torch.Tensor) -> torch.Tensor:
        """The same memory as a tensor that does not keep it."""
        return memory.borrowed(x)

    def capture(
        self, call: Boxed, given: list[Any], pool: Any, device: torch.device, moving: Mapping[int, torch.Tensor]
    ) -> Recording:
        """Record what `call` launches on these inputs, without running it.

        Empties the list: memory that it alone holds is free for the rest of the capture once it has been read.

        Args:
            call: what is recorded.
            given: its inputs.
            pool: where it allocates.
            device: the GPU.
            moving: inputs that lie elsewhere in each call, by position; the capture reads them from memory of the pool,
                laid out as they are.

        Raises:
            Exception: what was called cannot be recorded; nothing has run.
        """
        graph = torch.cuda.CUDAGraph()
        current, side = torch.cuda.current_stream(device), _side_stream(device)
        torch.cuda.empty_cache()  # so that the pool can grow
        memory.clear_cublas_workspaces()
        side.wait_stream(current)
        # Garbage may own graphs and events, which must not be freed during a capture.
        with torch.cuda.device(device), torch.cuda.stream(side), uncollected():
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                buffers, read = self.own_memory(given, moving)
                results = call(given)
            except BaseException:
                with contextlib.suppress(Exception):
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(side)
        memory.clear_cublas_workspaces()
        alive = {k: x for k, reference in read.items() if (x := reference()) is not None}
        return Recording(graph, results, buffers, alive)

    def own_memory(
        self, given: list[Any], moving: Mapping[int, torch.Tensor]
    ) -> tuple[dict[int, torch.Tensor], dict[int, weakref.ref[torch.Tensor]]]:
        """Put memory of the pool in the place of inputs that move, kept alive by the list alone."""
        made = {k: same_memory(x) for k, x in moving.items()}
        for k, x in made.items():
            given[k] = x
        buffers = {k: self.borrowed(x) if x.numel() else x for k, x in made.items()}
        return buffers, {k: weakref.ref(x) for k, x in made.items()}


@functools.cache
def _side_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)
