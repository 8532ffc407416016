"""Finds matrix products in a graph after autograd, and the operations on single elements of their results.

    %y = aten.linear(%x, %w, %b)          a product
    %s = aten.silu(%y)                    pointwise, used inside of the epilogue only
    %m = aten.mul(%s, %other)             the result of the kernel: the last node that nothing else would fuse with

`gemm.epilogue` determines where an epilogue ends. Operands may be computed while they are read: see `gemm.prologue`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from ....patterns.packing import is_frozen
from ....rewrites.compat.memory import allows_tf32
from ....rewrites.reason import Reason
from ...ir.index.index import Var
from ...ir.program import Buffer
from ...ir.value import Load, Op, Rewriter, Value, compute_dtype
from ...lowering.core import cast, contiguous
from ...lowering.positions import raveled, unraveled
from ...lowering.sizes import Unlowered
from ..attention.description import address
from ..attention.match import at, made, nodes_between
from ..common.formula import packet
from .description import ELEMENT, ExtraOutput, Matrix, Product
from .epilogue import Epilogue, epilogues
from .operands import LINEAR, ONEDNN, Operands, arguments, before_crop, is_product, operands_of
from .prologue import FoundPrologue, factored, is_computed, prologue_of


@dataclass(frozen=True)
class FoundProduct:
    """A product that was found in a graph.

    Args:
        product: the description of the product.
        inputs: the nodes that the kernel reads, in the order of `Product.reads`.
        nodes: the nodes that the kernel replaces, in graph order.
        output: the last of them, whose value the kernel returns.
        call: the node that multiplies.
        kept: the product itself, if the kernel returns it too (`Product.more`), for readers besides the epilogue.
        before: the nodes among `nodes` that prologues compute.
    """

    product: Product
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    output: fx.Node
    call: fx.Node
    kept: fx.Node | None = None
    before: frozenset[fx.Node] = frozenset()


def match_gemm(call: fx.Node, packed: bool = False, sides: str = "") -> FoundProduct | Reason | None:
    """The product that a call computes, with the largest possible epilogue; a reason if it is no product.

    Args:
        call: any node.
        packed: whether constant weights are packed.
        sides: the operands for which to find prologues: ``"a"``, ``"b"``, ``"ab"``; on CPUs ``"b"``.
    """
    if not is_product(call):
        return None
    operands = operands_of(call)
    if isinstance(operands, Reason):
        return operands
    crop = before_crop(call, operands)
    found = None if crop is None else _largest(call, crop[0], packed, sides, crop[1])
    return found if isinstance(found, FoundProduct) else _largest(call, operands, packed, sides)


def _largest(
    call: fx.Node, operands: Operands, packed: bool, sides: str, crop: fx.Node | None = None
) -> FoundProduct | Reason | None:
    """The product with the largest epilogue that has a formula."""

    def described(nodes: tuple[fx.Node, ...], output: fx.Node, kept: bool) -> FoundProduct | Reason:
        return ProductMatcher(call, operands, nodes, output, kept, packed, sides).run()

    return with_largest_epilogue(call, described, crop)


def with_largest_epilogue(
    call: fx.Node,
    described: Callable[[tuple[fx.Node, ...], fx.Node, bool], FoundProduct | Reason],
    crop: fx.Node | None = None,
) -> FoundProduct | Reason | None:
    """The description of a product with the largest of its `epilogues` that has a formula."""
    first: Reason | None = None
    for nodes, output, kept in reversed(list(epilogues(call, crop))):
        try:
            found = described(nodes, output, kept)
        except Unlowered as refusal:
            found = Reason(f"epilogue-{refusal.code}", f"the epilogue has no formula: {refusal}", (output, call))
        if isinstance(found, FoundProduct):
            return found
        first = first or found
    return first


def has_prologue(call: fx.Node, sides: str) -> bool:
    """Whether operands of a product (of `sides`) are computed by nodes that nothing else reads."""
    _, x, weight = arguments(call)
    return any(is_computed(operand, call) for side, operand in (("a", x), ("b", weight)) if side in sides)


class ProductMatcher:
    """Describes a product and the nodes that follow it.

    Subclasses for other kinds of products override indices, operands and the description.
    """

    epilogue: type[Epilogue] = Epilogue
    columns = -1  # the dim of the result that holds the columns

    def __init__(
        self,
        call: fx.Node,
        operands: Operands,
        nodes: tuple[fx.Node, ...],
        output: fx.Node,
        keep: bool,
        packed: bool,
        sides: str,
    ) -> None:
        self._call, self._operands, self._output, self._keep = call, operands, output, keep
        self._packed = packed and operands.sizes[0] == 1 and is_frozen(operands.weight)
        self._formulas = self.epilogue(call, operands, nodes)
        batch, rows, columns, self._depth = operands.sizes
        self._batch, self._row, self._column = Var("g", batch), Var("i", rows), Var("j", columns)
        self._step, self._sides = Var("k", self._depth), sides

    def run(self) -> FoundProduct | Reason:
        """The product with this epilogue, or the reason why it cannot be described."""
        results = [self._result(self._output, "<out>")]
        if self._keep:
            results.append(self._result(self._call, "<product>"))
        refusal = next((result for result in results if isinstance(result, Reason)), None)
        sides = self._prologues()
        left = self._left() if sides[0] is None else sides[0].matrix
        if refusal is not None or left is None:
            return refusal or Reason("operand", f"{self._operands.x.name} cannot be read as a matrix", (self._call,))
        right = self._right() if sides[1] is None else sides[1].matrix
        out, *more = (result for result in results if isinstance(result, ExtraOutput))
        computed = [side for side in sides if side is not None]
        leaves = {name: node for side in computed for name, node in side.leaves.items()} | self._formulas.leaves
        for operand in (left, right):
            leaves.pop(operand.buffer.name, None)
        buffers = tuple(self._formulas.leaf(node).buffer for node in leaves.values())
        product = self._product(
            self._batch, self._row, self._column, self._depth, left, right, out.buffer, out.place, out.value,
            buffers, self._packed, tuple(more), self._step, *(None if side is None else side.prologue for side in sides)
        )  # fmt: skip
        product = with_factor_outside(product)
        operands = self._operands.x, self._operands.weight
        mains = (node if side is None else side.main for node, side in zip(operands, sides, strict=True))
        inputs = (*mains, *leaves.values())
        nodes = nodes_between(inputs, self._output)
        before = frozenset(node for side in computed for node in side.nodes)
        kept = self._call if self._keep else None
        return FoundProduct(product, inputs, nodes, self._output, self._call, kept, before)

    def _prologues(self) -> tuple[FoundPrologue | None, FoundPrologue | None]:
        """The formulas of operands, where prologues are wanted."""
        x, weight = self._operands.x, self._operands.weight
        g, i, j, k = map(at, (self._batch, self._row, self._column, self._step))
        batched, turned = packet(self._call) == "aten.bmm", packet(self._call) in (LINEAR, ONEDNN)
        of_x = (g, i, k) if batched else (*unraveled(i, tuple(map(int, x.meta["val"].shape[:-1]))), k)
        of_weight = (g, k, j) if batched else (j, k) if turned else (k, j)
        left, right = (self._batch, self._row, self._step), (self._batch, self._step, self._column)
        return (
            prologue_of(x, self._call, of_x, left) if "a" in self._sides else None,
            prologue_of(weight, self._call, of_weight, right) if "b" in self._sides else None,
        )

    def _result(self, node: fx.Node, name: str) -> ExtraOutput | Reason:
        """The result that the kernel writes for a node."""
        buffer = replace(made(node), name=name)
        if buffer.strides[self.columns] != 1 and self._column.extent > 1:
            return Reason("result-strides", f"rows of {node.name} are not contiguous", (node,))
        value = self._value(node)
        if value is None:
            return Reason("moved", "the epilogue transposes or reorders elements", (node, self._call))
        return ExtraOutput(buffer, address(buffer, self._indices(node)), cast(value, compute_dtype(buffer.dtype)))

    def _indices(self, node: fx.Node) -> tuple[Any, ...]:
        """The indices of element (g, i, j) in the result of a node."""
        sizes = tuple(map(int, node.meta["val"].shape))
        flat = raveled((at(self._batch), at(self._row)), (self._batch.extent, self._row.extent))
        return (*unraveled(flat, sizes[:-1]), at(self._column))

    def _value(self, node: fx.Node) -> Value | None:
        """`f` for a node; None if it reads other elements of the product than its own."""
        value = self._formulas.value(node).at(self._indices(node))
        own, moved = self._indices(self._call), []

        def raw(part: Value) -> Value | None:
            if not isinstance(part, Load) or part.buffer != ELEMENT.buffer:
                return None
            moved.append(part.indices != own)
            return Load(ELEMENT.buffer, ELEMENT.indices, part.dtype)

        found = Rewriter(raw)(value)
        return None if any(moved) or not moved else found

    def _product(self, *fields: Any) -> Product:
        made = Product(*fields)
        is_whole = made.dtype == torch.float32 and made.out.device.type == "cuda" and not allows_tf32()
        return replace(made, exact=is_whole, windows=self._operands.windows)

    def _left(self) -> Matrix | None:
        val = self._operands.x.meta["val"]
        sizes, strides = tuple(val.shape), tuple(val.stride())
        if self._operands.windows is not None:
            return Matrix(Buffer("<a>", val.dtype, sizes, strides, val.device, "input"), 0, 0, 1)
        batched = packet(self._call) == "aten.bmm"
        row = strides[1] if batched else _row_stride(sizes[:-1], strides[:-1])
        if val.device.type == "cuda":
            buffer = Buffer("<a>", val.dtype, sizes, strides, val.device, "input")
            return None if row is None else Matrix(buffer, strides[0] if batched else 0, row, strides[-1])
        if row is None or (strides[-1] != 1 and sizes[-1] > 1):
            strides = contiguous(sizes)
            row = sizes[-1]
        return Matrix(Buffer("<a>", val.dtype, sizes, strides, val.device, "input"), strides[0], row, 1)

    def _right(self) -> Matrix:
        val = self._operands.weight.meta["val"]
        buffer = Buffer("<b>", val.dtype, tuple(val.shape), tuple(val.stride()), val.device, "input")
        return Matrix(buffer, *self._operands.strides)


def with_factor_outside(product: Product) -> Product:
    """The product whose sums are multiplied with the scale of its right operand's bytes afterwards (see `factored`)."""
    if product.right is None or product.step is None:
        return product
    right, factor = factored(product.right, product.step)
    if factor is None:
        return product
    # Infinite factors give NaN, as do infinite weights of both signs.
    factor = Op("add", (factor, Op("sub", (factor, factor), factor.dtype)), factor.dtype)
    scaled = Op("mul", (ELEMENT, factor), ELEMENT.dtype)
    rewrite = Rewriter(lambda part: scaled if part == ELEMENT else None)
    more = tuple(replace(result, value=rewrite(result.value)) for result in product.more)
    return replace(product, right=right, value=rewrite(product.value), more=more)


def _row_stride(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of all leading dims as one dim; None if they cannot be merged."""
    dims = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size > 1]
    if not dims:
        return 0
    for (_, outer), (size, inner) in pairwise(dims):
        if outer != size * inner:
            return None
    return dims[-1][1]
