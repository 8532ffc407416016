"""The product template in Triton without a GPU: from a function to a kernel, interpreted or compiled.

agrees(lambda x, w: F.gelu(x @ w), x, w)                interpreted; as near to float64 as eager
on_gpu(function, x, w)                                  its graph, as if the tensors lay on a GPU
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.codegen.triton import KernelSource
from regraft.compiler.ir.interpreter import allocate
from regraft.compiler.ir.program import Buffer
from regraft.compiler.templates.common.formula import packet
from regraft.compiler.templates.common.triton_call import TritonTemplateKernel
from regraft.compiler.templates.gemm.match import FoundProduct, match_gemm
from regraft.compiler.templates.gemm.operands import is_product
from regraft.compiler.templates.gemm.triton_source import gemm_triton
from regraft.compiler.templates.gemm.triton_split_k import workspaces
from regraft.compiler.templates.gemm.triton_tiles import GemmTile

from .triton_kernels import interpreter

SMALL = GemmTile(32, 64, 32, 4, 2)


def on_gpu(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The graph of a function after autograd, of tensors like these on a GPU."""
    with FakeTensorMode(), torch.no_grad():
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") for x in inputs]
        module = make_fx(torch.func.functionalize(function))(*fakes)
    module.graph.eliminate_dead_code()
    return module


def found_in(module: torch.fx.GraphModule, name: str = "", sides: str = "") -> FoundProduct:
    """The first product of a graph (of an operator of that name), with its epilogue, and prologues of operands."""
    node = next(node for node in module.graph.nodes if is_product(node) and packet(node).startswith(name))
    found = match_gemm(node, sides=sides)
    assert isinstance(found, FoundProduct), found
    return found


class Values(torch.fx.Interpreter):
    """Runs a graph, and keeps all values."""

    def __init__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        super().__init__(module, garbage_collect_values=False)
        with torch.no_grad():
            self.run(*inputs)


class Interpreted(torch.fx.Interpreter):
    """Runs a graph of tensors in name on a GPU, with its template kernels interpreted."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(target, TritonTemplateKernel):
            return super().call_function(target, args, {name: x for name, x in kwargs.items() if name != "device"})
        made = [torch.empty_strided(x.sizes, x.strides, dtype=x.dtype) for x in target.outputs]
        held = [memory(x) for x in (*args, *made)]
        for launch in target.source.launches:
            given = [_sent(held[place]) for place in launch.places]
            (after,) = interpreter().run(target.source.text, [(launch.name, launch.programs, given)])
            for place, filled in zip(launch.places, after, strict=True):
                held[place].copy_(filled)
        return made[0] if len(made) == 1 else tuple(made)


def run(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    tile: GemmTile = SMALL,
    processors: int = 3,
    sides: str = "",
) -> tuple[list[torch.Tensor], FoundProduct, KernelSource]:
    """The results of the kernel of a function's product, interpreted."""
    module = on_gpu(function, *inputs)
    found = found_in(module, sides=sides)
    values = Values(module, inputs)
    results, source = interpreted(found, [values.env[node] for node in found.inputs], tile, processors)
    return results, found, source


def interpreted(
    found: FoundProduct, inputs: Sequence[torch.Tensor], tile: GemmTile, processors: int
) -> tuple[list[torch.Tensor], KernelSource]:
    """The results of a product's kernel, given what it reads."""
    source = gemm_triton(found.product, tile, processors)
    return interpret(source, found, inputs, workspaces(found.product, tile))


def interpret(
    source: KernelSource, found: FoundProduct, inputs: Sequence[torch.Tensor], workspaces: Sequence[Buffer] = ()
) -> tuple[list[torch.Tensor], KernelSource]:
    """The results of a kernel, given what it reads, and what memory it needs beside its results."""
    results = [allocate(result.buffer, {}) for result in found.product.results]
    interpret_launches(source, inputs, results, workspaces)
    return results, source


def interpret_launches(
    source: KernelSource, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor], workspaces: Sequence[Buffer]
) -> None:
    """Run all launches of a kernel, which write to `results`."""
    own = [allocate(buffer, {}).fill_(float("nan")) for buffer in workspaces]
    held = [memory(x) for x in (*inputs, *results, *own)]
    for launch in source.launches:
        given = [_sent(held[place]) for place in launch.places]
        (after,) = interpreter().run(source.text, [(launch.name, launch.programs, given)])
        for place, filled in zip(launch.places, after, strict=True):
            if place >= len(inputs):
                held[place].copy_(filled)


def agrees(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor, slack: float = 1.5, **options: Any
) -> tuple[FoundProduct, KernelSource]:
    """Assert that the kernel computes the function, as near to float64 as eager does."""
    (result, *more), found, source = run(function, inputs, **options)
    assert not more
    near(result, function, inputs, slack, source)
    return found, source


def near(
    result: torch.Tensor, function: Callable[..., Any], inputs: Sequence[Any], slack: float, source: KernelSource
) -> None:
    """Assert that a result is as near to float64 as eager's; NaN and infinities alike."""
    eager = function(*inputs)
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert (result.shape, result.dtype, result.stride()) == (eager.shape, eager.dtype, eager.stride())
    finite = eager.isfinite()
    # With AMX, eager's products of 16 bits spread the NaN of one row over two.
    assert any(torch.equal(result.isnan(), wanted.isnan()) for wanted in (eager, exact)), source.text
    assert torch.equal(result[~finite & ~eager.isnan()], eager[~finite & ~eager.isnan()]), source.text
    if finite.any():
        # Where eager's library happens to round no sum of a small result, what float32 holds of one is allowed.
        scale = max(1.0, float(exact[finite].abs().max()))
        allowed = slack * float((eager.double() - exact)[finite].abs().max()) + 1e-6 * scale
        assert float((result.double() - exact)[finite].abs().max()) <= allowed, source.text


def _sent(tensor: torch.Tensor) -> Any:
    """A tensor as it goes to the interpreter."""
    is_float8 = tensor.is_floating_point() and tensor.itemsize == 1
    return (str(tensor.dtype).removeprefix("torch."), tensor.view(torch.uint8)) if is_float8 else tensor


def memory(tensor: torch.Tensor) -> torch.Tensor:
    """All memory of a tensor as one dim."""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,))
