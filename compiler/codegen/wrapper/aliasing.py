"""The values of a functional ATen graph that may share memory, and the last read of each piece of memory.

    mm = aten.mm(x, w); view = aten.view(mm, [8]); exp = aten.exp(view)   ->   {mm, view}, last read by exp
                                                                               {exp}, {x} and {w} not ours

The analysis is conservative: an operator that is not known to return new memory (`FRESH`), or to alias as its schema
declares, merges all its operands and results into one set that the wrapper does not own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx

from ....rewrites.compat import OpOverload, aliasing_arguments, is_mutable
from ....rewrites.graph import TORCH_NAMESPACES, nodes_in, packet_name, val
from ....rewrites.purity import storages
from ..kernel_call import KernelCall

# Operators that always return new memory. Schemas do not tell: `aten.copy` and `aten._unsafe_view` are not annotated,
# but may return their input.
_FRESH_ATEN = """
    abs add addcdiv addcmul ceil clamp clamp_max clamp_min cos div elu eq erf exp expm1 floor fmod ge gelu gt
    hardsigmoid hardswish hardtanh isinf isnan le leaky_relu log log1p logical_and logical_not logical_or lt maximum
    minimum mish mul ne neg pow reciprocal relu remainder round rsqrt rsub sigmoid sign silu sin softplus sqrt square
    sub tanh trunc where bitwise_and bitwise_not bitwise_or bitwise_xor
    gelu_backward hardswish_backward leaky_relu_backward sigmoid_backward silu_backward tanh_backward
    threshold_backward
    all amax amin any argmax argmin cumsum max mean min prod sort sum topk var var_mean
    addmm baddbmm bmm convolution convolution_backward dot linear mm mv
    _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data log_softmax softmax
    _fused_rms_norm layer_norm native_batch_norm native_batch_norm_backward native_group_norm
    native_group_norm_backward native_layer_norm native_layer_norm_backward _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training
    bernoulli native_dropout native_dropout_backward rand rand_like randn randn_like
    cat constant_pad_nd embedding embedding_dense_backward gather index index_put index_select masked_fill scatter
    scatter_add select_backward slice_backward stack tril triu
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward avg_pool2d max_pool2d_with_indices
    max_pool2d_with_indices_backward nll_loss_backward nll_loss_forward
    arange clone empty empty_like full full_like new_empty new_full new_ones new_zeros ones ones_like scalar_tensor
    zeros zeros_like _to_copy
    _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
"""
FRESH = frozenset(
    [f"aten.{name}" for name in _FRESH_ATEN.split()]
    + ["mkldnn._convolution_pointwise", "mkldnn._linear_pointwise"]
    + ["regraft.add_product", "regraft.log_softmax_rows"]
)


@dataclass
class SharedMemory:
    """Values that may share memory.

    Args:
        ours: whether the wrapper owns this memory, and may overwrite it when it is dead.
        first: the position of the first member in graph order; `last`: the position of the last read.
        members: the values, in graph order.
        born: the members that allocate memory; sets of values that may or may not share memory have several.
    """

    ours: bool
    first: int
    last: int = -1
    members: list[fx.Node] = field(default_factory=list)
    born: list[fx.Node] = field(default_factory=list)


class Aliases:
    """The buffers of one graph."""

    def __init__(self, graph: fx.Graph) -> None:
        self.position = {node: i for i, node in enumerate(graph.nodes)}
        self._buffers: dict[fx.Node, SharedMemory] = {}
        self._by_storage: dict[int, fx.Node] = {}
        for node in graph.nodes:
            self._add(node)

    def of(self, node: fx.Node) -> SharedMemory | None:
        """The buffer of a tensor value; None for values without memory of their own (sizes, tuples of new tensors)."""
        return self._buffers.get(node)

    def buffers(self) -> list[SharedMemory]:
        """All buffers, in the order of their first members."""
        return sorted({id(b): b for b in self._buffers.values()}.values(), key=lambda b: b.first)

    def _add(self, node: fx.Node) -> None:
        if node.op == "output":
            self._give_away(node)
            return
        sources, ours = _sources(node)
        sources = [n for n in sources if n in self._buffers]
        if _is_fresh_tuple(node) or not (sources or _holds_tensors(node)):
            return
        mine = self._new(node, ours)
        sources += [other for other in self._same_storage(node) if other is not node]
        if not sources:
            mine.born.append(node)
        for source in sources:
            self._absorb(mine, self._buffers[source])

    def _give_away(self, output: fx.Node) -> None:
        for node in nodes_in(output.args):
            if node in self._buffers:
                self._buffers[node].ours = False

    def _same_storage(self, node: fx.Node) -> list[fx.Node]:
        """Merge values whose metadata shares a storage, which schemas may not declare."""
        if not isinstance(val(node), torch.Tensor):
            return []
        return [self._by_storage.setdefault(storage, node) for storage in sorted(storages(node))]

    def _new(self, node: fx.Node, ours: bool) -> SharedMemory:
        position = self.position[node]
        last = max((self.position[user] for user in node.users), default=position)
        self._buffers[node] = made = SharedMemory(ours, position, last, [node])
        return made

    def _absorb(self, mine: SharedMemory, other: SharedMemory) -> None:
        if other is mine:
            return
        mine.ours = mine.ours and other.ours
        mine.first, mine.last = min(mine.first, other.first), max(mine.last, other.last)
        mine.members = sorted(mine.members + other.members, key=self.position.__getitem__)
        mine.born += other.born
        for member in other.members:
            self._buffers[member] = mine


def _sources(node: fx.Node) -> tuple[list[fx.Node], bool]:
    """The values whose memory `node` may share, and whether the memory remains the wrapper's own."""
    if node.op in ("placeholder", "get_attr"):
        return [], False
    if isinstance(node.target, KernelCall):
        return [], True
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        made = node.args[0] if node.args and packet_name(node.target) == "getitem" else None
        if isinstance(made, fx.Node):
            return [made], True
        return list(node.all_input_nodes), False
    if packet_name(node.target) in FRESH and not is_mutable(node.target):
        return [], True
    if packet_name(node.target) == "aten._unsafe_view":
        return list(node.all_input_nodes), True
    aliased = _annotated(node, node.target)
    if aliased:
        return aliased, True
    # Values that are not tensors cannot alias: sizes, assertions, numbers read from tensors.
    return (list(node.all_input_nodes), False) if _holds_tensors(node) else ([], True)


def _annotated(node: fx.Node, target: OpOverload) -> list[fx.Node]:
    """Arguments that the schema declares as viewed or written; ATen's and prims' schemas are tested."""
    if target.namespace not in TORCH_NAMESPACES:
        return []
    found: list[fx.Node] = []
    for position, name in aliasing_arguments(target):
        found.extend(nodes_in(node.args[position] if position < len(node.args) else node.kwargs.get(name)))
    return found


def _is_fresh_tuple(node: fx.Node) -> bool:
    """Whether the outputs of an operator are separate pieces of memory: each `getitem` then starts a buffer."""
    if isinstance(val(node), torch.Tensor) or node.op != "call_function":
        return False
    if isinstance(node.target, KernelCall):
        return True
    if not isinstance(node.target, OpOverload) or packet_name(node.target) not in FRESH:
        return False
    return all(packet_name(user.target) == "getitem" for user in node.users)


def _holds_tensors(node: fx.Node) -> bool:
    value = val(node)
    if isinstance(value, (list, tuple)):
        return any(isinstance(v, torch.Tensor) for v in value)
    # Without metadata, assume a tensor.
    return value is None or isinstance(value, torch.Tensor)
