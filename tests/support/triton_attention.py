"""The attention template in Triton without a GPU: from an eager function to a kernel, interpreted or compiled.

agrees(attention, q, k, v)                          interpreted; as near to float64 as eager, NaN and infinities alike
compiled(attention_triton(found), 90)               machine code for Hopper, with what it takes of the GPU
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.codegen.triton import KernelSource
from regraft.compiler.ir.interpreter import allocate
from regraft.compiler.ir.iteration_space import power_of_two
from regraft.compiler.ir.program import Buffer
from regraft.compiler.lowering.arithmetic import op
from regraft.compiler.lowering.core import whole
from regraft.compiler.lowering.ops.random import Stream
from regraft.compiler.prims import threshold
from regraft.compiler.templates.attention.description import Attention
from regraft.compiler.templates.attention.grouped import grouped
from regraft.compiler.templates.attention.match import SOFTMAXES, FoundAttention, match_attention
from regraft.compiler.templates.attention.replacement import matched
from regraft.compiler.templates.attention.sdpa import SDPA, match_sdpa
from regraft.compiler.templates.attention.triton_backward import attention_backward
from regraft.compiler.templates.attention.triton_forward import attention_triton, statistics_buffer
from regraft.compiler.templates.attention.triton_split_keys import split_attention, workspaces
from regraft.compiler.templates.attention.triton_tiles import SplitTile, Tile
from regraft.compiler.templates.common.formula import packet

from .triton_kernels import interpreter

SMALL = Tile(16, 16, 4, 1)


def found_in(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[FoundAttention, torch.fx.GraphModule]:
    """The attention of a function, in its graph."""
    with torch.no_grad():
        traced = make_fx(function, tracing_mode="fake")(*inputs)
    traced.graph.eliminate_dead_code()
    for node in traced.graph.nodes:
        if packet(node) in SOFTMAXES or packet(node) in SDPA:
            found = match_sdpa(node) if packet(node) in SDPA else match_attention(node)
            assert isinstance(found, FoundAttention), found
            return found, traced
    raise AssertionError("no softmax")


@dataclass
class Ran:
    """What the kernel gave, and what it was."""

    result: torch.Tensor
    statistics: torch.Tensor
    source: KernelSource
    attention: Attention
    inputs: list[torch.Tensor]


def on_gpu(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The graph of a function, as if its tensors lay on a GPU."""
    with FakeTensorMode(), torch.no_grad():
        module = make_fx(function)(
            *(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") for x in inputs)
        )
    module.graph.eliminate_dead_code()
    return module


def found_on_gpu(function: Callable[..., Any], inputs: Sequence[Any]) -> FoundAttention:
    """The first attention of a function, as if its tensors lay on a GPU."""
    for node in on_gpu(function, *inputs).graph.nodes:
        found = matched(node)
        if found is not None:
            assert isinstance(found, FoundAttention), found
            return found
    raise AssertionError("no attention")


def run_on_gpu(function: Callable[..., Any], inputs: Sequence[Any], tile: Tile = SMALL) -> torch.Tensor:
    """The result of the kernel of a function's first attention as found on a GPU, interpreted on a CPU."""
    found = found_on_gpu(function, inputs)
    values = dict(zip(found.output.graph.find_nodes(op="placeholder"), inputs, strict=True))
    for node in found.output.graph.nodes:
        if node.op == "call_function" and all(source in values for source in node.all_input_nodes):
            if not set(found.inputs) - values.keys():
                break
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **{k: "cpu" if k == "device" else x for k, x in kwargs.items()})
    result = allocate(found.attention.out.buffer, {})
    source = attention_triton(found.attention, tile)
    (launch,) = source.launches
    given = [_memory(x) for x in (*(values[node] for node in found.inputs), result)]
    (after,) = interpreter().run(source.text, [(launch.name, launch.programs, given)])
    _memory(result).copy_(after[-1])
    return result


class _Inputs(torch.fx.Interpreter):
    """Runs a graph up to its attention: what the kernel reads, as it comes."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)

    def of(self, nodes: Sequence[torch.fx.Node], inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The values of nodes."""
        with torch.no_grad():
            self.run(*inputs)
        return [self.env[node] for node in nodes]


@dataclass(frozen=True)
class Dropout:
    """Weights are dropped with probability `p`, as ``regraft.bernoulli`` of `seed` draws them."""

    p: float
    seed: int
    fast: bool = False

    @property
    def kept(self) -> float:
        """What the others are multiplied with."""
        return 1 / (1 - self.p)

    def mask(self, sizes: Sequence[int]) -> torch.Tensor:
        """Which weights stay."""
        return torch.ops.regraft.bernoulli(list(sizes), 1 - self.p, torch.tensor(self.seed), self.fast)

    def of(self, attention: Attention) -> Attention:
        """An attention with it, as the lowering of the operator writes the mask."""
        seed = Buffer("seed", torch.int64, (), (), attention.out.buffer.device)
        variables = (*attention.lead, attention.row, attention.key)
        stream = Stream([v.extent for v in variables], whole(seed))
        places, limit = tuple(v.index() for v in variables), threshold(1 - self.p)
        bits = stream.hashed(places) if self.fast else stream.word(places)
        keep = op("lt", bits, limit - 2**31 if self.fast else limit)
        return replace(attention, keep=keep, kept=self.kept, buffers=(*attention.buffers, seed))


