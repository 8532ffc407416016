"""Finds matrix products in a graph after autograd, and what is computed from each of their elements alone.

    %y = aten.linear(%x, %w, %b)          a product
    %s = aten.silu(%y)                    pointwise, used inside of the epilogue only
    %m = aten.mul(%s, %other)             what the kernel gives: the last of them that nothing else would fuse with

An epilogue ends where a call reads its result that is no loop: another product, say. Before a normalization it would
gain nothing: what is computed there joins the normalization's own loops for free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from ...patterns.packing import is_frozen
from ...rewrites.reason import Reason
from ..ir.index import Var
from ..ir.program import Buffer
from ..ir.value import Const, Load, Op, Rewriter, Value, compute_dtype
from ..lowering.call import find
from ..lowering.core import LOWERINGS, Indices, Tensor, cast, contiguous
from ..lowering.elementwise import element
from ..lowering.positions import numel, raveled, unraveled
from ..lowering.sizes import Unlowered
from ..torch_compat import OpOverload, argument
from .attention import address
from .match import at, made, nodes_between
from .product import ELEMENT, Matrix, Product
from .region import Formulas, Region, is_move, packet

LINEAR, ONEDNN, REORDER = "aten.linear", "mkldnn._linear_pointwise", "mkldnn._reorder_linear_weight"
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", LINEAR, ONEDNN)
_POST_OPS = {name: f"aten.{name}" for name in ("relu", "sigmoid", "tanh", "gelu", "hardswish")} | {"swish": "aten.silu"}
_CASTS = ("aten._to_copy", "prims.convert_element_type")
_MAX_EPILOGUE, _MAX_DISTANCE = 40, 200  # nodes of an epilogue, and how far away in the graph


@dataclass(frozen=True)
class FoundProduct:
    """A product of a graph.

    Args:
        product: what it computes.
        inputs: the nodes that the kernel reads, in the order of `Product.reads`.
        nodes: the nodes that it replaces, in the order of the graph.
        output: the last of them, whose value is the kernel's.
    """

    product: Product
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    output: fx.Node


def match_gemm(call: fx.Node, packed: bool = False) -> FoundProduct | Reason | None:
    """The product that a call computes with as much of an epilogue as can be, None where it is no product.

    Args:
        call: any node.
        packed: whether weights that are known while compiling come packed.
    """
    if packet(call) not in PRODUCTS:
        return None
    operands = _operands(call)
    if isinstance(operands, Reason):
        return operands
    first: Reason | None = None
    for nodes, output in reversed(list(_epilogues(call))):
        try:
            found = _Matcher(call, operands, nodes, output, packed).run()
        except Unlowered as refusal:
            found = Reason(f"epilogue-{refusal.code}", f"the epilogue has no formula: {refusal}", (output, call))
        if isinstance(found, FoundProduct):
            return found
        first = first or found
    return first


@dataclass(frozen=True)
class _Operands:
    """`x` of (batch, rows, depth) elements and `weight` of (batch, depth, columns) with the strides of the latter."""

    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    sizes: tuple[int, int, int, int]  # batch, rows, columns, depth
    strides: tuple[int, int, int]  # of the weight


def _operands(call: fx.Node) -> _Operands | Reason:
    bias, x, weight = _arguments(call)
    if packet(weight) == REORDER:
        weight = weight.args[0]
    for node in (call, x, weight):
        reason = _unfit(node, call)
        if reason is not None:
            return reason
    x_sizes, sizes, strides = x.meta["val"].shape, tuple(weight.meta["val"].shape), tuple(weight.meta["val"].stride())
    rows, depth = numel(x_sizes[:-1]), x_sizes[-1]
    if packet(call) in (LINEAR, ONEDNN):
        if len(sizes) != 2:
            return Reason("weight-rank", "the weight is no matrix", (call,), "2 dims", str(len(sizes)))
        return _Operands(x, weight, bias, (1, rows, sizes[0], depth), (0, strides[1], strides[0]))
    if packet(call) == "aten.bmm":
        return _Operands(x, weight, bias, (sizes[0], x_sizes[1], sizes[2], depth), strides)
    return _Operands(x, weight, bias, (1, rows, sizes[1], depth), (0, *strides))


def _arguments(call: fx.Node) -> tuple[Any, Any, Any]:
    """Bias, left and right operand."""
    if packet(call) == "aten.addmm":
        return call.args[0], call.args[1], call.args[2]
    bias = call.args[2] if len(call.args) > 2 else call.kwargs.get("bias")
    return bias, call.args[0], call.args[1]


def _unfit(node: fx.Node, call: fx.Node) -> Reason | None:
    val = node.meta["val"]
    if val.device.type != "cpu":
        return Reason("device", f"the template is for CPUs, not {val.device}", (call,))
    if val.dtype != torch.float32:
        return Reason("dtype", f"{node.name} is {val.dtype}", (call,), "float32", str(val.dtype))
    if not all(isinstance(size, int) for size in (*val.shape, *val.stride())) or 0 in val.shape:
        return Reason("symbolic", f"sizes {tuple(val.shape)}: static ones above 0 needed", (call,))
    if node.op == "get_attr":
        val = getattr(node.graph.owning_module, str(node.target), val)
    if val.layout != torch.strided or val.is_mkldnn:
        return Reason("layout", f"{node.name} is in a layout of oneDNN's own", (call,))
    return None


# -- epilogues --------------------------------------------------------------------------------------------------------


def _epilogues(call: fx.Node) -> Iterator[tuple[tuple[fx.Node, ...], fx.Node]]:
    """Sets of nodes after the product with one result between them, and that result; smaller ones first."""
    yield (), call
    inside: dict[fx.Node, None] = {call: None}
    node = call
    for _ in range(_MAX_DISTANCE):
        node = node.next
        if node.op == "root" or len(inside) > _MAX_EPILOGUE:
            return
        if not any(source in inside for source in node.all_input_nodes):
            continue
        if not _joins(node, call):
            return
        inside[node] = None
        escaping = [n for n in inside if any(user not in inside for user in n.users)]
        if escaping == [node] and not is_move(node) and any(map(_is_opaque, _readers(node))):
            yield tuple(inside)[1:], node


def _joins(node: fx.Node, call: fx.Node) -> bool:
    """Whether a node computes an element of its result from the product's element and others."""
    val, wanted = node.meta.get("val"), call.meta["val"]
    if node.op != "call_function" or not isinstance(val, torch.Tensor) or not val.dim():
        return False
    if val.numel() != wanted.numel() or val.shape[-1] != wanted.shape[-1]:
        return False
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        return False
    return is_move(node) or packet(node) in _CASTS or torch.Tag.pointwise in tags


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Who reads the elements of a node, through moves."""
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


def _is_opaque(node: fx.Node) -> bool:
    """Whether a node reads its operands from memory, whatever computed them."""
    return not isinstance(node.target, OpOverload) or find(node.target) is None


# -- formulas ---------------------------------------------------------------------------------------------------------


class _Epilogue(Region):
    """Values of nodes in terms of the product's elements and leaves."""

    def __init__(self, call: fx.Node, operands: _Operands, inside: Sequence[fx.Node]) -> None:
        super().__init__({*inside})
        self._call, self._operands = call, operands
        self._product: Tensor | None = None

    def value(self, node: fx.Node) -> Any:
        """The value of a node, that of the product included."""
        if node is not self._call:
            return super().value(node)
        if self._product is None:
            self._product = self._finished()
        return self._product

    def _finished(self) -> Tensor:
        """The product with what the call itself does to its elements."""
        low, call = Formulas(), self._call
        low.origin = low.current = call
        sizes = tuple(call.meta["val"].shape)
        bias = None if self._operands.bias is None else self.value(self._operands.bias)

        def compute(indices: Indices) -> Value:
            raw: Value = Load(ELEMENT.buffer, indices, torch.float32)
            raw = _scaled(raw, argument(call, "alpha") if packet(call) == "aten.addmm" else 1)
            if bias is None:
                return raw
            added = cast(element(bias, indices), torch.float32)
            added = _scaled(added, argument(call, "beta") if packet(call) == "aten.addmm" else 1)
            return Op("add", (raw, added), torch.float32)

        made = low.pointwise(compute, sizes, torch.float32)
        return _post_op(low, call, made) if packet(call) == ONEDNN else made


