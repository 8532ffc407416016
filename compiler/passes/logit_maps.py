"""Maps of a product's results, element by element, and the gradients that come back through them.

    z = tanh(mm(h, w) / c) * c + b         each element of z is computed from one of the product's, from numbers,
                                           and from what its column has
    dz -> dz * c -> tanh_backward(.) / c   the gradient of the product, linear in that of z; sum(dz, 0) of b

`mapped` finds the first, from the last value back to the product; `returned` the second, from the gradient of the last
value to its sums over rows and to what else reads it. `MapsOfBlock` writes both again for some of the rows.

Rows may be sliced off in between. A value has the same rows as another only if both have lost the same slices.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_tensor, op_name, shape, val
from ...rewrites.moves import ALIASES, COPIES, RESHAPES
from ...rewrites.symbolic import concrete
from .row_factors import followers, is_zero, linear_in, moved

aten = torch.ops.aten

_KEPT = RESHAPES | ALIASES | COPIES | {"aten.slice", "aten.slice_backward"}
_SUMMED = {"aten.add", "aten.sub"}

_ANOTHER_WAY = "the gradient of the logits goes another way than the logits"

Slices = tuple[Any, ...]
"""The slices that the rows of a product lost, first to last."""


class UnmappedLogitsError(Exception):
    """Why a value is no map of a product's results, for the user."""


@dataclass(frozen=True)
class LogitMaps:
    """What is computed from a product's results.

    Args:
        product: the product, with results [T, V].
        values: the values that have its rows and columns, each with the slices that its rows lost.
        path: the calls from the product to the last value, one way, that only move rows.
        sums: sums over all rows of gradients, each with the gradient.
        ends: other readers of gradients, each with the gradient.
        needed: what is to be computed before the loss for the gradients, in order.
    """

    product: fx.Node
    values: dict[fx.Node, Slices]
    path: list[fx.Node] = field(default_factory=list)
    sums: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)
    ends: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)
    needed: list[fx.Node] = field(default_factory=list)


# -- forward ----------------------------------------------------------------------------------------------------------


def mapped(last: fx.Node) -> LogitMaps:
    """The maps between a product and a value; `UnmappedLogitsError` if there is no one product."""
    product = _product(last)
    found = LogitMaps(product, {product: ()})
    _lost(last, found)
    node: Any = last
    while node is not product:
        if op_name(node) in RESHAPES | {"aten.slice"}:
            found.path.insert(0, node)
        node = next(operand for operand in node.all_input_nodes if operand in found.values)
    return found


def _product(last: fx.Node) -> fx.Node:
    """The one product from which a value is computed by maps."""
    products: list[fx.Node] = []
    seen, waiting = {last}, [last]
    while waiting:
        node = waiting.pop()
        if op_name(node) in ("aten.mm", "aten.addmm"):
            products.append(node)
            continue
        if not _is_map(node):
            raise UnmappedLogitsError(f"{op_name(node) or 'an input'} gives the logits, not a product")
        columns = shape(last)[-1]
        new = [n for n in node.all_input_nodes if n not in seen and not _is_column(n, columns)]
        seen.update(new)
        waiting.extend(new)
    if len(products) != 1:
        raise UnmappedLogitsError(f"{len(products)} products give the logits, not one")
    return products[0]


def _is_map(node: fx.Node) -> bool:
    """Whether a call computes each element from one of its operands' each, or only moves rows."""
    if op_name(node) in _KEPT or op_name(node) == "aten._to_copy":
        return is_tensor(node)
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags and is_tensor(node)


def _is_column(node: fx.Node, columns: Any) -> bool:
    """Whether a value is one number, or has at most one for each column."""
    if not is_tensor(node):
        return False
    sizes = shape(node)
    return all(size == 1 for size in sizes[:-1]) and (not sizes or sizes[-1] in (1, columns))


def _lost(node: fx.Node, found: LogitMaps) -> Slices:
    """The slices that a value's rows lost; `UnmappedLogitsError` unless it has the product's rows and columns."""
    if node in found.values:
        return found.values[node]
    columns = shape(found.product)[-1]
    if not _is_map(node) or op_name(node) == "aten.slice_backward":
        raise UnmappedLogitsError(f"{op_name(node)} is no map of the logits, element by element")
    lost = {_lost(operand, found) for operand in node.all_input_nodes if not _is_column(operand, columns)}
    if len(lost) != 1 or not _has_columns(node, columns):
        raise UnmappedLogitsError("the logits have sizes other than known rows and classes")
    (slices,) = lost
    if op_name(node) == "aten.slice":
        given = arguments(node)
        cut = normalized(shape(node.args[0]), given["dim"], given["start"], given["end"], given["step"])  # type: ignore[arg-type]
        if cut[1] == len(cut[0]) - 1:
            raise UnmappedLogitsError("the logits have sizes other than known rows and classes")
        slices = (*slices, cut)
    elif op_name(node) not in _KEPT and any(
        shape(operand) != shape(node) for operand in node.all_input_nodes if operand in found.values
    ):
        raise UnmappedLogitsError("the logits are broadcast")
    found.values[node] = slices
    return slices


def _has_columns(node: fx.Node, columns: Any) -> bool:
    sizes = shape(node)
    return len(sizes) > 1 and sizes[-1] == columns and all(isinstance(size, int) and size for size in sizes)


