"""Finds matrix products in a graph after autograd, and what is computed from each of their elements alone.

    %y = aten.linear(%x, %w, %b)          a product
    %s = aten.silu(%y)                    pointwise, used inside of the epilogue only
    %m = aten.mul(%s, %other)             what the kernel gives: the last of them that nothing else would fuse with

An epilogue ends where a call reads its result that is no loop: another product, say. Before a normalization it would
gain nothing: what is computed there joins the normalization's own loops for free.

On a GPU the product may be read elsewhere, too: training keeps it for the backward pass. Then the kernel gives both.
There operands may be computed on the way in, too: see `gemm.prologue`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from ....patterns.packing import is_frozen
from ....rewrites.compat import OpOverload, argument
from ....rewrites.compat.memory import allows_tf32
from ....rewrites.graph import CASTS
from ....rewrites.reason import Reason
from ....rewrites.symbolic import known_equal
from ...ir.index.index import Var
from ...ir.program import Buffer
from ...ir.value import Const, Load, Op, Rewriter, Value, compute_dtype
from ...lowering.call import find
from ...lowering.core import LOWERINGS, Indices, Tensor, cast, contiguous
from ...lowering.ops.elementwise import element
from ...lowering.positions import numel, raveled, unraveled
from ...lowering.sizes import Unlowered
from ..attention.description import address
from ..attention.match import at, made, nodes_between
from ..common.formula import COPIES, Formulas, Region, is_move, packet
from .description import CPU_FEW_ROWS, ELEMENT, LANES_ROWS, Matrix, Product, Result
from .prologue import FoundPrologue, is_computed, prologue_of
from .unpad import before_padding, crop_of

LINEAR, ONEDNN, REORDER = "aten.linear", "mkldnn._linear_pointwise", "mkldnn._reorder_linear_weight"
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", LINEAR, ONEDNN)
_POST_OPS = {name: f"aten.{name}" for name in ("relu", "sigmoid", "tanh", "gelu", "hardswish")} | {"swish": "aten.silu"}
NORM = "aten._native_batch_norm_legit_no_training"
# Tensor cores cut float32 short before they multiply it: where the user's settings allow that, see `_dtypes`.
_BY_LANES = {"cpu": (torch.bfloat16, torch.float16), "cuda": (torch.float32,)}
DTYPES = {"cpu": (torch.float32,), "cuda": (torch.bfloat16, torch.float16)}
_FEW = {"cuda": LANES_ROWS, "cpu": CPU_FEW_ROWS}
_MAX_EPILOGUE, _MAX_DISTANCE = 40, 200  # nodes of an epilogue, and how far away in the graph


@dataclass(frozen=True)
class FoundProduct:
    """A product of a graph.

    Args:
        product: what it computes.
        inputs: the nodes that the kernel reads, in the order of `Product.reads`.
        nodes: the nodes that it replaces, in the order of the graph.
        output: the last of them, whose value is the kernel's.
        call: the one of them that multiplies.
        kept: the product itself, where the kernel gives that too (`Product.more`), for readers other than the epilogue.
        before: those of `nodes` that prologues compute.
    """

    product: Product
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    output: fx.Node
    call: fx.Node
    kept: fx.Node | None = None
    before: frozenset[fx.Node] = frozenset()


def match_gemm(call: fx.Node, packed: bool = False, sides: str = "") -> FoundProduct | Reason | None:
    """The product that a call computes with as much of an epilogue as can be, None where it is no product.

    Args:
        call: any node.
        packed: whether weights that are known while compiling come packed.
        sides: of which operands prologues are looked for: ``"a"``, ``"b"``, ``"ab"``; on CPUs ``"b"``.
    """
    if not is_product(call):
        return None
    operands = _operands(call)
    if isinstance(operands, Reason):
        return operands
    crop = _cropped(call, operands)
    found = None if crop is None else _largest(call, crop[0], packed, sides, crop[1])
    return found if isinstance(found, FoundProduct) else _largest(call, operands, packed, sides)


def _largest(
    call: fx.Node, operands: Operands, packed: bool, sides: str, crop: fx.Node | None = None
) -> FoundProduct | Reason | None:
    """A product with the largest epilogue that has a formula."""

    def described(nodes: tuple[fx.Node, ...], output: fx.Node, kept: bool) -> FoundProduct | Reason:
        return Matcher(call, operands, nodes, output, kept, packed, sides).run()

    return with_largest_epilogue(call, described, crop)


def with_largest_epilogue(
    call: fx.Node,
    described: Callable[[tuple[fx.Node, ...], fx.Node, bool], FoundProduct | Reason],
    crop: fx.Node | None = None,
) -> FoundProduct | Reason | None:
    """The description of a product with the largest of its `epilogues` that has one."""
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
    """Whether operands of a product (of `sides`) are computed by what nobody else reads."""
    _, x, weight = _arguments(call)
    return any(is_computed(operand, call) for side, operand in (("a", x), ("b", weight)) if side in sides)


def is_product(node: fx.Node) -> bool:
    """Whether a node is a call that multiplies matrices, and gives what they are made of."""
    return packet(node) in PRODUCTS and node.target is not torch.ops.aten.mm.dtype


@dataclass(frozen=True)
class Operands:
    """`x` of (batch, rows, depth) elements and `weight` of (batch, depth, columns) with the strides of the latter."""

    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    sizes: tuple[int, int, int, int]  # batch, rows, columns, depth
    strides: tuple[int, int, int]  # of the weight


def _operands(call: fx.Node) -> Operands | Reason:
    bias, x, weight = _arguments(call)
    if packet(weight) == REORDER:
        weight = weight.args[0]
    for node in (call, x, weight):
        reason = unfit(node, call, _always if _is_for_lanes(x) else None)
        if reason is not None:
            return reason
    if x.meta["val"].dtype != weight.meta["val"].dtype:
        return Reason("dtype", f"{x.name} and {weight.name} differ in dtype", (call,))
    x_sizes, sizes, strides = x.meta["val"].shape, tuple(weight.meta["val"].shape), tuple(weight.meta["val"].stride())
    rows, depth = numel(x_sizes[:-1]), x_sizes[-1]
    if packet(call) in (LINEAR, ONEDNN):
        if len(sizes) != 2:
            return Reason("weight-rank", "the weight is no matrix", (call,), "2 dims", str(len(sizes)))
        return Operands(x, weight, bias, (1, rows, sizes[0], depth), (0, strides[1], strides[0]))
    if packet(call) == "aten.bmm":
        return Operands(x, weight, bias, (sizes[0], x_sizes[1], sizes[2], depth), strides)
    return Operands(x, weight, bias, (1, rows, sizes[1], depth), (0, *strides))


def _is_for_lanes(x: fx.Node) -> bool:
    """Whether lanes multiply rows as few as an operand's, as they are: float32 on GPUs, 16 bits on CPUs."""
    val = x.meta["val"]
    rows = numel(val.shape[:-1])
    return isinstance(rows, int) and rows <= _FEW.get(val.device.type, 0)