def _scaled(value: Value, factor: Any) -> Value:
    if factor is None or factor == 1:
        return value
    return Op("mul", (value, Const(float(factor), torch.float32)), torch.float32)


def _post_op(low: Formulas, call: fx.Node, made: Tensor) -> Tensor:
    name, algorithm = call.args[3], call.args[5]
    if name == "none":
        return made
    if name not in _POST_OPS:
        raise Unlowered("arguments", f"oneDNN's post-op {name!r}")
    settings = {"approximate": algorithm} if name == "gelu" else {}
    return LOWERINGS[_POST_OPS[name]](low, made, **settings)


class _Matcher:
    def __init__(
        self, call: fx.Node, operands: _Operands, nodes: tuple[fx.Node, ...], output: fx.Node, packed: bool
    ) -> None:
        self._call, self._operands, self._output = call, operands, output
        self._packed = packed and operands.sizes[0] == 1 and is_frozen(operands.weight)
        self._region = _Epilogue(call, operands, nodes)
        batch, rows, columns, self._depth = operands.sizes
        self._batch, self._row, self._column = Var("g", batch), Var("i", rows), Var("j", columns)

    def run(self) -> FoundProduct | Reason:
        """The product with this epilogue, or why it is none."""
        out = replace(made(self._output), name="<out>")
        if out.strides[-1] != 1 and self._column.extent > 1:
            return Reason("result-strides", f"rows of {self._output.name} are not contiguous", (self._output,))
        value = self._value()
        if value is None:
            return Reason("moved", "elements change their places in the epilogue", (self._output, self._call))
        leaves = dict(self._region.leaves)
        buffers = tuple(self._region.leaf(node).buffer for node in leaves.values())
        product = Product(
            self._batch, self._row, self._column, self._depth, self._left(), self._right(), out,
            address(out, self._indices(self._output)), cast(value, compute_dtype(out.dtype)), buffers, self._packed,
        )  # fmt: skip
        inputs = (self._operands.x, self._operands.weight, *leaves.values())
        return FoundProduct(product, inputs, nodes_between(inputs, self._output), self._output)

    def _indices(self, node: fx.Node) -> tuple[Any, ...]:
        """The indices of element (g, i, j) in the result of a node."""
        sizes = tuple(map(int, node.meta["val"].shape))
        flat = raveled((at(self._batch), at(self._row)), (self._batch.extent, self._row.extent))
        return (*unraveled(flat, sizes[:-1]), at(self._column))

    def _value(self) -> Value | None:
        """`f`; None where it looks at other elements of the product than its own."""
        value = self._region.value(self._output).at(self._indices(self._output))
        own, moved = self._indices(self._call), []

        def raw(part: Value) -> Value | None:
            if not isinstance(part, Load) or part.buffer != ELEMENT.buffer:
                return None
            moved.append(part.indices != own)
            return ELEMENT

        found = Rewriter(raw)(value)
        return None if any(moved) or not moved else found

    def _left(self) -> Matrix:
        val = self._operands.x.meta["val"]
        sizes, strides = tuple(val.shape), tuple(val.stride())
        batched = packet(self._call) == "aten.bmm"
        row = strides[1] if batched else _row_stride(sizes[:-1], strides[:-1])
        if row is None or (strides[-1] != 1 and sizes[-1] > 1):
            strides = contiguous(sizes)
            row = sizes[-1]
        return Matrix(Buffer("<a>", val.dtype, sizes, strides, val.device, "input"), strides[0], row, 1)

    def _right(self) -> Matrix:
        val = self._operands.weight.meta["val"]
        buffer = Buffer("<b>", val.dtype, tuple(val.shape), tuple(val.stride()), val.device, "input")
        return Matrix(buffer, *self._operands.strides)


def _row_stride(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of all leading dims as one; None where they are none."""
    dims = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size > 1]
    if not dims:
        return 0
    for (_, outer), (size, inner) in pairwise(dims):
        if outer != size * inner:
            return None
    return dims[-1][1]
