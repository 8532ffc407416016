"""What a GPU would run of a model, without one: graphs traced on the CPU, moved to a GPU in name, their kernels built.

    model on the CPU  ->  every graph of the backend  ->  a copy whose tensors are CUDA's  ->  its Triton kernels
                          run as it is, on the CPU

The driver is `fake_cuda`'s: machine code is made and loaded, and nothing launched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

from regraft.compiler.autograd.differentiate import GraphKind
from regraft.compiler.backend import Compilation
from regraft.compiler.codegen import triton
from regraft.compiler.codegen.generate import generate_kernels
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.options import Options
from regraft.compiler.templates.common import gpu
from regraft.rewrites.compat.memory import storage_key
from regraft.rewrites.record import Code

from .fake_cuda import with_fake_driver

_CUDA = torch.device("cuda", 0)


class OfflineGpu:
    """A backend for `torch.compile`; `code` says what was generated, `kernels` are all that were built, for Hopper."""

    def __init__(self, monkeypatch: Any) -> None:
        with_fake_driver(monkeypatch)
        self.code: list[Code] = []
        self.kernels: list[Kernel] = []
        self._monkeypatch, self._build = monkeypatch, triton.build
        monkeypatch.setattr(triton, "build", self._recorded)
        monkeypatch.setattr(gpu, "gpu_at", lambda index: gpu.Gpu(0, 0, 0))  # templates have tests of their own

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return _Compilation(module, inputs, self.code)._compile()

    def build_for(self, capability: int) -> None:
        """Build all kernels again, for another GPU."""
        import importlib

        build = importlib.import_module("regraft.compiler.codegen.triton.build")
        self._monkeypatch.setattr(build, "capability", lambda device: capability)
        self._build(self.kernels)

    def _recorded(self, kernels: list[Kernel]) -> list[Any]:
        made = self._build(kernels)
        self.kernels += kernels
        return made


class _Compilation(Compilation):
    def __init__(self, module: fx.GraphModule, inputs: list[Any], code: list[Code]) -> None:
        super().__init__(module, inputs, Options(profit="never"))
        self._made = code

    def _compile_graph(self, module: fx.GraphModule, inputs: Any, kind: GraphKind) -> Callable[..., Any]:
        there = on_cuda(module)
        stages = self._stages
        devices, stages._devices = stages._devices, frozenset({"cuda"})
        stages.lower(there, kind)
        stages._devices = devices
        self._made.append(generate_kernels(there, kind).code)

        def run(args: list[Any]) -> Any:
            given = list(args)
            args.clear()
            with torch.no_grad():
                return module(*given)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def on_cuda(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph with the same calls on a GPU: it can be looked at, not run."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(module.graph, copies))
    memory: dict[int, torch.Tensor] = {}
    for old, new in copies.items():
        new.meta = dict(old.meta)
        if "val" in old.meta:
            new.meta["val"] = tree_map(lambda value: moved(value, memory), old.meta["val"])
        new.args, new.kwargs = (tree_map(elsewhere, given) for given in (new.args, new.kwargs))
    return fx.GraphModule(module, graph)


def moved(value: Any, memory: dict[int, torch.Tensor] | None = None) -> Any:
    """Metadata of the same value on a GPU; what shares memory with a value moved before, by `memory`, does so there."""
    if not isinstance(value, torch.Tensor):
        return value
    with value.fake_mode:  # type: ignore[attr-defined]
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_CUDA)
        # Within a trace, `empty_strided` gives an expanded tensor elements of its own.
        made = made if made.stride() == value.stride() else made.as_strided(value.shape, value.stride())
        first = made if memory is None else memory.setdefault(storage_key(value), made)
        if first is not made:
            made.set_(first.untyped_storage(), value.storage_offset(), value.shape, value.stride())
        return made


def elsewhere(given: Any) -> Any:
    """The argument of the same call on a GPU."""
    return _CUDA if isinstance(given, torch.device) else given
