"""Values of graph nodes as formulas: lowering without loops, for values computed inside a template.

%s = aten.mul(%bmm, 0.125); %m = aten.add(%s, %mask)   ->   m.at((b, h, i, j)) = bmm[...] * 0.125 + mask[...]
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ....rewrites import moves
from ....rewrites.compat import OpOverload, argument
from ...ir.program import Buffer
from ...ir.value import Load, Op, Rewriter, Value, compute_dtype
from ...lowering import operators
from ...lowering.arithmetic import op
from ...lowering.call import lower_call
from ...lowering.core import TABLE_SPAN, Indices, Lowering, Tensor, cast, contiguous, whole
from ...lowering.ops.elementwise import elementwise
from ...lowering.sizes import Unlowered, number
from .formula_nodes import mask_formula

assert operators.MODULES

# Operators that only move elements. Formulas see through them, even if the operator copies.
_PARTS = {"aten.split", "aten.split_with_sizes", "aten.unbind"}
MOVES = moves.VIEWS | moves.RESHAPES | moves.ALIASES | moves.COPIES | _PARTS

# A few operations on positions and numbers take less time than reading their result from memory.
_MADE = "arange full scalar_tensor zeros ones new_full new_zeros new_ones full_like zeros_like ones_like"
NUMBERS = frozenset(f"aten.{name}" for name in _MADE.split())
_ARITHMETIC = """
    add sub rsub mul neg eq ne lt le gt ge where masked_fill logical_and logical_or logical_not logical_xor
    bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ _to_copy
"""
_POSITIONAL = MOVES | frozenset(f"aten.{name}" for name in _ARITHMETIC.split())

COPIES = moves.COPIES | (moves.RESHAPES - moves.RESIZES)  # or may copy


def packet(node: fx.Node) -> str:
    """``"aten.view"`` for a call of ``aten.view.default``; empty for any node that does not call an operator."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return ""
    return str(node.target).rsplit(".", 1)[0]


def is_move(node: fx.Node) -> bool:
    """Whether a node only moves elements, or selects a result of a node that does."""
    if node.op == "call_function" and node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and is_move(source)
    return packet(node) in MOVES


@dataclass(frozen=True)
class ComputedTensor(Tensor):
    """A tensor without memory: `compute` computes an element when it is read."""

    compute: Callable[[Indices], Value] = lambda _: _never()

    def at(self, indices: Sequence[Any]) -> Value:
        """The element at `indices`, in the dtype of the computation."""
        return cast(self.compute(self.where(tuple(indices))), compute_dtype(self.dtype))


def _never() -> Value:
    raise AssertionError("a computed tensor without its formula")


class FormulaLowering(Lowering):
    """A lowering that returns `ComputedTensor` tensors, and refuses operators that are not pointwise."""

    def pointwise(
        self, compute: Callable[[Indices], Value], sizes: Sequence[Any], dtype: torch.dtype, **_: Any
    ) -> Tensor:
        """A tensor whose elements are computed when they are read."""
        stand_in = whole(Buffer(self.name(self._node_name()), dtype, tuple(sizes), (0,) * len(sizes), self.device))
        return ComputedTensor(stand_in.buffer, tuple(sizes), stand_in.where, dtype, compute)

    def define(self, *_: Any, **__: Any) -> None:
        """Refuse a value that needs loops of its own."""
        raise Unlowered("arguments", f"{self.current.target} is not pointwise")

    def buffer(self, *_: Any, **__: Any) -> Buffer:
        """Refuse a value that needs memory."""
        raise Unlowered("arguments", f"{self.current.target} is not pointwise")


