"""Constant folding: what follows from weights alone is computed once, while compiling.

    prepare(w):   p = reorder(w)
    graph(x, w):  p = reorder(w);  y = linear(x, p)      ->      graph(x, w):  y = linear(x, constant)

`prepare` stays, so that the constants can be computed anew where weights have changed.

Weights of few bits stay small: what a product would read as a constant with more bytes than the weights behind it is
computed at every call, by the product's own kernel where there is one (`templates.gemm`).

    y = linear(x, int8.to(bfloat16) * scale)     stays
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...patterns.packing import enlarges, is_little
from ...rewrites import compat
from ...rewrites.editor import hold_constant
from ...rewrites.graph import is_tensor, op_name
from ...rewrites.moves import REORDERS, RESIZES
from ...rewrites.purity import is_foldable, returned_storages, storages, tensors_of
from ...rewrites.walk import recompiles
from ..codegen.kernel_call import TemplateCall

MAX_GROWTH = 8  # how many times the bytes of the weights behind it a value may take: bfloat16 in float64 takes 4
SMALL = 1 << 20  # bytes that are always allowed
_MOVES = RESIZES | REORDERS | {"aten.clone"}
_UNPACKING = ("aten.bitwise_and", "aten.__and__", "aten.bitwise_right_shift", "aten.__rshift__")
_PRODUCTS = (
    "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.addmv", "aten.linear", "aten.matmul",
    "aten.convolution", "mkldnn._linear_pointwise", "mkldnn._convolution_pointwise", "mkldnn._reorder_linear_weight",
    "mkldnn._reorder_convolution_weight",
)  # fmt: skip
_TEMPLATES = ("gemm", "convolution")  # kernels of ours that multiply by weights


@dataclass(frozen=True)
class Folded:
    """Constants of a graph, and how to compute them.

    Args:
        constants: attributes of the graph's module, by name.
        prepare: computes them, in order, from `weights`.
        weights: the tensors that `prepare` takes, in order.
        positions: the positions of those among the graph's inputs.
    """

    constants: dict[str, torch.Tensor]
    prepare: fx.GraphModule
    weights: list[torch.Tensor]
    positions: list[int]

    def compute(self, weights: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """The constants that follow from these weights."""
        with compat.plain_eager(), torch.no_grad():
            return list(self.prepare(*weights))

    @property
    def nbytes(self) -> int:
        """Bytes that the constants take, as their shapes tell."""
        return sum(c.numel() * c.dtype.itemsize for c in self.constants.values())


@recompiles
def fold(graph_module: fx.GraphModule, weights: Mapping[fx.Node, torch.Tensor]) -> Folded | None:
    """Replace calls on `weights` alone by constants, in place; None where there are none.

    What is only a view of a weight stays, and so does what the program returns: users may write to that.

    Args:
        graph_module: a functional graph (writes to inputs at its end apart).
        weights: placeholders of the graph that stand for weights, with their values.
    """
    graph = graph_module.graph
    known = _known(graph, weights)
    _keep_small(known)
    _merge_equal(known)
    wanted = _frontier(graph, known, set(weights))
    folded, nodes = _evaluate(graph_module, weights, wanted)
    if not nodes:
        return None
    for node, (name, value) in zip(nodes, folded.constants.items(), strict=True):
        node.replace_all_uses_with(hold_constant(graph_module, name, value, node))
    for node in reversed([n for n in known if n.op != "placeholder"]):
        if not node.users:
            graph.erase_node(node)
    return folded


def _known(graph: fx.Graph, weights: Mapping[fx.Node, torch.Tensor]) -> dict[fx.Node, int]:
    """The nodes whose values are known while compiling, with the bytes of the weights behind each, in order."""
    known: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node in weights:
            known[node] = _nbytes(node)
        elif node.op == "get_attr" and is_tensor(node):
            known[node] = 0
        elif node.op == "call_function" and is_foldable(node) and all(n in known for n in node.all_input_nodes):
            behind = sum(known[n] for n in node.all_input_nodes)
            if _nbytes(node) <= max(SMALL, MAX_GROWTH * behind):
                known[node] = behind
    return known


def _keep_small(known: dict[fx.Node, int]) -> None:
    """Take from the known values those that would be larger constants for a product than the weights behind them."""
    for operand in [n for n in known if any(map(_multiplies, n.users))]:
        cone = _ancestors([operand])
        if operand not in known or not enlarges(operand, list(cone)):
            continue
        for node in cone & known.keys():
            if node.op == "call_function" and not is_little(node) and op_name(node) not in _MOVES:
                del known[node]
    for node in list(known):  # a part of packed bytes is no smaller than the bytes, and there are several
        if op_name(node) in _UNPACKING and not is_little(node):
            del known[node]
    for node in list(known):  # and what would have followed from them
        if not all(n in known for n in node.all_input_nodes):
            del known[node]


def _multiplies(node: fx.Node) -> bool:
    kernel = node.target
    return op_name(node) in _PRODUCTS or (isinstance(kernel, TemplateCall) and kernel.template in _TEMPLATES)


def _nbytes(node: fx.Node) -> int:
    return sum(v.numel() * v.dtype.itemsize for v in tensors_of(node))


def _merge_equal(known: dict[fx.Node, int]) -> None:
    """One call for equal calls on equal values, such as the packing of a weight that two layers share."""
    first: dict[tuple[Any, str], fx.Node] = {}
    for node in list(known):
        if node.op != "call_function":
            continue
        same = first.setdefault((node.target, f"{node.args} {node.kwargs}"), node)
        if same is not node:
            node.replace_all_uses_with(same)
            del known[node]
            node.graph.erase_node(node)


def _frontier(graph: fx.Graph, known: dict[fx.Node, int], weights: set[fx.Node]) -> list[fx.Node]:
    """The known values that calls on other values read, follow from a weight, and are nobody's but the program's."""
    returned = returned_storages(graph)
    weighty = set(weights)
    found = []
    for node in known:
        if any(n in weighty for n in node.all_input_nodes):
            weighty.add(node)
        read = any(user not in known for user in node.users)
        if node in weighty - weights and read and is_tensor(node) and not storages(node) & returned:
            found.append(node)
    return found


def _evaluate(
    graph_module: fx.GraphModule, weights: Mapping[fx.Node, torch.Tensor], wanted: list[fx.Node]
) -> tuple[Folded, list[fx.Node]]:
    """Compute the values of `wanted`, and drop those that are views of a weight."""
    given = list(weights.values())
    values = Folded({}, _prepare(graph_module, list(weights), wanted), given, []).compute(given)
    own = {_memory(value) for value in given}
    kept = [(n, v) for n, v in zip(wanted, values, strict=True) if _memory(v) not in own or _memory(v) is None]
    nodes = [node for node, _ in kept]
    needed = _ancestors(nodes)
    sources = [node for node in weights if node in needed]
    places = {node: i for i, node in enumerate(graph_module.graph.find_nodes(op="placeholder"))}
    folded = Folded(
        constants={f"_frozen{i}": value for i, (_, value) in enumerate(kept)},
        prepare=_prepare(graph_module, sources, nodes),
        weights=[weights[node] for node in sources],
        positions=[places[node] for node in sources],
    )
    return folded, nodes


def _prepare(graph_module: fx.GraphModule, sources: list[fx.Node], wanted: list[fx.Node]) -> fx.GraphModule:
    """The part of a graph that computes `wanted` from `sources`."""
    graph = fx.Graph()
    placed = {node: graph.placeholder(node.name) for node in sources}
    needed = _ancestors(wanted)
    for node in graph_module.graph.nodes:
        if node in needed and node not in placed:
            placed[node] = graph.node_copy(node, placed.__getitem__)
    graph.output(tuple(placed[node] for node in wanted))
    return fx.GraphModule(graph_module, graph)


def _ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    found, todo = set(nodes), list(nodes)
    while todo:
        new = [n for n in todo.pop().all_input_nodes if n not in found]
        found.update(new)
        todo.extend(new)
    return found


def _memory(value: torch.Tensor) -> int | None:
    """The address of a tensor's storage; None for layouts that have no single storage."""
    return value.untyped_storage().data_ptr() if value.layout == torch.strided else None
