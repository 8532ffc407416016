"""Kernels in place of an attention and its backward, in a joint graph.

    %call  = attention_3f2a(%q, %k, %v, %bias)                                          out, statistics
    %first = attention_queries_81c0(%q, %k, %v, %bias, %out, %grad_out, %statistics)    delta, dq, ds
    %then  = attention_keys_77e1(%q, %k, %v, %bias, %grad_out, %delta)                  dk, dv

The forward keeps q, k, v, the operands of `f`, the result, and two numbers a row.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .....rewrites.compat.memory import allows_tf32
from .....rewrites.editor import infer
from ....autograd.joint_graph import mark_recomputed
from ....codegen.triton import KernelSource, LaunchText
from ....codegen.triton.compiler import Unit
from ....codegen.triton.source import module_text
from ....ir.program import Buffer
from ...common.cpp_call import Layout
from ...common.formula import is_move
from ...common.replacing import Copies
from ...common.triton_call import TritonTemplateKernel
from ..description import Attention
from ..replacement import RULE
from ..triton_backward import attention_backward
from ..triton_forward import attention_triton, statistics_buffer
from ..triton_tiles import Tile
from .forward_backward import Pair, first_of

aten = torch.ops.aten
_FORWARD_PRODUCTS, _QUERIES_PRODUCTS, _KEYS_PRODUCTS = 2, 3, 4


@dataclass(frozen=True)
class TrainingKernels:
    """The kernels of an attention's forward and backward, as one program of their operands.

    Args:
        forward: gives the result and the statistics.
        queries: gives row sums, the gradient of q, and of `f`'s values where it is wanted.
        keys: gives the gradients of k and v.
        results: which gradients the graph wants, in its order.
        sink: the dtype of the sink's gradient, where that is wanted.
    """

    forward: TritonTemplateKernel
    queries: TritonTemplateKernel
    keys: TritonTemplateKernel
    results: tuple[str, ...]
    sink: torch.dtype = torch.float32

    @property
    def all(self) -> tuple[TritonTemplateKernel, ...]:
        """The kernels, in the order in which they run."""
        return self.forward, self.queries, self.keys

    @property
    def units(self) -> list[Unit]:
        """The functions to compile."""
        return [unit for kernel in self.all for unit in kernel.units]

    @property
    def identity(self) -> str:
        """The sources and the layouts, which tell kernels apart."""
        return "\n".join(kernel.identity for kernel in self.all)

    def build(self) -> None:
        """Compile the kernels and load them."""
        for kernel in self.all:
            kernel.build()

    def __call__(self, gradient: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The result and the gradients, given the gradient of the result and the operands (and more, ignored)."""
        reads = tensors[: len(self.forward.inputs)]
        out, statistics = self.forward(*reads)
        delta, *by_queries = self.queries(*reads, out, gradient, statistics)
        by_keys = self.keys(*reads, gradient, delta)
        found = dict(zip(_written_first(self.results), by_queries, strict=True))
        found |= dict(zip(("k", "v"), by_keys, strict=True))
        if "sinks" in found:
            found["sinks"] = found["sinks"].unsqueeze(-1).to(self.sink)
        return [out, *(found[name] for name in self.results)]


def training_kernels(pair: Pair, attention: Attention, tiles: tuple[Tile, Tile], device: int) -> TrainingKernels:
    """The kernels of a pair.

    Args:
        pair: the attention and backward that they replace.
        attention: its attention, buffers perhaps in other strides.
        tiles: of the forward, and of the backward.
        device: the index of the GPU.

    Raises:
        UnsupportedDtypeError, UnsupportedAttentionError: see `attention_backward`.
    """
    precision = "tf32" if allows_tf32() else "ieee"
    scores, sinks = ("scores" in pair.results), ("sinks" in pair.results)
    forward = attention_triton(attention, tiles[0], statistics=True, precision=precision)
    backward = attention_backward(
        attention, tiles[1], scores=scores, sinks=sinks, places=pair.places, precision=precision
    )
    reads, out, statistics = attention.reads, attention.out.buffer, statistics_buffer(attention)
    dq, dk, dv = backward.results
    first, then = backward.source.launches
    wanted = (backward.delta, dq, backward.scores, backward.sinks)
    by_queries = [buffer for buffer in wanted if buffer is not None]
    sink = pair.results["sinks"].meta["val"].dtype if sinks else torch.float32
    flops = attention.flops // 2
    make = _Maker(device)
    return TrainingKernels(
        make.kernel(forward.launches[0], reads, [out, statistics], _FORWARD_PRODUCTS * flops),
        make.kernel(
            first, [*reads, out, backward.gradient, statistics], by_queries, _QUERIES_PRODUCTS * flops,
            zeros=(2,) if scores and backward.partial else (),
        ),
        make.kernel(then, [*reads, backward.gradient, backward.delta], [dk, dv], _KEYS_PRODUCTS * flops),
        tuple(pair.results), sink,
    )  # fmt: skip


