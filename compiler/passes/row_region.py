"""Finds what is computed from a large product row by row, down to a few numbers for each row.

    z    = mm(h, w)                           the product: a row of numbers for each row of h
    logs = log_softmax(z.float(), -1)         LARGE: functions of each row, also casts, views and slices of rows
    nll  = gather(logs, -1, target)           ROW: one number for each row
    lse  = logsumexp(z, -1)
    loss = nll_loss(logs, target)             TOTAL: sums over rows
    ---
    dy   = scatter_add(zeros, -1, target, g)                           LARGE, in the backward
    dh   = mm(dz, w.t()),  dw = mm(dz.t(), h),  db = sum(dz, 0)        the ends

Whatever is LARGE has no reader but those named here, so that nobody needs it for all rows at once. What else these
calls read is given: numbers, values of columns or of rows, which are computed elsewhere.

Rows may be sliced off in between. A value's `slices` are those that its rows have lost; what is computed for each row
is computed after the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ...rewrites.graph import arguments, is_tensor, op_name, shape, val
from ...rewrites.moves import ALIASES, COPIES, EXPANDS, REORDERS, RESHAPES
from ...rewrites.symbolic import concrete, hint, known_equal, product, same_shape
from .linear_cross_entropy import MEAN, NONE, SUM
from .logit_maps import Slices, UnmappedLogitsError, normalized
from .row_factors import is_zero
from .zeros import is_filled

LARGE, ROW, TOTAL, LOSS, TURNED, GIVEN = "large", "row", "total", "loss", "turned", "given"
"""Numbers of rows and columns; a number of each row; sums over rows; a loss's both results; LARGE, transposed; LARGE,
and computed elsewhere."""

SAME = RESHAPES | ALIASES | COPIES | {"aten._to_copy"}
SOFTMAXES = {"aten._softmax": 1, "aten._log_softmax": 1, "aten._softmax_backward_data": 2,
             "aten._log_softmax_backward_data": 2}  # fmt: skip
"""Functions of whole rows, each with the place of the dim."""
PRODUCTS = ("aten.mm", "aten.addmm")
SUMS = {"aten.sum", "aten.mean"}
REDUCTIONS = SUMS | {"aten.amax", "aten.amin", "aten.logsumexp", "aten.argmax", "aten.linalg_vector_norm"}
_BY_INDEX = ("aten.nll_loss_backward", "aten.scatter_add")

_READERS = "the logits have other readers than this loss"
_SIZES = "the logits have sizes other than known rows and classes"
_WAY = "the gradient of the logits goes another way than the logits"


@dataclass
class RowRegion:
    """What is computed from a product row by row.

    Args:
        product: the product, with results [T, V].
        kinds: the calls that are computed for each row, and what each gives.
        slices: the slices that the rows of LARGE values have lost.
        path: the calls from the product to a value that has lost all slices, that only move rows.
        results: calls of the forward that give a number for each row or a sum over rows.
        ends: calls of the backward that read LARGE values, and give values of other columns, or sums over rows.
    """

    product: fx.Node
    kinds: dict[fx.Node, str] = field(default_factory=dict)
    slices: dict[fx.Node, Slices] = field(default_factory=dict)
    path: list[fx.Node] = field(default_factory=list)
    results: list[fx.Node] = field(default_factory=list)
    ends: list[fx.Node] = field(default_factory=list)

    @property
    def columns(self) -> int:
        """The number of columns of LARGE values."""
        return shape(self.product)[-1]  # type: ignore[no-any-return]

    @property
    def rows(self) -> Any:
        """The number of rows that are left after all slices."""
        last = self.path[-1] if self.path else self.product
        return product(shape(last)[:-1])

    def needed_by(self, ends: list[fx.Node], is_local: Callable[[fx.Node], bool]) -> tuple[set[fx.Node], set[fx.Node]]:
        """The calls that have to be computed block by block for some, and what they read."""
        local, given, waiting = set(ends), set[fx.Node](), list(ends)
        while waiting:
            for operand in _operands(waiting.pop()):
                if operand in local or operand is self.product:
                    continue
                if is_local(operand):
                    local.add(operand)
                    waiting.append(operand)
                else:
                    given.add(operand)
        return local, given


def _operands(node: fx.Node) -> list[fx.Node]:
    """What blocks read of a call's operands: nothing of tensors whose sizes alone matter."""
    if is_filled(node):
        return []
    return [*node.args[2:4]] if op_name(node) == "aten.scatter_add" else node.all_input_nodes  # type: ignore[list-item]


