"""Operands of products that are computed on the way in: what a kernel may take over from the graph before it.

    %c = aten._to_copy(%w_int8, bfloat16); %s = aten.mul(%c, %scale); %y = aten.mm(%x, %s)
                    ->   y = x @ b        b[k, j] = round(float(w_int8[k, j]) * scale[j])

Only what nobody else reads, element by element: no reductions, no random numbers. Halves of bytes that are put side by
side (`stack([p & 15, p >> 4], -1)`) are elements of their own. Matrices chosen by an index (`w[experts]`) are read
where they lie, and so are rows of small tables (`scales[group]`), on CPUs where they are known to be there
(`passes.picked_rows`). On CPUs, bits may choose a number of a small table (`nf4[p & 15]`), where they cannot choose
another, and small tables that are unpacked (`zeros >> shifts`) are read as tables: each element is read many times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ....rewrites.compat import OpOverload, argument
from ....rewrites.graph import CASTS
from ...ir.dependence import Dependence
from ...ir.index.index import Index, Loaded, Var, atoms, quotient, remainder
from ...ir.index.ranges import in_range
from ...ir.simplify import simplify
from ...ir.value import Const, Load, Number, Op, Rewriter, Value, compute_dtype, indices_of, walk
from ...lowering.core import TABLE_SPAN, Indices, cast
from ...lowering.sizes import Unlowered
from ...passes.gathered_products import gathers_matrices
from ...passes.picked_rows import index_of, picks_rows
from ..attention.description import address
from ..common.formula import NUMBERS, Formulas, is_move, packet
from .description import FLOAT8, Matrix, Prologue

_BYTES = (torch.int8, torch.uint8, torch.bool)
_WIDER = (torch.bfloat16, torch.float16, torch.float32)  # what holds every 8-bit float
_LONGEST = 40  # nodes of a prologue
_JOINS = ("aten.cat", "aten.stack")  # of parts of one size: what unpacks bytes ends with
_MOST_PARTS = 8  # of these: a byte has as many bits
_TABLE = 256  # entries of a table that stays in a processor's first cache
_REPEATED = 32  # times that each element of a table is read which is unpacked before; parts of words are up to 16
_BITS = ("aten.bitwise_right_shift", "aten.__rshift__", "aten.bitwise_and", "aten.__and__")
_LARGE_PARTS = 2  # tensors of the operand's own size that it is computed from, at most


@dataclass(frozen=True)
class FoundPrologue:
    """The inputs and the formula of an operand that is computed as it is read.

    Args:
        prologue: its formula.
        matrix: where the largest of what it reads lies.
        main: the node of that; `leaves` all nodes that are read, by buffer name.
        nodes: what is computed.
    """

    prologue: Prologue
    matrix: Matrix
    main: fx.Node
    leaves: dict[str, fx.Node]
    nodes: tuple[fx.Node, ...]


def prologue_of(
    operand: fx.Node, call: fx.Node, indices: tuple[Any, ...], loops: Sequence[Var]
) -> FoundPrologue | None:
    """How an operand of a product is computed; None where it is not, where others read it, or where it has no formula.

    Args:
        operand: the node.
        call: the product.
        indices: of the operand's element, in `loops`.
        loops: the batch, the operand's rows and its columns.
    """
    for lookups in (True, False):
        inside = _chain(operand, call, lookups)
        if not _is_worth(inside):
            return None
        formulas = _Operand(inside, through_copies=False)
        try:
            value = cast(formulas.value(operand).at(indices), compute_dtype(operand.meta["val"].dtype))
        except Unlowered:
            return None
        if not lookups or not any(_takes(node, True) for node in inside) or _are_in_range(value):
            break
    value = Rewriter(_exact)(simplify(value))
    if any(part.dtype in FLOAT8 for part in walk([value])):
        return None
    buffers = {
        part.buffer: formulas.leaf(formulas.leaves[part.buffer]).buffer
        for part in walk([value])
        if isinstance(part, Load)
    }
    device = call.meta["val"].device
    if not buffers or any(b.device != device or 0 in b.sizes for b in buffers.values()):
        return None
    size = operand.meta["val"].numel()
    if sum(math.prod(b.sizes) >= size for b in buffers.values()) > _LARGE_PARTS:
        return None
    main = max(buffers.values(), key=lambda b: (math.prod(b.sizes), b.dtype in _BYTES))
    leaves = {name: formulas.leaves[name] for name in buffers}
    prologue = Prologue(value, operand.meta["val"].dtype, tuple(buffers.values()))
    return FoundPrologue(prologue, _matrix(value, main, loops), leaves[main.name], leaves, tuple(inside))


def is_computed(operand: fx.Node, call: fx.Node) -> bool:
    """Whether an operand of a product may have a prologue: what to ask before all formulas are made."""
    return _is_worth(_chain(operand, call))


def _is_worth(inside: Iterable[fx.Node]) -> bool:
    return not all(map(is_move, inside))


def _chain(operand: fx.Node, call: fx.Node, lookups: bool = True) -> dict[fx.Node, None]:
    """The nodes that compute the operand element by element, and that nobody else reads."""
    inside: dict[fx.Node, None] = {}
    waiting = [operand] if list(operand.users) == [call] and call.args.count(operand) == 1 else []
    while waiting and len(inside) < _LONGEST:
        node = waiting.pop(0)
        shared = node is not operand and any(user not in inside for user in node.users)
        if node in inside or shared or not (_computes_elements(node) or _takes(node, lookups)):
            continue  # what is read by more of the chain is looked at again when that is inside
        if _is_unpacked_table(node, operand):
            continue
        inside[node] = None
        waiting.extend(node.all_input_nodes)
    return inside


def _computes_elements(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor) or _is_float8(node):
        return False
    if _sees_bits(node):
        return False
    if is_move(node) or packet(node) in CASTS or _joins_parts(node):
        return True
    if gathers_matrices(node):
        return node.meta["val"].device.type == "cuda"
    if not isinstance(node.target, OpOverload):
        return False
    tags = node.target.tags
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags


def _takes(node: fx.Node, lookups: bool) -> bool:
    """Whether a node takes numbers or rows of a small table, which on CPUs must be known to be there (`lookups`)."""
    if _reorders(node):
        return True
    if not lookups and node.meta["val"].device.type == "cpu":
        return False
    return _looks_up(node) or picks_rows(node)


def _reorders(node: fx.Node) -> bool:
    """Whether a node takes elements along one dim by a small table of constants (`passes.periodic_order`)."""
    if packet(node) != "aten.index" or not isinstance(node.args[0], fx.Node):
        return False
    indices = [index for index in node.args[1] if index is not None]  # type: ignore[union-attr]
    table = indices[0] if len(indices) == 1 else None
    return isinstance(table, fx.Node) and TABLE_SPAN in table.meta and table.meta["val"].numel() <= _TABLE


def _looks_up(node: fx.Node) -> bool:
    """Whether a node takes numbers of a small table, on a CPU."""
    if index_of(node) is None or packet(node.args[0]) in NUMBERS:  # type: ignore[arg-type]
        return False
    table: torch.Tensor = node.args[0].meta["val"]  # type: ignore[union-attr]
    known = all(isinstance(size, int) for size in table.shape)
    return table.device.type == "cpu" and known and table.dim() > 0 and 0 < table.shape[0] == table.numel() <= _TABLE


def _is_unpacked_table(node: fx.Node, operand: fx.Node) -> bool:
    """Whether a node is a small table of few bits on a CPU: each of its elements would be unpacked many times."""
    val, whole = node.meta["val"], operand.meta["val"]
    if val.device.type != "cpu" or not all(isinstance(size, int) for size in (*val.shape, *whole.shape)):
        return False
    if val.numel() * _REPEATED > whole.numel():
        return False
    found, waiting = {node}, [node]
    while waiting:
        below = waiting.pop()
        if packet(below) in _BITS:
            return True
        new = [n for n in below.all_input_nodes if n not in found and _computes_elements(n)]
        found.update(new)
        waiting.extend(new)
    return False


def _are_in_range(value: Value) -> bool:
    """Whether all that is read at places which data say is known to be there."""
    places = (at for part in walk([value]) for number in indices_of(part) for at in atoms(number))
    return all(in_range(place) for place in places if isinstance(place, Loaded))


class _Operand(Formulas):
    """Values of nodes before a product; 8-bit floats are known as what they are cast to."""

    def _is_seen_through(self, node: fx.Node) -> bool:
        return not (_is_float8(node) or _sees_bits(node)) and super()._is_seen_through(node)

    def _compute(self, node: fx.Node) -> Any:
        if packet(node) in _JOINS:
            return self._joined(node)
        source = node.all_input_nodes[0] if node.all_input_nodes else node
        if packet(node) not in CASTS or not _is_float8(source):
            return super()._compute(node)
        eights, val = self.value(source), node.meta["val"]
        if val.dtype not in _WIDER:
            raise Unlowered("dtype", f"{source.name} of {source.meta['val'].dtype} as {val.dtype}")
        self._low.origin = self._low.current = node
        self._low.device = val.device
        return self._low.pointwise(lambda at: _widened(eights.at(at)), eights.sizes, val.dtype)

    def _joined(self, node: fx.Node) -> Any:
        """Parts of one size side by side: the place says of which part an element is."""
        parts, val = [self.value(part) for part in node.args[0]], node.meta["val"]  # type: ignore[union-attr]
        dim = _joined_dim(node)
        size = val.shape[dim] // len(parts)

        def compute(at: Indices) -> Value:
            between = (remainder(at[dim], size),) if packet(node) == "aten.cat" else ()
            elements = [part.at((*at[:dim], *between, *at[dim + 1 :])) for part in parts]
            chosen = elements.pop()
            for place in reversed(range(len(elements))):
                own = (Number(quotient(at[dim], size), torch.int64), Const(place, torch.int64))
                chosen = Op("where", (Op("eq", own, torch.bool), elements[place], chosen), chosen.dtype)
            return chosen

        self._low.origin = self._low.current = node
        self._low.device = val.device
        return self._low.pointwise(compute, tuple(val.shape), val.dtype)


def _joined_dim(node: fx.Node) -> int:
    dim = argument(node, "dim") or 0
    return dim % node.meta["val"].dim()


def _joins_parts(node: fx.Node) -> bool:
    """Whether a node joins tensors of one dtype that have the same size along the joined dim; on GPUs a size of 1."""
    if packet(node) not in _JOINS or not isinstance(node.args[0], (list, tuple)):
        return False
    val, parts = node.meta["val"], [part.meta["val"] for part in node.args[0] if isinstance(part, fx.Node)]
    if not all(part.dtype == val.dtype for part in parts):
        return False
    dim = _joined_dim(node)
    if len(parts) == val.shape[dim]:
        return True
    same = packet(node) == "aten.cat" and {part.dim() for part in parts} == {val.dim()}
    few = 1 < len(parts) == len(node.args[0]) <= _MOST_PARTS and val.device.type == "cpu"
    return same and few and len({part.shape[dim] for part in parts}) == 1


def _is_float8(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].dtype in FLOAT8


def _sees_bits(node: fx.Node) -> bool:
    """Whether a node gives the bits of 8-bit floats, as which kernels know them."""
    return packet(node) == "aten.view" and _is_float8(node.all_input_nodes[0])


def _widened(eight: Value) -> Value:
    """An 8-bit float as float32, which any dtype that it is cast to holds exactly."""
    if not isinstance(eight, Load):
        raise Unlowered("dtype", "nothing is computed in 8-bit floats")
    return Load(eight.buffer, eight.indices, torch.float32)


def factored(prologue: Prologue, step: Var) -> tuple[Prologue, Value | None]:
    """Take factors of bytes that are the same along the depth out of the sums, into what is computed of these.

    b[k, j] = float(w[k, j]) * s[j];  y = sum   ->   b[k, j] = float(w[k, j]);  y = sum * s[j]

    Each element then takes fewer operations, and bytes are multiplied as they are, without being rounded.

    Args:
        prologue: of a right operand.
        step: the loop over the depth.

    Returns:
        what is left of it, and the factor; None where there is none.
    """
    value, factor, dependence = prologue.value, None, Dependence()
    while isinstance(value, Op) and value.name == "mul":
        same = next((part for part in value.args if step not in dependence.of(part)), None)
        if same is None:
            break
        rest = value.args[1 - value.args.index(same)]
        if not _is_of_bytes(rest, prologue.dtype):
            break
        value, factor = rest, same if factor is None else Op("mul", (factor, same), same.dtype)
    if factor is None:
        return prologue, None
    read = {part.buffer for part in walk([value]) if isinstance(part, Load)}
    return Prologue(value, prologue.dtype, tuple(b for b in prologue.buffers if b.name in read)), factor


def _is_of_bytes(value: Value, dtype: torch.dtype) -> bool:
    """Whether a value is made of bytes, and the dtype holds what comes of them: float16 may hold no more than these."""
    loads = [part for part in walk([value]) if isinstance(part, Load)]
    bytes_read = [load.dtype in _BYTES for load in loads]
    return any(bytes_read) and (dtype != torch.float16 or all(bytes_read))


def _exact(value: Value) -> Value | None:
    """Rounding what has few digits changes nothing: bytes have eight, and so have 16-bit floats at least."""
    if not isinstance(value, Op) or not value.name.startswith("round_"):
        return None
    whole = value.args[0]
    while isinstance(whole, Op) and whole.name == "cast" and whole.dtype.is_floating_point:
        whole = whole.args[0]
    return value.args[0] if whole.dtype in _BYTES else None


def _matrix(value: Value, main: Any, loops: Sequence[Var]) -> Matrix:
    """The main buffer with its strides along the loops; 0 for a loop that its elements do not go along."""
    load = next(part for part in walk([value]) if isinstance(part, Load) and part.buffer == main.name)
    at = address(main, load.indices)
    terms = dict(at.terms) if isinstance(at, Index) else {}
    strides = (terms.get((var,), 0) for var in loops)
    return Matrix(main, *strides)