def run(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    tile: Tile = SMALL,
    half: Any = None,
    dropout: Dropout | None = None,
) -> Ran:
    """The kernel of a function's attention, interpreted.

    Args:
        half: take operands to be of this dtype, where the matcher knows others only.
        dropout: of the weights.
    """
    found, module = found_in(function, inputs)
    attention, tensors = found.attention, _Inputs(module).of(found.inputs, inputs)
    if dropout is not None:
        attention, tensors = dropout.of(attention), [*tensors, torch.tensor(dropout.seed)]
    if half is not None:
        attention = with_dtype(attention, half)
        tensors = [x.to(b.dtype) for x, b in zip(tensors, attention.reads, strict=True)]
    result, statistics = allocate(attention.out.buffer, {}), allocate(statistics_buffer(attention), {})
    source = attention_triton(attention, tile, statistics=True)
    (launch,) = source.launches
    given = [_memory(x) for x in (*tensors, result, statistics)]
    (after,) = interpreter().run(source.text, [(launch.name, launch.programs, given)])
    for x, filled in zip((result, statistics), after[-2:], strict=True):
        _memory(x).copy_(filled)
    return Ran(result, statistics, source, attention, tensors)


def run_split(
    function: Callable[..., Any], inputs: Sequence[Any], splits: int = 3, keys: int = 16, early: bool = False
) -> Ran:
    """The kernel of a function's attention that goes through keys in parts, interpreted.

    Heads that share keys are rows.
    """
    found, module = found_in(function, inputs)
    attention, tensors = grouped(found.attention), _Inputs(module).of(found.inputs, inputs)
    tile = SplitTile(max(16, power_of_two(attention.row.extent)), keys, 4, 2, splits)
    source = split_attention(attention, tile, early=early)
    result = allocate(attention.out.buffer, {})
    memory = [_memory(x) for x in (*tensors, result, *(allocate(b, {}) for b in workspaces(attention, tile)))]
    for launch in source.launches:
        (memory,) = interpreter().run(source.text, [(launch.name, launch.programs, memory)])
    _memory(result).copy_(memory[len(tensors)])
    return Ran(result, result, source, attention, tensors)


def gradients(ran: Ran, gradient: torch.Tensor, tile: Tile = SMALL) -> list[torch.Tensor]:
    """Gradients of q, k, v, scores and the sink (if any) by the kernels of the backward pass, interpreted.

    Each has the lead loops, nothing is added up.
    """
    has_sink = ran.attention.sink is not None
    backward = attention_backward(ran.attention, tile, scores=True, sinks=has_sink)
    assert backward.scores is not None
    results = (*backward.results, backward.scores, *([backward.sinks] if backward.sinks else []))
    reads = [b.name for b in ran.attention.reads]
    memory = dict(zip(reads, ran.inputs, strict=True))
    memory |= {ran.attention.out.buffer.name: ran.result, "statistics": ran.statistics}
    memory |= {b.name: allocate(b, {}) for b in (backward.gradient, backward.delta, *results)}
    memory[backward.gradient.name].copy_(gradient.reshape(memory[backward.gradient.name].shape))
    memory[backward.scores.name].zero_()
    for launch in backward.source.launches:
        given = [_memory(memory[name]) for name in launch.params]
        (after,) = interpreter().run(backward.source.text, [(launch.name, launch.programs, given)])
        for name, x in zip(launch.params, after, strict=True):
            _memory(memory[name]).copy_(x)
    return [memory[b.name] for b in results]


def with_dtype(attention: Attention, dtype: torch.dtype) -> Attention:
    """The attention with operands and results of a dtype."""
    operands = {
        name: replace(x, buffer=replace(x.buffer, dtype=dtype))
        for name, x in (("q", attention.q), ("k", attention.k), ("v", attention.v), ("out", attention.out))
    }
    return replace(attention, **operands)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,))


def agrees(function: Callable[..., torch.Tensor], inputs: Sequence[Any], slack: float = 4.0, **options: Any) -> Ran:
    """Assert that the kernel, interpreted, is as near to float64 as eager is; NaN and infinities are eager's."""
    return as_near_as_eager(run(function, inputs, **options), function, inputs, slack)


def as_near_as_eager(ran: Ran, function: Callable[..., Any], inputs: Sequence[Any], slack: float = 4.0) -> Ran:
    """The same of a kernel that was run."""
    eager = function(*inputs)
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    ours = ran.result.reshape(eager.shape)
    finite = eager.isfinite()
    assert torch.equal(ours.isnan(), eager.isnan()), ran.source.text
    assert torch.equal(ours[~finite & ~eager.isnan()], eager[~finite & ~eager.isnan()]), ran.source.text
    if finite.any():
        allowed = slack * float((eager.double() - exact)[finite].abs().max()) + 2e-6
        assert float((ours.double() - exact)[finite].abs().max()) <= allowed, ran.source.text
    return ran
