"""Whole models as a GPU would run them, without one: every kernel is interpreted on tensors of the CPU.

    gpu = SimulatedGpu(monkeypatch, folder)
    torch.compile(model, backend=gpu)(**inputs)      passes, templates and schedules of a Hopper GPU; forward, backward

Attention gets a GPU's kernels (`cuda_attention`). Other matches before autograd are the CPU's, and so are other calls
of libraries. What a kernel is to write is NaN before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from regraft.compiler.autograd.differentiate import GraphKind
from regraft.compiler.codegen import triton
from regraft.compiler.codegen.generate import generate_kernels
from regraft.compiler.codegen.kernel_call import KernelCall, evaluate
from regraft.compiler.codegen.wrapper.stride_checks import is_doubtful, laid_out, order_of
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.ir.program import Buffer
from regraft.patterns import attention_cuda, attention_kernels
from regraft.rewrites import driver

from . import cuda_attention
from .offline_gpu import on_cuda
from .template_oracle import with_fake_hopper
from .training_attention import GraphInterpreter, TrainingBackend, TrainingCompilation
from .triton_kernels import interpreted, unsupported

aten = torch.ops.aten

# Libraries of GPUs give products in another dtype than that of the operands.
_WIDENED = {
    aten.mm.dtype: lambda a, b, dtype: (a.float() @ b.float()).to(dtype),
    aten.bmm.dtype: lambda a, b, dtype: (a.float() @ b.float()).to(dtype),
    aten.addmm.dtype: lambda x, a, b, dtype: (x.float() + a.float() @ b.float()).to(dtype),
    aten.baddbmm.dtype: lambda x, a, b, dtype: (x.float() + a.float() @ b.float()).to(dtype),
}


class SimulatedGpu(TrainingBackend):
    """A backend for `torch.compile`; `launched` are the kernels that were interpreted, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any) -> None:
        super().__init__(**{"verify": "off", **options})
        with_fake_hopper(monkeypatch, folder)
        self.launched: list[Kernel] = []
        for patterns in (attention_kernels, attention_cuda):
            monkeypatch.setattr(patterns, "device_of", lambda match: "cuda")
        monkeypatch.setattr(driver, "example", lambda fact, value: None)  # there is no memory for it
        monkeypatch.setattr(triton, "build", self._built)
        monkeypatch.setattr(triton, "begin", lambda kernels: None)
        monkeypatch.setattr(KernelCall, "_empty", staticmethod(_unwritten))

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        made = _Compilation(module, inputs, self)
        self.records.append(made.record)
        return made._compile()

    def _built(self, kernels: Sequence[Kernel]) -> list[Callable[..., None]]:
        if refused := {kernel.name: why for kernel in kernels if (why := unsupported(kernel))}:
            raise triton.UnsupportedKernels(refused)
        return [self._noted(kernel) for kernel in kernels]

    def _noted(self, kernel: Kernel) -> Callable[..., None]:
        run = interpreted(kernel)

        def noted(*given: Any) -> None:
            self.launched.append(kernel)
            run(*given)

        return noted


class _Compilation(TrainingCompilation):
    def _compile_graph(self, module: fx.GraphModule, inputs: Any, kind: GraphKind) -> Callable[..., Any]:
        there = on_cuda(module)
        devices, self._stages._devices = self._stages._devices, frozenset({"cuda"})
        self._stages.lower(there, kind)
        self._stages._devices = devices
        made = generate_kernels(there, kind)
        self._told.codes[kind] = made.code
        graph = _Interpreter(fx.GraphModule(there, made.graph))

        def run(args: list[Any]) -> Any:
            given = list(args)
            args.clear()
            with torch.no_grad():
                return graph.run(*given, enable_io_processing=False)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


class _Interpreter(GraphInterpreter):
    def run_node(self, node: fx.Node) -> Any:
        """As wrappers do, lay out what a library made otherwise than metadata says."""
        result, told = super().run_node(node), node.meta.get("val")
        if node.op != "call_function" or not is_doubtful(node.target, told) or not isinstance(result, torch.Tensor):
            return result
        order = order_of(told)
        return result if order is None else laid_out(result, order)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, KernelCall):
            return target(*args)
        if target in cuda_attention.KERNELS:
            return cuda_attention.run(target, args, kwargs)
        if target in _WIDENED:
            return _WIDENED[target](*args)
        return super().call_function(target, args, kwargs)


def _unwritten(buffer: Buffer, sizes: Mapping[str, int]) -> torch.Tensor:
    shape, strides = (tuple(evaluate(n, sizes) for n in part) for part in (buffer.sizes, buffer.strides))
    made = torch.empty_strided(shape, strides, dtype=buffer.dtype)
    return made.fill_(float("nan")) if made.dtype.is_floating_point and 0 not in strides else made.zero_()