def _always() -> bool:
    return True


def _never() -> bool:
    return False


_CUT_SHORT: dict[str, Callable[[], bool]] = {"cuda": allows_tf32, "cpu": _never}


def _cropped(call: fx.Node, operands: Operands) -> tuple[Operands, fx.Node] | None:
    """What a product was before it was padded for the library on a GPU, and the slice of what was asked for."""
    weight, bias = before_padding(call.args[1], 0), operands.bias
    if packet(call) != LINEAR or weight is None or call.meta["val"].device.type != "cuda":
        return None
    val = weight.meta["val"]
    crop, bias = crop_of(call, val.shape[0]), bias if bias is None else before_padding(bias, 0)
    if crop is None or (bias is None) != (operands.bias is None) or unfit(weight, call) is not None:
        return None
    batch, rows, _, depth = operands.sizes
    strides = (0, *(val.stride()[::-1]))
    return Operands(operands.x, weight, bias, (batch, rows, val.shape[0], depth), strides), crop


def _arguments(call: fx.Node) -> tuple[Any, Any, Any]:
    """Bias, left and right operand."""
    if packet(call) == "aten.addmm":
        return call.args[0], call.args[1], call.args[2]
    bias = call.args[2] if len(call.args) > 2 else call.kwargs.get("bias")
    return bias, call.args[0], call.args[1]


