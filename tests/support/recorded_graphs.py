"""CUDA graphs on the CPU: a device that records calls and replays them into the same memory."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from regraft.compiler.runtime.cudagraphs import (
    capture as cudagraph_capture,
)
from regraft.compiler.runtime.cudagraphs import (
    graphs as cudagraphs,
)
from regraft.compiler.runtime.cudagraphs import (
    memory as cudagraph_memory,
)
from regraft.compiler.runtime.cudagraphs.capture import GIVEN
from regraft.compiler.runtime.cudagraphs.device import Recording
from regraft.compiler.runtime.cudagraphs.graphs import CudaGraphs
from regraft.rewrites import compat


def at_address(x):
    """The same memory, not kept alive: as a GPU knows it."""
    if not isinstance(x, torch.Tensor):
        return x
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    memory = (ctypes.c_float * span).from_address(x.data_ptr())
    return torch.from_numpy(np.ctypeslib.as_array(memory)).as_strided(x.shape, x.stride())


def poison(x):
    x.fill_(torch.nan if x.is_floating_point() else 0)


class Recorded:
    """Replays by calling again, results written to the same memory."""

    def __init__(self, call, given, results, device, own):
        self.call, self.given, self.device, self.own = call, list(map(at_address, given)), device, own
        inputs = {id(x) for x in given if isinstance(x, torch.Tensor) and x.data_ptr() in device.written}
        self.results = [at_address(x) if id(x) in inputs else x for x in results]
        device.written |= {x.data_ptr() for x in results if isinstance(x, torch.Tensor)}

    def replay(self):
        self.device.replays += 1
        made = {x.data_ptr() for x in self.results if isinstance(x, torch.Tensor)}
        with torch.inference_mode():
            for kept, new in zip(self.results, self.call(list(self.given)), strict=True):
                if isinstance(kept, torch.Tensor) and kept.data_ptr() != new.data_ptr():
                    kept.copy_(new)
            for x in self.given:  # what a forward kept has been let go
                if isinstance(x, torch.Tensor) and x.data_ptr() in self.device.lent - made:
                    poison(x)
            seen = {x.untyped_storage().data_ptr() for x in self.results if isinstance(x, torch.Tensor)}
            for x in self.own:  # written over once it has been read
                if x.data_ptr() not in seen:
                    poison(x)


class FakeDevice:
    """Captures compute nothing that is seen: results are poisoned until the first replay."""

    def __init__(self):
        self.captures, self.replays, self.pools, self.capturing, self.broken = [], 0, 0, False, False
        self.current, self.read, self.lent, self.shared = 1, [], set(), False
        self.written = set()  # addresses of results of captures

    def stream(self, device):
        return self.current

    def is_capturing(self):
        return self.capturing

    def keeps_graph(self):
        return compat.keeps_graph()

    def unused(self, pool):
        return [range(1 << 62)] if self.shared else []

    def borrowed(self, x):
        self.lent.add(x.data_ptr())
        return x.detach()

    def new_pool(self):
        self.pools += 1
        return f"pool {self.pools}"

    def capture(self, call, given, pool, device, moving):
        if self.broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        own = {k: cudagraph_memory.same_memory(x) for k, x in moving.items()}
        for k in own:
            given[k] = own[k]
        given, taken = list(given), given
        results = call(taken)
        assert taken == []
        inputs = {x.data_ptr() for x in given if isinstance(x, torch.Tensor)}
        with torch.inference_mode():
            for x in results:
                if isinstance(x, torch.Tensor) and x.data_ptr() not in inputs:
                    poison(x)
        self.captures.append(pool)
        self.read.append([x.data_ptr() for x in given if isinstance(x, torch.Tensor)])
        alive = {k: x for k, x in own.items() if any(x is result for result in results)}
        return Recording(Recorded(call, given, results, self, list(own.values())), results, own, alive)


class Graph:
    """A boxed graph that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, args):
        self.calls += 1
        given = list(args)
        args.clear()
        return self.function(*given)


def graphs(device, limit=8):
    said = []
    made = CudaGraphs(limit, said.append, device)
    made.said = said
    return made


def count_all_as_large(monkeypatch):
    """Every result counts as large; none is known to have been given."""
    monkeypatch.setattr(GIVEN, "_known", {})
    for module in (cudagraph_memory, cudagraph_capture):
        monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setattr(cudagraphs, "GIVEN_OUT", 1)