def find_region(large: fx.Node, backward: Set[fx.Node]) -> RowRegion:
    """What is computed from a product's results; `UnmappedLogitsError` if something needs these whole."""
    made: torch.Tensor = val(large)
    known = all(map(_is_size, made.shape)) and concrete(made.shape[-1]) and made.shape[-1] > 1
    if large.kwargs or not made.is_floating_point() or not known:
        raise UnmappedLogitsError(_SIZES)
    if op_name(large) == "aten.addmm" and len(shape(large.args[0])) != 1:  # type: ignore[arg-type]
        raise UnmappedLogitsError(_SIZES)
    return _Finding(large, backward).found()


class _Finding:
    def __init__(self, large: fx.Node, backward: Set[fx.Node]) -> None:
        self._region = RowRegion(large, {large: LARGE}, {large: ()})
        self._backward = backward
        self._by_row: list[fx.Node] = []
        self._others: list[fx.Node] = []

    def found(self) -> RowRegion:
        """The region, after all readers have been entered."""
        region, follows = self._region, False
        for node in region.product.graph.nodes:
            follows = follows or node is region.product
            if follows and node not in region.kinds:
                self._visit(node)
        for other in self._others:
            if not self._is_read_here(other):
                region.kinds[other] = GIVEN
        if any("recompute" in node.meta for node in region.kinds if node not in self._backward):
            raise UnmappedLogitsError("the logits are computed again")
        if not region.results:
            raise UnmappedLogitsError(_READERS)
        self._find_path()
        return region

    def _find_path(self) -> None:
        """All slices are of one chain, and what is computed for each row comes after them."""
        region = self._region
        whole = max(region.slices.values(), key=len)
        if any(whole[: len(some)] != some for some in region.slices.values()):
            raise UnmappedLogitsError(_SIZES)
        for node in self._by_row:
            if any(region.slices.get(one, whole) != whole for one in (node, *node.all_input_nodes)):
                raise UnmappedLogitsError("rows of the logits are cut off after others are reduced")
        if not whole:
            return
        follows = [n for n in region.slices if region.slices[n] == whole and n not in self._backward]
        node = next(n for n in follows if op_name(n) == "aten.slice")
        while node is not region.product:
            if op_name(node) in RESHAPES | {"aten.slice"}:
                region.path.insert(0, node)
            node = next(one for one in node.all_input_nodes if one in region.slices)

    def _is_read_here(self, other: fx.Node) -> bool:
        """Whether no results of another product are needed but by blocks."""
        kinds, large = self._region.kinds, {other}
        for node in other.graph.nodes:
            if large.isdisjoint(node.all_input_nodes):
                continue
            if node not in kinds:
                try:
                    self._visit(node)
                except UnmappedLogitsError:
                    return False
            if kinds.get(node) == LARGE:
                large.add(node)
        return True

    # -- one call -----------------------------------------------------------------------------------------------------

    def _visit(self, node: fx.Node) -> None:
        region = self._region
        kinds = [region.kinds.get(operand) for operand in node.all_input_nodes]
        if LARGE in kinds or TURNED in kinds:
            self._read_large(node)
        elif LOSS in kinds:
            loss: Any = node.args[0]
            region.kinds[node] = ROW if node.args[1] == 0 and loss.args[3] == NONE else TOTAL
        elif ROW in kinds and self._is_repeated(node):
            region.kinds[node], region.slices[node] = LARGE, self._slices_of([])
        elif ROW in kinds and self._is_row_wise(node):
            region.kinds[node] = ROW

    def _read_large(self, node: fx.Node) -> None:
        """Enter a reader of a LARGE value; `UnmappedLogitsError` if it needs all rows."""
        region, name = self._region, op_name(node)
        large = [operand for operand in node.all_input_nodes if region.kinds.get(operand) in (LARGE, TURNED)]
        if name in REDUCTIONS and self._is_reduction(node):
            return
        if name == "aten.nll_loss_forward" and self._is_loss(node):
            self._enter_result(node, LOSS)
        elif name == "aten.gather" and node.args[0] in large and self._chooses_one(node):
            self._enter_result(node, ROW)
        elif name == "aten.mm" and node in self._backward and self._is_end(node):
            region.ends.append(node)
        elif name in REORDERS and node in self._backward and len(shape(node)) == 2 and not region.slices[large[0]]:
            region.kinds[node] = TURNED
        elif any(region.kinds[operand] == TURNED for operand in large) or not self._enter_large(node, None):
            raise UnmappedLogitsError(f"{_READERS}: {name}")

    def _enter_result(self, node: fx.Node, kind: str) -> None:
        self._region.kinds[node] = kind
        self._by_row.append(node)
        if node not in self._backward:
            self._region.results.append(node)

    def _is_loss(self, node: fx.Node) -> bool:
        logits, target, _, reduction, _ = node.args
        plain = len(shape(logits)) == 2 and val(target).dtype == torch.int64  # type: ignore[arg-type]
        return reduction in (NONE, MEAN, SUM) and plain and node not in self._backward

    def _is_reduction(self, node: fx.Node) -> bool:
        """Whether a reduction is of each row, or of all of them; if so, it is entered."""
        region, operand, given = self._region, node.args[0], arguments(node)
        if region.kinds.get(operand) != LARGE:  # type: ignore[arg-type]
            return False
        rank, dims = len(shape(operand)), given.get("dim")  # type: ignore[arg-type]
        dims = {dim % rank for dim in ([dims] if isinstance(dims, int) else dims or range(rank))}
        if dims == {rank - 1}:
            self._enter_result(node, ROW)
        elif op_name(node) != "aten.sum" or not {*range(rank - 1)} <= dims:
            return False
        elif node in self._backward:
            region.ends.append(node)
        elif len(dims) == rank:
            self._enter_result(node, TOTAL)
        else:
            return False
        return True

    def _chooses_one(self, node: fx.Node) -> bool:
        logits, dim, index = node.args[:3]
        one = (*shape(logits)[:-1], 1)  # type: ignore[arg-type]
        return _is_last(dim, one) and same_shape(shape(index), one) and index not in self._region.kinds  # type: ignore[arg-type]

    def _is_end(self, node: fx.Node) -> bool:
        """Whether a product reads the gradient of the logits of all rows, as its first or second operand, once."""
        region = self._region
        first, second = (region.kinds.get(one) for one in node.args)  # type: ignore[arg-type]
        if (first, second) not in ((LARGE, None), (TURNED, None), (None, LARGE)):
            return False
        return first == TURNED or not region.slices[node.args[0] if first else node.args[1]]  # type: ignore[index]

    # -- maps ---------------------------------------------------------------------------------------------------------

    def _enter_large(self, node: fx.Node, slices: Slices | None) -> bool:
        """Enter a call that gives a number for each row and column; False if it is none that blocks can compute.

        `slices` are those of the value that is computed from it, if it is entered for that.
        """
        region, name = self._region, op_name(node)
        if not is_tensor(node) or not self._has_columns(node):
            return False
        if name in ("aten.slice", "aten.slice_backward"):
            return self._enter_slice(node) if slices is None else self._enter_other_slice(node, slices)
        if name in PRODUCTS and node not in self._backward and slices == ():
            self._others.append(node)
            region.kinds[node], region.slices[node] = LARGE, ()
            return True
        if not self._computes_large(node):
            return False
        large = [one for one in node.all_input_nodes if region.kinds.get(one) == LARGE]
        kept = self._slices_of(large) if slices is None else slices
        region.kinds[node], region.slices[node] = LARGE, kept
        return all(self._enter_operand(node, operand, kept) for operand in node.all_input_nodes if is_tensor(operand))

    def _computes_large(self, node: fx.Node) -> bool:
        """Whether blocks can compute a call, if they know its operands."""
        name, args = op_name(node), node.args
        if name in SOFTMAXES or name in _BY_INDEX:
            self._by_row.append(node)
        if name in SOFTMAXES:
            return _is_last(args[SOFTMAXES[name]], shape(node))
        if name == "aten.nll_loss_backward":
            return val(args[2]).dtype == torch.int64 and len(shape(node)) == 2  # type: ignore[arg-type]
        if name == "aten.scatter_add":
            one = (*shape(node)[:-1], 1)
            known = all(same_shape(shape(operand), one) for operand in args[2:4])  # type: ignore[arg-type]
            return is_zero(args[0]) and _is_last(args[1], one) and known
        if name in EXPANDS:
            return all(known_equal(size, 1) for size in shape(args[0])[-1:])  # type: ignore[arg-type]
        return name in SAME or is_pointwise(node) or is_filled(node)

    def _enter_slice(self, node: fx.Node) -> bool:
        region, operand = self._region, node.args[0]
        if operand not in region.slices:
            return False
        slices = region.slices[operand]  # type: ignore[index]
        if op_name(node) == "aten.slice":
            cut = _cut_by(node)
            if cut[1] == len(cut[0]) - 1:
                return False
            slices = (*slices, cut)
        else:
            _, sizes, dim, start, end, stride = node.args
            if not slices or slices[-1] != normalized(sizes, dim, start, end, stride):
                raise UnmappedLogitsError(_WAY)
            slices = slices[:-1]
        region.kinds[node], region.slices[node] = LARGE, slices
        return True

    def _enter_other_slice(self, node: fx.Node, slices: Slices) -> bool:
        """Enter a slice of other logits, whose rows are cut off as those of the product are."""
        if op_name(node) != "aten.slice" or not slices or slices[-1] != _cut_by(node):
            return False
        self._region.kinds[node], self._region.slices[node] = LARGE, slices
        return self._enter_operand(node, node.args[0], slices[:-1])  # type: ignore[arg-type]

    def _slices_of(self, large: list[fx.Node]) -> Slices:
        """The slices that all of some values have lost."""
        region = self._region
        found = {region.slices[operand] for operand in large if operand in region.slices}
        if len(found) > 1:
            raise UnmappedLogitsError(_SIZES)
        return found.pop() if found else max(region.slices.values(), key=len)

    def _enter_operand(self, node: fx.Node, operand: fx.Node, slices: Slices) -> bool:
        """Whether blocks know what a call reads: parts of values of rows, or what is small."""
        region, sizes, made = self._region, shape(operand), shape(node)
        kind, moves = region.kinds.get(operand), op_name(node) in SAME | EXPANDS | {*_BY_INDEX}
        if kind == LARGE:
            return region.slices[operand] == slices and (moves or same_shape(sizes, made))
        if kind == ROW:
            self._by_row.append(node)
            return moves or same_shape(sizes, (*made[:-1], 1))
        if kind not in (None, GIVEN):
            return kind == TOTAL and node in self._backward
        if op_name(node) in SAME | {"aten.slice"}:
            return self._enter_whole(node, operand, slices)
        if op_name(node) not in _BY_INDEX and all(known_equal(size, 1) for size in sizes[:-1]):
            return not sizes or known_equal(sizes[-1], 1) or known_equal(sizes[-1], region.columns)
        if op_name(node) in _BY_INDEX or known_equal(sizes[-1], 1):
            self._by_row.append(node)
            return True
        return known_equal(product(sizes), product(made)) and self._enter_whole(node, operand, slices)

    def _enter_whole(self, node: fx.Node, operand: fx.Node, slices: Slices) -> bool:
        """Enter a value of other rows and columns, or have it given."""
        region = self._region
        if not self._has_columns(operand):
            return False
        before = dict(region.kinds), dict(region.slices), [*self._by_row], [*self._others]
        if region.kinds.get(operand) != GIVEN and self._enter_large(operand, slices):
            return True
        region.kinds, region.slices, self._by_row, self._others = before
        region.kinds[operand] = GIVEN
        self._by_row.append(node)
        return operand not in self._backward and len(slices) == max(map(len, region.slices.values()))

    def _has_columns(self, node: fx.Node) -> bool:
        sizes = shape(node)
        return len(sizes) > 1 and all(map(_is_size, sizes)) and known_equal(sizes[-1], self._region.columns)

    # -- numbers of rows ----------------------------------------------------------------------------------------------

    def _is_row_wise(self, node: fx.Node) -> bool:
        """Whether a call of numbers for each row gives such a number for each row again."""
        if not is_tensor(node):
            return False
        sizes = [shape(one) for one in node.all_input_nodes if self._region.kinds.get(one) == ROW]
        if op_name(node) in SAME | EXPANDS:
            return known_equal(product(shape(node)), product(sizes[0]))
        return is_pointwise(node) and all(same_shape(one, shape(node)) for one in sizes)

    def _is_repeated(self, node: fx.Node) -> bool:
        """Whether a call repeats a number of each row for each column."""
        if op_name(node) not in EXPANDS or not self._has_columns(node):
            return False
        return same_shape(shape(node.args[0]), (*shape(node)[:-1], 1))  # type: ignore[arg-type]


def _is_size(size: Any) -> bool:
    """Whether a size is known, but for symbols with examples, and not 0."""
    return bool(size) if concrete(size) else hint(size) is not None


def _is_last(dim: Any, sizes: tuple[Any, ...]) -> bool:
    return dim % len(sizes) == len(sizes) - 1  # type: ignore[no-any-return]


def _cut_by(node: fx.Node) -> tuple[Any, ...]:
    given = arguments(node)
    return normalized(shape(given["self"]), given["dim"], given["start"], given["end"], given["step"])


def is_pointwise(node: fx.Node) -> bool:
    """Whether a call computes each element from one of its operands' each, without drawing."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags


__all__ = [
    "GIVEN", "LARGE", "LOSS", "PRODUCTS", "REDUCTIONS", "ROW", "SAME", "SOFTMAXES", "SUMS", "TOTAL", "TURNED",
    "RowRegion", "find_region",
]  # fmt: skip