def _dtypes(device: torch.device, lanes: bool) -> tuple[torch.dtype, ...]:
    """What the template multiplies on a device; `lanes` multiply what its matrix units do not, or not as it is."""
    return (*DTYPES[device.type], *(_BY_LANES[device.type] if lanes else ()))


def unfit(node: fx.Node, call: fx.Node, by_lanes: Callable[[], bool] | None = None) -> Reason | None:
    """Why the template takes no such operand or result.

    Args:
        node: the operand or the result.
        call: the product.
        by_lanes: whether lanes multiply it; by default, on GPUs, whether float32 may be cut short.
    """
    val = node.meta["val"]
    if val.device.type not in DTYPES or val.device != call.meta["val"].device:
        return Reason("device", f"the template is for {' and '.join(DTYPES)}, not {val.device}", (call,))
    dtypes = _dtypes(val.device, (by_lanes or _CUT_SHORT[val.device.type])())
    if val.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return Reason("dtype", f"{node.name} is {val.dtype}", (call,), wanted, str(val.dtype))
    if not all(isinstance(size, int) for size in (*val.shape, *val.stride())) or 0 in val.shape:
        return Reason("symbolic", f"sizes {tuple(val.shape)}: static ones above 0 needed", (call,))
    if node.op == "get_attr":
        val = getattr(node.graph.owning_module, str(node.target), val)
    if val.layout != torch.strided or val.is_mkldnn:
        return Reason("layout", f"{node.name} is in a layout of oneDNN's own", (call,))
    return None


# -- epilogues --------------------------------------------------------------------------------------------------------


def epilogues(call: fx.Node, crop: fx.Node | None = None) -> Iterator[tuple[tuple[fx.Node, ...], fx.Node, bool]]:
    """Sets of nodes after the product with one result between them, and that result; smaller ones first.

    On a GPU the product itself may be one more result: the third component.

    Args:
        call: the product.
        crop: what is asked for of it: then a copy of that is a result, and the product is none.
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
        if ends and packet(node) != NORM and any(map(_is_opaque, _readers(node))):
            yield tuple(inside)[1:], node, bool(others)


def _looks_at(node: fx.Node, call: fx.Node) -> bool:
    """Whether a node is the product itself, or a view of it."""
    while node is not call and is_move(node) and packet(node) not in COPIES:
        node = node.all_input_nodes[0]
    return node is call


def _joins(node: fx.Node, call: fx.Node) -> bool:
    """Whether a node computes an element of its result from the product's element and others."""
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
    """Whether a node is a norm by running statistics, elementwise as it is, or takes its first result."""
    if node.target is operator.getitem:
        return packet(node.args[0]) == NORM and node.args[1] == 0  # type: ignore[arg-type]
    return packet(node) == NORM and all(user.args[1] == 0 for user in node.users)


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


def is_read_by_loops(node: fx.Node) -> bool:
    """Whether something reads a node that would compute it in passing, if it were no product's epilogue."""
    return not all(map(_is_opaque, _readers(node)))


def _is_opaque(node: fx.Node) -> bool:
    """Whether a node reads its operands from memory, whatever computed them."""
    return not isinstance(node.target, OpOverload) or find(node.target) is None


# -- formulas ---------------------------------------------------------------------------------------------------------


class Epilogue(Region):
    """Values of nodes in terms of the product's elements and leaves."""

    def __init__(self, call: fx.Node, operands: Operands, inside: Sequence[fx.Node]) -> None:
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
        low.device = call.meta["val"].device
        sizes = tuple(call.meta["val"].shape)
        bias = None if self._operands.bias is None else self.value(self._operands.bias)

        def compute(indices: Indices) -> Value:
            raw: Value = Load(ELEMENT.buffer, indices, torch.float32)
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


def _post_op(low: Formulas, call: fx.Node, made: Tensor) -> Tensor:
    name, algorithm = call.args[3], call.args[5]
    if name == "none":
        return made
    if name not in _POST_OPS:
        raise Unlowered("arguments", f"oneDNN's post-op {name!r}")
    settings = {"approximate": algorithm} if name == "gelu" else {}
    return LOWERINGS[_POST_OPS[name]](low, made, **settings)