class Formulas:
    """Values of nodes as formulas of leaves.

    Nodes of `inside` are computed, as are causal masks and other values that follow from positions. Formulas see
    through moves. All other nodes are leaves: buffers with the node's name.

    Args:
        inside: the nodes to compute.
        through_copies: whether to see through moves that copy: this saves the copy, but loses its strides.
        maybe: nodes to compute if they have a formula.
        shiftable: nodes to which a constant per row may be added, since a softmax over rows is their only reader.
    """

    def __init__(
        self,
        inside: Container[fx.Node] = (),
        *,
        through_copies: bool = True,
        maybe: Container[fx.Node] = (),
        shiftable: Container[fx.Node] = (),
    ) -> None:
        self._inside, self._through_copies, self._maybe = inside, through_copies, maybe
        self._shiftable = shiftable
        self._low = FormulaLowering()
        self._values: dict[fx.Node, Any] = {}
        self._positional: dict[fx.Node, bool] = {}
        self.leaves: dict[str, fx.Node] = {}

    def value(self, node: fx.Node) -> Any:
        """The value of a node: a `Tensor`, or a tuple of them.

        Raises:
            Unlowered: it has no formula, because of a symbolic size or an operator that is not pointwise.
        """
        if node not in self._values:
            self._values[node] = self._made(node)
        return self._values[node]

    def _made(self, node: fx.Node) -> Any:
        if self._is_seen_through(node):
            return self._compute(node)
        known = mask_formula(node)
        if known is not None:
            self._begin(node)
            return self._low.pointwise(known, tuple(map(number, node.meta["val"].shape)), torch.bool)
        if node in self._maybe or self._is_positional(node):
            with contextlib.suppress(Unlowered):
                return self._compute(node)
        return self.leaf(node)

    def _is_positional(self, node: fx.Node, depth: int = 40) -> bool:
        """Whether a node is computed from positions and numbers alone, in few steps."""
        if node not in self._positional:
            inner = packet(node) in _POSITIONAL and depth > 0
            made = inner and all(self._is_positional(source, depth - 1) for source in node.all_input_nodes)
            self._positional[node] = made or packet(node) in NUMBERS
        return self._positional[node]

    def _is_seen_through(self, node: fx.Node) -> bool:
        if node in self._inside:
            return True
        return is_move(node) and (self._through_copies or packet(node) not in COPIES)

    def leaf(self, node: fx.Node) -> Tensor:
        """A node as a buffer."""
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor):
            raise Unlowered("opaque", f"{node.name} is no tensor")
        sizes, strides = (tuple(map(number, numbers)) for numbers in (meta.shape, meta.stride()))
        if not all(isinstance(n, int) for n in (*sizes, *strides)):
            raise Unlowered("symbolic", f"{node.name} has symbolic sizes: {sizes}")
        self.leaves[node.name] = node
        given = whole(Buffer(node.name, meta.dtype, sizes, strides, meta.device, "input"))
        return replace(given, span=node.meta[TABLE_SPAN]) if TABLE_SPAN in node.meta else given

    def _compute(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            return self.value(node.args[0])[node.args[1]]  # type: ignore[arg-type,index]
        special = self._shifted(node) or self._widened(node) or self._biased(node)
        if special is not None:
            return special
        values = {source: self.value(source) for source in node.all_input_nodes}
        self._begin(node)
        return lower_call(self._low, node, values)

    def _begin(self, node: fx.Node) -> None:
        """Start computing the value of this node."""
        self._low.origin = self._low.current = node
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            self._low.device = val.device

    def _shifted(self, node: fx.Node) -> Tensor | None:
        """The operand of ``x - max(x)`` over the softmax's dim, which has the same softmax."""
        if node not in self._shiftable:
            return None
        if packet(node) != "aten.sub" or len(node.args) != 2 or node.kwargs or not isinstance(node.args[1], fx.Node):
            return None
        peak, x = node.args[1], node.args[0]
        if peak.target is operator.getitem and peak.args[1] == 0:
            peak = peak.args[0]  # type: ignore[assignment]
        if packet(peak) not in ("aten.max", "aten.amax") or peak.args[0] is not x or len(peak.args) != 3:
            return None
        dims, rank = peak.args[1], _rank(x)
        last = [dims] if isinstance(dims, int) else list(dims)  # type: ignore[arg-type]
        return self.value(x) if last in ([-1], [rank - 1]) and peak.args[2] is True else None  # type: ignore[arg-type]

    def _biased(self, node: fx.Node) -> Tensor | None:
        """A product with a bias, as a formula of the product alone, whose buffer belongs to no node (`raw_product`)."""
        if not is_biased_product(node):
            return None
        beta, alpha = product_factors(node)
        bias = self.value(node.args[0]) if beta != 0 else None  # type: ignore[arg-type]
        meta = node.meta["val"]
        sizes = tuple(map(number, meta.shape))
        raw = whole(Buffer(raw_product(node), meta.dtype, sizes, contiguous(sizes), meta.device, "input"))
        self._begin(node)
        if bias is None:  # eager does not read the bias in this case
            return elementwise(self._low, [raw], lambda x: op("mul", x, alpha))
        return elementwise(self._low, [raw, bias], lambda x, y: op("add", op("mul", x, alpha), op("mul", y, beta)))

    def _widened(self, node: fx.Node) -> Tensor | None:
        """Scores with one more column: each element comes from one of the two parts, depending on its index."""
        if packet(node) != "aten.cat" or len(node.args) != 2 or node.args[1] not in (-1, _rank(node) - 1):
            return None
        parts = [self.value(part) for part in node.args[0]]  # type: ignore[union-attr]
        if len(parts) != 2 or parts[1].sizes[-1] != 1 or len({part.dtype for part in parts}) != 1:
            return None
        self._begin(node)
        scores, sink = parts
        keys = scores.sizes[-1]

        def compute(at: Indices) -> Value:
            return sink.at((*at[:-1], 0)) if at[-1] == keys else scores.at(at)

        return self._low.pointwise(compute, (*scores.sizes[:-1], keys + 1), scores.dtype)


def is_biased_product(node: Any) -> bool:
    """Whether a node is ``baddbmm`` of floating-point tensors, with finite factors and that of the product not 0."""
    if not isinstance(node, fx.Node) or node.target is not torch.ops.aten.baddbmm.default:
        return False
    factors = product_factors(node)
    known = all(isinstance(one, (int, float)) and math.isfinite(one) for one in factors)
    return known and factors[1] != 0 and node.meta["val"].dtype.is_floating_point


def product_factors(node: fx.Node) -> tuple[Any, Any]:
    """The factors of the bias and of the product in ``baddbmm``."""
    beta, alpha = (argument(node, name) for name in ("beta", "alpha"))
    return 1 if beta is None else beta, 1 if alpha is None else alpha


def raw_product(node: fx.Node) -> str:
    """The name of the product without its bias in formulas, which cannot be the name of a node."""
    return f"{node.name} product"


def plain(value: Value) -> Value:
    """A value without roundings and casts between floating-point dtypes."""
    while isinstance(value, Op) and (value.name.startswith("round_") or _is_float_cast(value)):
        value = value.args[0]
    return value


def plain_load(value: Value) -> Load | None:
    """The load that a value is, but for roundings and casts between floating-point dtypes."""
    value = plain(value)
    return value if isinstance(value, Load) else None


def unrounded(value: Value) -> Value:
    """`value` without intermediate roundings to 16 bits."""
    return Rewriter(lambda v: v.args[0] if isinstance(v, Op) and v.name.startswith("round_") else None)(value)


def _is_float_cast(value: Op) -> bool:
    return value.name == "cast" and value.dtype.is_floating_point and value.args[0].dtype.is_floating_point


def _rank(node: Any) -> int:
    return len(node.meta["val"].shape)
