"""The gradient of a loss for each row as one number of the backward, times factors for rows that the forward knows.

    loss = (nll * mask).sum() / mask.sum()     ->     grad[i] = (g / mask.sum()) * mask[i]

Gradients of a product's results are then known, but for a number, as soon as the product is: see `loss_in_blocks`.
Factors that all rows share stay in the backward, beside the number: 16 bits hold what is about 1 best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_number, is_tensor, op_name, rank, shape, val
from ...rewrites.moves import ALIASES, COPIES, EXPANDS, RESHAPES
from ...rewrites.purity import may_move
from .zeros import is_zeros

_FACTORS = {"aten.mul": (0, 1), "aten.div": (0,)}  # and the operands that may be the gradient
_PADS = {"aten.select_backward", "aten.slice_backward"}
_KEPT = RESHAPES | EXPANDS | ALIASES | COPIES | _PADS | {"aten.neg", "aten._to_copy"}
_CHOICES = {"aten.where": (1, 2), "aten.masked_fill": (0,)}
# Products of a gradient, the first operand, and a derivative.
_DERIVATIVES = {
    "aten.tanh_backward", "aten.sigmoid_backward", "aten.threshold_backward", "aten.gelu_backward",
    "aten.silu_backward",
}  # fmt: skip


@dataclass(frozen=True)
class RowFactors:
    """A gradient as `root`, one number, and the calls that make the gradient of it, each with this operand's place.

    Args:
        root: the number.
        shared: the calls that multiply it with what all rows share, or divide it by that.
        calls: the others, in order.
        needed: what else the calls read, and what that is computed from, as far as it comes after the loss.
    """

    root: fx.Node
    shared: tuple[tuple[fx.Node, int], ...]
    calls: tuple[tuple[fx.Node, int], ...]
    needed: tuple[fx.Node, ...]

    def write(self, editor: Editor, before: fx.Node, one: Callable[[], fx.Node]) -> fx.Node:
        """The factors, at the editor's place, which is `before`; `one` makes the 1 that takes the root's place."""
        for node in self.needed:
            before.prepend(node)
        return _again(editor, self.calls, one())

    def number(self, editor: Editor) -> fx.Node:
        """The number that all rows share, at the editor's place, in the backward."""
        return _again(editor, self.shared, self.root)


def _again(editor: Editor, calls: Iterable[tuple[fx.Node, int]], value: fx.Node) -> fx.Node:
    for call, place in calls:
        if op_name(call) in RESHAPES and not val(value).is_contiguous():
            value = editor.call(torch.ops.aten.clone.default, value, memory_format=torch.contiguous_format)
        args = [*call.args]
        args[place] = value
        value = editor.call(call.target, *args, **call.kwargs)
    return value


def row_factors(gradient: fx.Node, loss: fx.Node, backward: Set[fx.Node]) -> RowFactors | None:
    """How a gradient with an element for each row of `loss` comes of one number; None if the forward does not know."""
    calls: list[tuple[fx.Node, int]] = []
    node: Any = gradient
    after = followers([node for node in backward if node.op == "placeholder"], loss.graph)
    while not _is_one_number(node):
        place = linear_in(node, after)
        if place is None:
            return None
        calls.append((node, place))
        node = node.args[place]
    shared = tuple(pair for pair in reversed(calls) if _is_shared(*pair))
    calls = [pair for pair in reversed(calls) if pair not in shared]
    operands = {other for call, place in calls for other in call.all_input_nodes if other is not call.args[place]}
    needed = moved(operands, loss, after)
    return None if needed is None else RowFactors(node, shared, tuple(calls), needed)


def followers(given: Iterable[fx.Node], graph: fx.Graph) -> set[fx.Node]:
    """What is computed from some nodes, and these themselves."""
    found = {*given}
    for node in graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _is_shared(call: fx.Node, place: int) -> bool:
    """Whether a call multiplies all rows with the same number, or divides them by it."""
    if op_name(call) == "aten.neg":
        return True
    other = call.args[1 - place] if op_name(call) in _FACTORS else None
    return is_number(other) or (is_tensor(other) and rank(other) == 0)


def _is_one_number(node: Any) -> bool:
    return is_tensor(node) and val(node).is_floating_point() and all(size == 1 for size in shape(node))


def linear_in(node: Any, given: Set[fx.Node]) -> int | None:
    """The place of the one operand out of `given` if a call is linear in it, and there is no other."""
    if not is_tensor(node) or not val(node).is_floating_point():
        return None
    name = op_name(node)
    places = [i for i, operand in enumerate(node.args) if isinstance(operand, fx.Node) and operand in given]
    if len(places) != 1 or len([a for a in node.all_input_nodes if a in given]) != 1:
        return None
    place = places[0]
    if name in _KEPT or name in _DERIVATIVES:
        return place if place == 0 and val(node.args[0]).is_floating_point() else None
    if name in _FACTORS:
        return place if place in _FACTORS[name] and not arguments(node).get("rounding_mode") else None
    if place not in _CHOICES.get(name, ()):
        return None
    other = node.args[2] if name == "aten.masked_fill" else node.args[3 - place]
    return place if is_zero(other) else None


def is_zero(value: Any) -> bool:
    """Whether a value is 0, or a tensor of zeros."""
    if is_number(value):
        return isinstance(value, (int, float)) and value == 0
    while op_name(value) in _KEPT - {"aten.neg"} and is_tensor(value.args[0]):
        value = value.args[0]
    if op_name(value) == "aten.scalar_tensor":
        return bool(value.args[0] == 0)
    return isinstance(value, fx.Node) and is_zeros(value)


def moved(operands: Set[fx.Node], loss: fx.Node, after: Set[fx.Node]) -> tuple[fx.Node, ...] | None:
    """What has to come before the loss, in order; None if some of it follows from the loss, or has effects."""
    place = {node: i for i, node in enumerate(loss.graph.nodes)}
    found: set[fx.Node] = set()
    todo = [*operands]
    while todo:
        node = todo.pop()
        if node in found or place[node] < place[loss]:
            continue
        if node is loss or node in after or not may_move(node):
            return None
        found.add(node)
        todo.extend(node.all_input_nodes)
    return tuple(sorted(found, key=place.__getitem__))


__all__ = ["RowFactors", "followers", "is_zero", "linear_in", "moved", "row_factors"]