def _written_first(results: Iterable[str]) -> list[str]:
    """The gradients that the backward's first kernel writes beside row sums, in its order."""
    return ["q", *(name for name in ("scores", "sinks") if name in results)]


class _Maker:
    def __init__(self, device: int) -> None:
        self._device = device

    def kernel(
        self,
        launch: LaunchText,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        flops: int,
        zeros: tuple[int, ...] = (),
    ) -> TritonTemplateKernel:
        source = KernelSource(module_text([launch.text]), (launch,))
        taken, given = (tuple(map(Layout.of, some)) for some in (inputs, outputs))
        return TritonTemplateKernel(
            launch.name, "attention", source, source, taken, given, self._device, flops, zeros=zeros
        )


class PairReplacer:
    """Puts kernels in place of pairs.

    Args:
        graph: a joint graph, changed in place.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._copies = Copies()

    def replace(self, pair: Pair, kernels: TrainingKernels) -> dict[fx.Node, fx.Node]:
        """Call the kernels instead of a pair's nodes; gives the new node for each of their results."""
        found = pair.found
        layouts = zip(found.inputs, kernels.forward.inputs, strict=False)
        reads = [self._copies.of(x, layout.strides) for x, layout in layouts]
        with self._graph.inserting_before(found.output):
            out, statistics = self._call(found.output, kernels.forward, reads, "is_forward")
            given_out = self._copied(out) if _is_returned(found.output) else out
        with self._graph.inserting_before(first_of(*pair.results.values())):
            meant = next(iter(pair.results.values()))
            given = [*reads, out, pair.gradient, statistics]
            delta, *by_queries = self._call(meant, kernels.queries, given, "is_backward")
            dk, dv = self._call(meant, kernels.keys, [*reads, pair.gradient, delta], "is_backward")
            new = dict(zip(_written_first(pair.results), by_queries, strict=True)) | {"k": dk, "v": dv}
            if "sinks" in new:
                new["sinks"] = self._sink(new["sinks"], pair.results["sinks"])
        made = {found.output: given_out} | {node: new[name] for name, node in pair.results.items()}
        for old, other in made.items():
            old.replace_all_uses_with(other)
        for node in reversed(pair.nodes):
            self._graph.erase_node(node)
        self._drop_unread([*by_queries, dk, dv])
        return made

    def _call(self, meant: fx.Node, kernel: TritonTemplateKernel, inputs: Sequence[fx.Node], tag: str) -> list[fx.Node]:
        """A call and its results; all are kept for the backward, where it reads them."""
        call = self._graph.call_function(kernel, tuple(inputs))
        results = [self._graph.call_function(operator.getitem, (call, k)) for k in range(len(kernel.outputs))]
        meta = {key: value for key, value in meant.meta.items() if key not in ("val", "tensor_meta", "recompute")}
        for node in (call, *results):
            node.meta = {**meta, "regraft_rule": RULE, "partitioner_tag": tag}
            node.meta["val"] = infer(call) if node is call else call.meta["val"][node.args[1]]
            if tag == "is_forward":
                mark_recomputed(node, False)
        return results

    def _sink(self, made: fx.Node, meant: fx.Node) -> fx.Node:
        """The sink's gradient as a column."""
        column = self._after(made, aten.unsqueeze.default, made, -1)
        dtype = meant.meta["val"].dtype
        if column.meta["val"].dtype == dtype:
            return column
        return self._after(made, aten._to_copy.default, column, dtype=dtype)

    def _copied(self, out: fx.Node) -> fx.Node:
        """A result for the program, which may write to it: the backward reads the kernel's own."""
        return self._after(out, aten.clone.default, out)

    def _after(self, meant: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self._graph.call_function(target, args, kwargs)
        node.meta = {key: value for key, value in meant.meta.items() if key != "recompute"}
        node.meta["val"] = infer(node)
        return node

    def _drop_unread(self, nodes: Sequence[Any]) -> None:
        for node in nodes:
            if not node.users:
                self._graph.erase_node(node)


def _is_returned(node: fx.Node) -> bool:
    """Whether the graph gives a value back, or a view of it."""
    queue = [node]
    for one in queue:
        if any(user.op == "output" for user in one.users):
            return True
        queue.extend(user for user in one.users if is_move(user) and user not in queue)
    return False
