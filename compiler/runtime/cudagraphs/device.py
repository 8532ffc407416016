"""The calls of torch and of the GPU that CUDA graphs need; tests put others in their place."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from ....rewrites import compat
from ....rewrites.compat import memory
from ..calls import Boxed
from ..gc_pause import uncollected


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

    def capture(self, call: Boxed, given: list[Any], pool: Any, device: torch.device) -> tuple[Any, Any]:
        """Record what `call` launches on these inputs, without running it: the recording, and what `call` gave.

        Empties the list: memory that it alone holds is free for the rest of the capture once it has been read.

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
                result = call(given)
            except BaseException:
                with contextlib.suppress(Exception):
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(side)
        memory.clear_cublas_workspaces()
        return graph, result


@functools.cache
def _side_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)
