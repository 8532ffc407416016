"""An attention of a joint graph with its backward: the nodes that kernels replace, and those that must stay.

%out = ...                                    the forward's result
%dv, %dq, %dk, %ds = ...                      gradients, each a matrix for every lead iteration, wherever it lies
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .....rewrites.compat import OpOverload, is_mutable
from .....rewrites.reason import Reason
from ....ir.index.index import Var
from ....lowering.sizes import Unlowered
from ...common.formula import Formulas, packet, plain_load
from ..description import Attention, Operand, address, operand
from ..gradient_layout import Places
from ..match import FoundAttention, at, made

SAME = ("aten.detach", "aten.alias")


class NoBackwardError(Exception):
    """An attention whose backward the kernels do not compute."""

    def __init__(self, code: str, message: str, *nodes: fx.Node) -> None:
        super().__init__(message)
        self.reason = Reason(code, message, nodes)


@dataclass(frozen=True)
class Pair:
    """An attention, and the nodes that compute its gradients.

    Args:
        found: the forward.
        gradient: the node that holds the gradient of the result.
        places: where gradients are read and written.
        results: the gradients that the graph computes: ``"q"``, ``"k"``, ``"v"``, ``"scores"`` (that of `f`'s values).
        nodes: all that goes, the results included, in the order of the graph.
    """

    found: FoundAttention
    gradient: fx.Node
    places: Places
    results: Mapping[str, fx.Node]
    nodes: tuple[fx.Node, ...]


def root(node: Any) -> Any:
    """The node that a node is another name of."""
    while isinstance(node, fx.Node) and packet(node) in SAME:
        node = node.args[0]
    return node


def read_operand(node: fx.Node, places: tuple[Any, ...], row: Var, column: Var) -> tuple[fx.Node, Operand]:
    """The place of a tensor's matrices in memory, and the node whose memory it is.

    Args:
        node: the tensor.
        places: indices into it, of the lead variables, `row` and `column`.
        row: the variable of the matrices' rows.
        column: the variable of their columns.
    """
    formulas = Formulas()
    for tensor in (formulas.value(node), formulas.leaf(node)):
        load = plain_load(tensor.at(places))
        source = None if load is None else formulas.leaves.get(load.buffer)
        if load is None or source is None or source.meta["val"].dtype != node.meta["val"].dtype:
            continue
        buffer = formulas.leaf(source).buffer
        found = operand(buffer, address(buffer, load.indices), row, column)
        if found is not None:
            return source, found
    raise Unlowered("arguments", f"{node.name} cannot be read in place")


def written_operand(node: fx.Node, places: tuple[Any, ...], row: Var, column: Var) -> Operand:
    """The places of a result's matrices: in memory of the node's own."""
    buffer = made(node)
    found = operand(buffer, address(buffer, places), row, column)
    if found is None or not _is_disjoint(node.meta["val"]):
        raise NoBackwardError("gradient-layout", f"{node.name} cannot be written in place", node)
    return found


def _is_disjoint(value: torch.Tensor) -> bool:
    """Whether every element has a place of its own."""
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(value.stride(), value.shape, strict=True) if n != 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def heads_of(attention: Attention) -> tuple[Any, ...]:
    """The lead variables as indices."""
    return tuple(map(at, attention.lead))


def variables_of(attention: Attention) -> tuple[Var, Var, Var, Var]:
    """Rows, keys, columns of q and k, and columns of v."""
    return attention.row, attention.key, Var("d", attention.depth), Var("e", attention.width)


def first_of(*nodes: fx.Node) -> fx.Node:
    """The first of some nodes, in the order of their graph."""
    return next(node for node in nodes[0].graph.nodes if node in nodes)


def check_order(gradient: fx.Node, results: Iterable[fx.Node]) -> None:
    """Refuse where a result is asked for before the gradient that it follows from is there."""
    first = first_of(gradient, *results)
    if first is not gradient:
        raise NoBackwardError("order", f"{first.name} comes before {gradient.name}", first, gradient)


def dying(graph: fx.Graph, replaced: Iterable[fx.Node], read: Iterable[fx.Node]) -> dict[fx.Node, None]:
    """The nodes that nobody reads once other nodes stand for `replaced`, `replaced` included; last first.

    Args:
        graph: all nodes.
        replaced: the nodes that go in any case.
        read: the nodes that stay in any case.
    """
    replaced, read = set(replaced), set(read)
    dead: dict[fx.Node, None] = {}
    for node in reversed(graph.nodes):
        # Nodes that had no reader before stay: they may be meant for an attention that follows.
        unread = node not in read and _may_go(node) and node.users and all(user in dead for user in node.users)
        if node in replaced or unread:
            dead[node] = None
    return dead


def _may_go(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if not isinstance(node.target, OpOverload):
        return node.target is operator.getitem
    # Attentions that draw numbers go, too: the calls in their place draw their own.
    return not is_mutable(node.target) and node.target.namespace in ("aten", "prims", "regraft")


def check_gone(pair_nodes: Iterable[fx.Node], dead: Mapping[fx.Node, Any], what: str) -> None:
    """Refuse where something would stay, and be computed beside the kernels."""
    for node in pair_nodes:
        if node not in dead:
            reader = next((user for user in node.users if user not in dead), node)
            raise NoBackwardError("scores-escape", f"{what} ({node.name}) also goes to {reader.name}", reader, node)


__all__ = [
    "SAME",
    "NoBackwardError",
    "Pair",
    "check_gone",
    "check_order",
    "dying",
    "first_of",
    "heads_of",
    "read_operand",
    "root",
    "variables_of",
    "written_operand",
]  # fmt: skip
