"""Kernels in place of nodes: the call, its operands in the strides for which the kernel is written, what is erased."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import fx

from ....rewrites.purity import erase_dead, is_removable
from .cpp_call import Layout

aten = torch.ops.aten


class _Replaced(Protocol):
    @property
    def nodes(self) -> tuple[fx.Node, ...]: ...

    @property
    def output(self) -> fx.Node: ...


def replace_by_call(
    graph: fx.Graph,
    found: _Replaced,
    inputs: Sequence[fx.Node],
    kernel: Callable[..., Any],
    place: fx.Node,
    rule: str,
    kept: fx.Node | None = None,
) -> fx.Node:
    """Call a kernel instead of the nodes that were found.

    Args:
        graph: changed in place.
        found: what the kernel replaces.
        inputs: the operands of the kernel.
        kernel: gives the value of `found.output`, and then that of `kept`, if there is one.
        place: the node before which it is called.
        rule: the name of the template's pass.
        kept: another of the replaced nodes that is read by others, too.
    """
    with graph.inserting_before(place):
        call = graph.call_function(kernel, tuple(inputs))
        call.meta = {**found.output.meta, "regraft_rule": rule}
        if kept is None:
            found.output.replace_all_uses_with(call)
        else:
            _unpack(call, (found.output, kept), rule)
    erase_replaced(graph, [*found.nodes, found.output])
    return call


def _unpack(call: fx.Node, nodes: Sequence[fx.Node], rule: str) -> None:
    call.meta["val"] = tuple(node.meta["val"] for node in nodes)
    for place, node in enumerate(nodes):
        item = call.graph.call_function(operator.getitem, (call, place))
        item.meta = {**node.meta, "regraft_rule": rule}
        node.replace_all_uses_with(item)


def erase_replaced(graph: fx.Graph, nodes: Sequence[fx.Node]) -> None:
    """Erase nodes that have no readers left, and the nodes that only they read.

    Replaced nodes are erased even if their operator may use random numbers: these calls do not.
    """
    replaced = set(nodes)
    calls = (node for node in nodes if node.op == "call_function")
    erase_dead(graph, calls, lambda node: node.op == "call_function" and (node in replaced or is_removable(node)))


class Copies:
    """Copies of tensors in other strides, shared by all kernels of a graph."""

    def __init__(self) -> None:
        self._made: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}

    def of(self, node: fx.Node, strides: tuple[int, ...]) -> fx.Node:
        """The tensor in these strides: the tensor itself if it has them."""
        if tuple(node.meta["val"].stride()) == strides:
            return node
        if (node, strides) not in self._made:
            self._made[node, strides] = copied(node, strides)
        return self._made[node, strides]

    def of_all(self, nodes: Sequence[fx.Node], layouts: Sequence[Layout]) -> tuple[fx.Node, ...]:
        """The tensors in these layouts."""
        return tuple(self.of(x, layout.strides) for x, layout in zip(nodes, layouts, strict=True))


def copied(node: fx.Node, strides: Sequence[int]) -> fx.Node:
    """A copy of a tensor in other (dense) strides, right after the tensor: `clone` between two permutations."""
    sizes = node.meta["val"].shape
    # A dim of size 1 goes inside of the dim with the same stride.
    dims = sorted(range(len(strides)), key=lambda d: (-strides[d], sizes[d] == 1))
    before = node.next
    while before.op in ("placeholder", "get_attr"):
        before = before.next
    with node.graph.inserting_before(before):
        turned = _call(aten.permute.default, node, dims)
        cloned = _call(aten.clone.default, turned, memory_format=torch.contiguous_format)
        return _call(aten.permute.default, cloned, [dims.index(d) for d in range(len(dims))])


def _call(target: Any, source: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
    made = source.graph.call_function(target, (source, *args), kwargs)
    made.meta = {**source.meta, "val": target(source.meta["val"], *args, **kwargs)}
    return made
