"""Epilogues: the nodes that are computed from each element of a matrix product alone, and their formula.

An epilogue ends where its result is read by a call without loops, for example by another product. Before a
normalization, an epilogue gains nothing, since the normalization's own loops can include those operations.

On a GPU the product itself may have other readers: training saves it for the backward. The kernel then returns both.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from ....rewrites.compat import argument
from ....rewrites.graph import CASTS
from ....rewrites.symbolic import known_equal
from ...ir.value import Const, Load, Op, Value
from ...lowering.call import becomes_kernel
from ...lowering.core import LOWERINGS, Indices, Tensor, cast
from ...lowering.ops.elementwise import element
from ...lowering.sizes import Unlowered
from ..common.formula import COPIES, FormulaLowering, Formulas, is_move, packet
from .description import ELEMENT
from .operands import BYTES, ONEDNN, Operands

_POST_OPS = {name: f"aten.{name}" for name in ("relu", "sigmoid", "tanh", "gelu", "hardswish")} | {"swish": "aten.silu"}
NORM = "aten._native_batch_norm_legit_no_training"
_MAX_EPILOGUE, _MAX_DISTANCE = 40, 200  # most nodes of an epilogue, and their largest distance in the graph


def epilogues(call: fx.Node, crop: fx.Node | None = None) -> Iterator[tuple[tuple[fx.Node, ...], fx.Node, bool]]:
    """Sets of nodes after the product with a single result, and that result; smaller sets first.

    On a GPU the product itself may be another result: the third component.

    Args:
        call: the product.
        crop: the slice of the product that is read; if given, a copy of the slice is a result, and the product is not.
    """
    if crop is None:
        yield (), call, False
    keeps = call.meta["val"].device.type == "cuda" and crop is None
    inside: dict[fx.Node, None] = dict.fromkeys([call, *([] if crop is None else [crop])])
    first, node = crop or call, call
    for _ in range(_MAX_DISTANCE):
        node = node.next
        if node.op == "root" or len(inside) > _MAX_EPILOGUE:
            return
        if node in inside or not any(source in inside for source in node.all_input_nodes):
            continue
        if not _joins(node, first):
            return
        inside[node] = None
        escaping = [n for n in inside if any(user not in inside for user in n.users)]
        others = [n for n in escaping if n is not node]
        if node not in escaping or (others and not (keeps and all(_looks_at(n, call) for n in others))):
            continue
        ends = not is_move(node) or (crop is not None and packet(node) in COPIES)
        if ends and packet(node) != NORM and (_narrows(node, call) or any(map(_is_opaque, _readers(node)))):
            yield tuple(inside)[1:], node, bool(others)


def _narrows(node: fx.Node, call: fx.Node) -> bool:
    """Whether sums of bytes become bytes again, a quarter of what the product alone would write."""
    return packet(call) == BYTES and node.meta["val"].dtype.itemsize == 1


def _looks_at(node: fx.Node, call: fx.Node) -> bool:
    """Whether a node is the product itself, or a view of it."""
    while node is not call and is_move(node) and packet(node) not in COPIES:
        node = node.all_input_nodes[0]
    return node is call


def _joins(node: fx.Node, call: fx.Node) -> bool:
    """Whether a node computes an element of its result from the product's element and other tensors."""
    if _normalizes(node):
        return call.meta["val"].device.type == "cuda"
    val, wanted = node.meta.get("val"), call.meta["val"]
    if node.op != "call_function" or not isinstance(val, torch.Tensor) or not val.dim():
        return False
    if not known_equal(val.numel(), wanted.numel()) or not known_equal(val.shape[-1], wanted.shape[-1]):
        return False
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        return False
    return is_move(node) or packet(node) in CASTS or torch.Tag.pointwise in tags


def _normalizes(node: fx.Node) -> bool:
    """Whether a node is a norm with running statistics, which is elementwise, or takes its first result."""
    if node.target is operator.getitem:
        return packet(node.args[0]) == NORM and node.args[1] == 0  # type: ignore[arg-type]
    return packet(node) == NORM and all(user.args[1] == 0 for user in node.users)


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The readers of the elements of a node, seen through moves."""
    stack, seen = list(node.users), set[fx.Node]()
    while stack:
        user = stack.pop()
        if user in seen:
            continue
        seen.add(user)
        if is_move(user):
            stack.extend(user.users)
        else:
            yield user


def is_read_by_loops(node: fx.Node) -> bool:
    """Whether a reader of the node could compute it in its own loops, if it were no product's epilogue."""
    return not all(map(_is_opaque, _readers(node)))


def _is_opaque(node: fx.Node) -> bool:
    """Whether a node reads its operands from memory, however they were computed: so do most products."""
    return not becomes_kernel(node.target)


# -- formulas ---------------------------------------------------------------------------------------------------------


class Epilogue(Formulas):
    """Values of nodes as formulas of the product's element and leaves."""

    def __init__(self, call: fx.Node, operands: Operands, inside: Sequence[fx.Node]) -> None:
        super().__init__({*inside})
        self._call, self._operands = call, operands
        self._product: Tensor | None = None

    def value(self, node: fx.Node) -> Any:
        """The value of a node, including that of the product."""
        if node is not self._call:
            return super().value(node)
        if self._product is None:
            self._product = self._finished()
        return self._product

    def _finished(self) -> Tensor:
        """The product with the operations that the call itself applies to its elements."""
        low, call = FormulaLowering(), self._call
        low.origin = low.current = call
        low.device = call.meta["val"].device
        sizes = tuple(call.meta["val"].shape)
        bias = None if self._operands.bias is None else self.value(self._operands.bias)

        def compute(indices: Indices) -> Value:
            raw: Value = Load(ELEMENT.buffer, indices, torch.int32 if packet(call) == BYTES else torch.float32)
            raw = _scaled(raw, argument(call, "alpha") if packet(call) == "aten.addmm" else 1)
            if bias is None:
                return raw
            added = cast(self._added(bias, indices), torch.float32)
            added = _scaled(added, argument(call, "beta") if packet(call) == "aten.addmm" else 1)
            return Op("add", (raw, added), torch.float32)

        made = low.pointwise(compute, sizes, call.meta["val"].dtype)
        return _post_op(low, call, made) if packet(call) == ONEDNN else made

    def _added(self, bias: Tensor, indices: Indices) -> Value:
        """The element of the bias that belongs to one of the product."""
        return element(bias, indices)


def _scaled(value: Value, factor: Any) -> Value:
    if factor is None or factor == 1:
        return value
    return Op("mul", (value, Const(float(factor), torch.float32)), torch.float32)


def _post_op(low: FormulaLowering, call: fx.Node, made: Tensor) -> Tensor:
    name, algorithm = call.args[3], call.args[5]
    if name == "none":
        return made
    if name not in _POST_OPS:
        raise Unlowered("arguments", f"oneDNN's post-op {name!r}")
    settings = {"approximate": algorithm} if name == "gelu" else {}
    return LOWERINGS[_POST_OPS[name]](low, made, **settings)