class Matcher:
    """Puts a product and nodes after it into a description.

    What multiplies in another way has other indices, operands and a description of its own.
    """

    region: type[Epilogue] = Epilogue
    columns = -1  # which dim of the result they are

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
        self._region = self.region(call, operands, nodes)
        batch, rows, columns, self._depth = operands.sizes
        self._batch, self._row, self._column = Var("g", batch), Var("i", rows), Var("j", columns)
        self._step, self._sides = Var("k", self._depth), sides

    def run(self) -> FoundProduct | Reason:
        """The product with this epilogue, or why it is none."""
        results = [self._result(self._output, "<out>")]
        if self._keep:
            results.append(self._result(self._call, "<product>"))
        refusal = next((result for result in results if isinstance(result, Reason)), None)
        sides = self._prologues()
        left = self._left() if sides[0] is None else sides[0].matrix
        if refusal is not None or left is None:
            return refusal or Reason("operand", f"{self._operands.x.name} is no matrix in memory", (self._call,))
        right = self._right() if sides[1] is None else sides[1].matrix
        out, *more = (result for result in results if isinstance(result, Result))
        computed = [side for side in sides if side is not None]
        leaves = {name: node for side in computed for name, node in side.leaves.items()} | self._region.leaves
        for operand in (left, right):
            leaves.pop(operand.buffer.name, None)
        buffers = tuple(self._region.leaf(node).buffer for node in leaves.values())
        product = self._product(
            self._batch, self._row, self._column, self._depth, left, right, out.buffer, out.place, out.value,
            buffers, self._packed, tuple(more), self._step, *(None if side is None else side.prologue for side in sides)
        )  # fmt: skip
        operands = self._operands.x, self._operands.weight
        mains = (node if side is None else side.main for node, side in zip(operands, sides, strict=True))
        inputs = (*mains, *leaves.values())
        nodes = nodes_between(inputs, self._output)
        before = frozenset(node for side in computed for node in side.nodes)
        kept = self._call if self._keep else None
        return FoundProduct(product, inputs, nodes, self._output, self._call, kept, before)

    def _prologues(self) -> tuple[FoundPrologue | None, FoundPrologue | None]:
        """How operands are computed, where that is looked for."""
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

    def _result(self, node: fx.Node, name: str) -> Result | Reason:
        """What the kernel writes for a node."""
        buffer = replace(made(node), name=name)
        if buffer.strides[self.columns] != 1 and self._column.extent > 1:
            return Reason("result-strides", f"rows of {node.name} are not contiguous", (node,))
        value = self._value(node)
        if value is None:
            return Reason("moved", "elements change their places in the epilogue", (node, self._call))
        return Result(buffer, address(buffer, self._indices(node)), cast(value, compute_dtype(buffer.dtype)))

    def _indices(self, node: fx.Node) -> tuple[Any, ...]:
        """The indices of element (g, i, j) in the result of a node."""
        sizes = tuple(map(int, node.meta["val"].shape))
        flat = raveled((at(self._batch), at(self._row)), (self._batch.extent, self._row.extent))
        return (*unraveled(flat, sizes[:-1]), at(self._column))

    def _value(self, node: fx.Node) -> Value | None:
        """`f` of a node; None where it looks at other elements of the product than its own."""
        value = self._region.value(node).at(self._indices(node))
        own, moved = self._indices(self._call), []

        def raw(part: Value) -> Value | None:
            if not isinstance(part, Load) or part.buffer != ELEMENT.buffer:
                return None
            moved.append(part.indices != own)
            return ELEMENT

        found = Rewriter(raw)(value)
        return None if any(moved) or not moved else found

    def _product(self, *fields: Any) -> Product:
        made = Product(*fields)
        is_whole = made.dtype == torch.float32 and made.out.device.type == "cuda" and not allows_tf32()
        return replace(made, exact=is_whole)

    def _left(self) -> Matrix | None:
        val = self._operands.x.meta["val"]
        sizes, strides = tuple(val.shape), tuple(val.stride())
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


def _row_stride(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of all leading dims as one; None where they are none."""
    dims = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size > 1]
    if not dims:
        return 0
    for (_, outer), (size, inner) in pairwise(dims):
        if outer != size * inner:
            return None
    return dims[-1][1]