def normalized(sizes: Any, dim: Any, start: Any, end: Any, stride: Any) -> tuple[Any, ...]:
    """A slice, as what it is cut from, the dim, and the places that it keeps."""
    dim = dim % len(sizes)
    sizes, places = ([val(one) if isinstance(one, fx.Node) else one for one in given]
                     for given in (sizes, (start, end, stride)))  # fmt: skip
    kept = range(sizes[dim])[slice(*places)] if all(map(concrete, (sizes[dim], *places))) else (*map(_written, places),)
    return (tuple(map(_written, sizes)), dim, kept)


def _written(size: Any) -> Any:
    """A number, or the formula of a symbolic one, to be compared without a guard."""
    return size if concrete(size) else size.node.expr


# -- backward ---------------------------------------------------------------------------------------------------------


def returned(found: LogitMaps, last: fx.Node, gradient: fx.Node, loss: fx.Node, backward: Set[fx.Node]) -> None:
    """Follow the gradient of the last value back; `UnmappedLogitsError` if some of it is not linear in that gradient.

    Fills `sums`, `ends` and `needed`, and adds the gradients, and what the derivatives are computed from, to `values`.
    """
    following = {gradient: found.values[last]}
    found.values.update(following)
    outside: set[fx.Node] = set()
    for node in loss.graph.nodes:
        given = [operand for operand in node.all_input_nodes if operand in following]
        if not given:
            continue
        if _is_sum_of_rows(node):
            found.sums.append((node, given[0]))
        elif not _comes_back(node, given, found, outside):
            found.ends.extend((node, one) for one in given)
        else:
            following[node] = found.values[node]
    after = followers([node for node in backward if node.op == "placeholder"], loss.graph)
    needed = moved(outside, loss, after)
    if needed is None:
        raise UnmappedLogitsError("the derivative of the logits is only known in the backward")
    found.needed.extend(needed)


def _comes_back(node: fx.Node, given: list[fx.Node], found: LogitMaps, outside: set[fx.Node]) -> bool:
    """Whether a call gives a gradient that is linear in those given; if so, it is entered with its other operands."""
    name, columns, slices = op_name(node), shape(found.product)[-1], found.values[given[0]]
    if node in found.values or not _is_map(node) or name == "aten.slice" or not _has_columns(node, columns):
        return False
    if name not in _KEPT and any(shape(one) != shape(node) for one in given):
        return False
    if name in _SUMMED:
        if {*node.all_input_nodes} != {*given} or any(found.values[one] != slices for one in given):
            return False
    elif linear_in(node, set(given)) is None:
        return False
    if name == "aten.slice_backward":
        _, sizes, dim, start, end, stride = node.args
        if not slices or slices[-1] != normalized(sizes, dim, start, end, stride):
            raise UnmappedLogitsError(_ANOTHER_WAY)
        slices = slices[:-1]
    _enter_operands(node, slices, [one for one in node.all_input_nodes if one not in given], found, outside)
    found.values[node] = slices
    return True


def _enter_operands(
    node: fx.Node, slices: Slices, operands: list[fx.Node], found: LogitMaps, outside: set[fx.Node]
) -> None:
    """Enter what else the derivative of a map reads: maps of the same rows, and what columns have."""
    for operand in operands:
        if _is_column(operand, shape(found.product)[-1]):
            outside.add(operand)
        elif not is_zero(operand) and (_lost(operand, found) != slices or shape(operand) != shape(node)):
            raise UnmappedLogitsError(_ANOTHER_WAY)


def _is_sum_of_rows(node: fx.Node) -> bool:
    """Whether a call is a sum of a gradient over all of its rows, or over all of its elements."""
    if op_name(node) != "aten.sum":
        return False
    rank, dims = len(shape(node.args[0])), arguments(node).get("dim")  # type: ignore[arg-type]
    return {dim % rank for dim in dims or range(rank)} >= {*range(rank - 1)}


# -- again, for some rows ---------------------------------------------------------------------------------------------


class MapsOfBlock:
    """Writes maps again, for a block of rows [R, V].

    Args:
        editor: inserts calls.
        found: the maps.
    """

    def __init__(self, editor: Editor, found: LogitMaps, block: fx.Node) -> None:
        self._editor, self._found = editor, found
        self._known = {found.product: block}

    def enter(self, node: fx.Node, block: fx.Node) -> None:
        """Let `block` be some rows of a value."""
        self._known[node] = block

    def of(self, node: fx.Node) -> fx.Node:
        """The block's rows of a value."""
        if node not in self._known:
            self._known[node] = self._again(node)
        return self._known[node]

    def _again(self, node: fx.Node) -> fx.Node:
        name = op_name(node)
        if name in _KEPT:
            return self.of(node.args[0])  # type: ignore[arg-type]
        if name == "aten._to_copy":
            value = self.of(node.args[0])  # type: ignore[arg-type]
            return self._editor.cast(value, val(node).dtype)
        args, kwargs = (fx.node.map_arg(given, self._operand) for given in (node.args, node.kwargs))
        return self._editor.call(node.target, *args, **kwargs)

    def _operand(self, node: fx.Node) -> fx.Node:
        if node in self._found.values:
            return self.of(node)
        sizes = shape(node)
        if not _is_column(node, shape(self._found.product)[-1]):  # zeros
            value = val(node)
            return self._editor.call(aten.full.default, [1], 0, dtype=value.dtype, device=value.device)
        return node if len(sizes) < 2 else self._editor.call(aten.view.default, node, [sizes[-1]])


__all__ = ["LogitMaps", "MapsOfBlock", "UnmappedLogitsError", "mapped", "normalized", "returned"]
