"""Computes what a region computes for each row (`row_region`), for a block of rows, as matrices.

LARGE values are [R, V] for a block of R rows, ROW values [R, 1], whatever their sizes in the program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_tensor, op_name, shape, val
from ...rewrites.moves import EXPANDS
from ...rewrites.symbolic import hint, known_equal, product, same_shape
from .linear_cross_entropy import MEAN, NONE, SUM
from .recompute_softmax import ROWS
from .row_region import GIVEN, LARGE, PRODUCTS, REDUCTIONS, ROW, SAME, TOTAL, RowRegion
from .zeros import filling, is_filled

aten = torch.ops.aten


class RowsOfBlock:
    """Writes the calls of a region again, for the rows from `start` to `end`.

    Args:
        region: the calls.
        editor: inserts calls at its place.
        whole: what a value that is not computed here is, for all rows.
        local: whether a call is computed here.
        cut: the rows of a matrix that are left after all slices.
        block: the product's results for the block.
    """

    def __init__(
        self, region: RowRegion, editor: Editor, whole: Callable[[fx.Node], fx.Node],
        local: Callable[[fx.Node], bool], cut: Callable[[fx.Node], fx.Node], span: tuple[Any, Any], block: fx.Node,
    ) -> None:  # fmt: skip
        self._region, self._editor, self.span = region, editor, span
        self.whole, self.local, self._cut = whole, local, cut
        self.made: list[fx.Node] = [block]
        self._known = {region.product: block}
        self._cuts: dict[tuple[fx.Node, int], fx.Node] = {}

    def of(self, node: fx.Node) -> fx.Node:
        """The block's part of a LARGE or ROW value; of a loss, its two sums or the numbers of rows, and the weights."""
        if node not in self._known:
            self._known[node] = self._again(node)
        return self._known[node]

    def rows_of(self, value: fx.Node, columns: int) -> fx.Node:
        """The block's rows of a value that all rows have, as a matrix."""
        key = (value, hint(columns))
        if key not in self._cuts:
            rows = self._region.rows
            if not same_shape(shape(value), (rows, columns)):
                if not val(value).is_contiguous():
                    value = self._call(aten.clone.default, value, memory_format=torch.contiguous_format)
                value = self._call(aten.view.default, value, [rows, columns])
            self._cuts[key] = self._call(aten.slice.Tensor, value, 0, *self.span)
        return self._cuts[key]

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        self.made.append(self._editor.call(target, *args, **kwargs))
        return self.made[-1]

    def _cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        return node if val(node).dtype == dtype else self._call(aten._to_copy.default, node, dtype=dtype)

    def _again(self, node: fx.Node) -> fx.Node:
        name, kinds = op_name(node), self._region.kinds
        if kinds[node] == GIVEN:
            value = self.whole(node)
            return self.rows_of(self._cut(value) if node in self._region.slices else value, self._region.columns)
        if is_filled(node):
            value = val(node)
            return self._call(aten.full.default, [1, 1], filling(node), dtype=value.dtype, device=value.device)
        if name == "aten._to_copy":
            return self._cast(self._operand(node.args[0], node), val(node).dtype)
        if name in SAME | {"aten.slice", "aten.slice_backward"}:
            return self._operand(node.args[0], node)
        if name in EXPANDS:
            value = self._operand(node.args[0], node)
            columns = self._region.columns if kinds[node] == LARGE else 1
            return self._call(aten.expand.default, value, [shape(self.made[0])[0], columns])
        written: Any = _WRITTEN.get(name)
        if written is not None:
            return written(self, node)  # type: ignore[no-any-return]
        args, kwargs = (
            fx.node.map_arg(given, lambda one: self._operand(one, node)) for given in (node.args, node.kwargs)
        )
        return self._call(node.target, *args, **kwargs)

    def _operand(self, operand: Any, node: fx.Node) -> fx.Node:
        """What a call reads, so that it fits the block's matrices."""
        if operand is self._region.product or self.local(operand):
            return self.of(operand)
        if not is_tensor(operand):
            return self.whole(operand)
        sizes, made = shape(operand), shape(node)
        operand = self.whole(operand)
        if self._region.kinds[node] == LARGE:
            if known_equal(product(sizes[:-1]), 1):
                return operand if len(sizes) < 2 else self._call(aten.view.default, operand, [sizes[-1]])
            if known_equal(sizes[-1], self._region.columns) and known_equal(product(sizes), product(made)):
                return self.rows_of(operand, self._region.columns)
            made = (*made[:-1], 1)
        elif known_equal(product(sizes), 1):
            return operand if not sizes else self._call(aten.view.default, operand, [1])
        return self.rows_of(self._spread(operand, made), 1)

    def _spread(self, value: fx.Node, sizes: Any) -> fx.Node:
        return value if same_shape(shape(value), sizes) else self._call(aten.expand.default, value, [*sizes])

    def product(self, node: fx.Node) -> fx.Node:
        """The block's rows of another product."""
        *bias, rows, weight = map(self.whole, node.args)  # type: ignore[arg-type]
        return self._call(node.target, *bias, self.rows_of(self._cut(rows), shape(rows)[1]), weight)

    # -- functions of rows --------------------------------------------------------------------------------------------

    def softmax(self, node: fx.Node) -> fx.Node:
        """``x - peak - log(sum)``, or its power, so that no result has to be stored."""
        x = self._operand(node.args[0], node)
        wide = torch.promote_types(val(x).dtype, torch.float32)
        numbers = self._call(ROWS, x, 1, wide)
        peak, logs = (self._call(operator.getitem, numbers, k) for k in range(2))
        made = self._call(aten.sub.Tensor, self._call(aten.sub.Tensor, self._cast(x, wide), peak), logs)
        if op_name(node) == "aten._softmax":
            made = self._call(aten.exp.default, made)
        return self._cast(made, val(node).dtype)

    def softmax_backward(self, node: fx.Node) -> fx.Node:
        """``dy - exp(y) * sum(dy)`` of a log_softmax, ``(dy - sum(dy * y)) * y`` of a softmax."""
        gradient, result = (self._operand(one, node) for one in node.args[:2])
        wide = torch.promote_types(val(result).dtype, torch.float32)
        gradient, result = self._cast(gradient, wide), self._cast(result, wide)
        call = self._call
        if op_name(node) == "aten._softmax_backward_data":
            product = call(aten.mul.Tensor, gradient, result)
            total = call(aten.sum.dim_IntList, product, [1], True)
            made = call(aten.sub.Tensor, product, call(aten.mul.Tensor, result, total))
        else:
            total = self._total_of(node.args[0], gradient, wide)
            made = call(aten.sub.Tensor, gradient, call(aten.mul.Tensor, call(aten.exp.default, result), total))
        return self._cast(made, val(node).dtype)

    def _total_of(self, node: Any, gradient: fx.Node, wide: torch.dtype) -> fx.Node:
        """The sum of each row of a gradient; that of a loss has one element other than 0."""
        if op_name(node) == "aten.nll_loss_backward":
            return self._cast(self._incoming(node), wide)
        if shape(gradient)[1] == 1:
            return self._call(aten.mul.Tensor, gradient, self._region.columns)
        return self._call(aten.sum.dim_IntList, gradient, [1], True)

    def reduced(self, node: fx.Node) -> fx.Node:
        """A reduction of each row, or the sum of all."""
        x, given = self._operand(node.args[0], node), arguments(node)
        if shape(x)[1] != self._region.columns:
            x = self._call(aten.expand.default, x, [shape(x)[0], self._region.columns])
        kind = given.get("dtype")
        asked = {} if kind is None else {"dtype": kind}
        if self._region.kinds[node] == TOTAL:
            wide = torch.promote_types(val(node).dtype, torch.float32) if val(node).is_floating_point() else None
            return self._call(aten.sum.dim_IntList, x, [0, 1], False, dtype=wide or val(node).dtype)
        if op_name(node) == "aten.argmax":
            return self._call(aten.argmax.default, x, 1, True)
        norm = [given["ord"]] if op_name(node) == "aten.linalg_vector_norm" else []
        return self._call(node.target, x, *norm, [1], True, **asked)

    def chosen(self, node: fx.Node) -> fx.Node:
        """``gather(x, -1, index)`` for one index of each row."""
        x, index = self._operand(node.args[0], node), self.rows_of(self.whole(node.args[2]), 1)  # type: ignore[arg-type]
        return self._call(aten.gather.default, x, 1, index)

    def scattered(self, node: fx.Node) -> fx.Node:
        """``scatter_add(zeros, -1, index, source)`` for one index of each row."""
        index, source = (self._one_of_row(one) for one in node.args[2:4])
        hit = self._call(aten.eq.Tensor, index, self._classes(index))
        return self._call(aten.where.ScalarOther, hit, source, 0)

    def _one_of_row(self, node: Any) -> fx.Node:
        return self.of(node) if self.local(node) else self.rows_of(self.whole(node), 1)

    def _classes(self, like: fx.Node) -> fx.Node:
        device = val(like).device
        classes = self._call(aten.arange.default, self._region.columns, device=device)
        return self._call(aten.unsqueeze.default, classes, 0)

    # -- losses of classes --------------------------------------------------------------------------------------------

    def loss(self, node: fx.Node) -> fx.Node:
        """``nll_loss_forward``: its sum and the weight of its targets, or the numbers of rows."""
        logs, target, weight, reduction, ignored = node.args
        target = self._call(aten.squeeze.dim, self._one_of_row(target), 1)
        asked = NONE if reduction == NONE else SUM
        weight = None if weight is None else self.whole(weight)  # type: ignore[arg-type]
        x = self._operand(logs, node)
        if reduction != NONE:
            x = self._cast(x, torch.promote_types(val(x).dtype, torch.float32))
            weight = None if weight is None else self._cast(weight, val(x).dtype)
        return self._call(aten.nll_loss_forward.default, x, target, weight, asked, ignored)

    def of_loss(self, node: fx.Node) -> fx.Node:
        """The numbers of rows that a loss without reduction gives."""
        numbers = self._call(operator.getitem, self.of(node.args[0]), node.args[1])  # type: ignore[arg-type]
        return self._call(aten.unsqueeze.default, numbers, 1) if self._region.kinds[node] == ROW else numbers

    def _incoming(self, node: fx.Node) -> fx.Node:
        """What a loss's gradient holds for the target of each row, [R, 1]: 0 for ignored ones."""
        gradient, _, target, weight, reduction, ignored, total = node.args
        call, column = self._call, self._one_of_row(target)
        if reduction == NONE:
            number = self._one_of_row(gradient)
        else:
            number = self.whole(gradient)  # type: ignore[arg-type]
            if reduction == MEAN:
                number = call(aten.div.Tensor, number, self.whole(total))  # type: ignore[arg-type]
            number = call(aten.view.default, number, [1, 1])
        counts = call(aten.ne.Scalar, column, ignored)
        if weight is not None:
            index = [call(aten.mul.Tensor, column, counts)]
            number = call(aten.mul.Tensor, number, call(aten.index.Tensor, self.whole(weight), index))  # type: ignore[arg-type]
        return call(aten.where.ScalarOther, counts, call(aten.neg.default, number), 0)

    def loss_backward(self, node: fx.Node) -> fx.Node:
        """``nll_loss_backward``: one element of each row."""
        target = self._one_of_row(node.args[2])
        hit = self._call(aten.eq.Tensor, target, self._classes(target))
        return self._call(aten.where.ScalarOther, hit, self._incoming(node), 0)


_WRITTEN: dict[str, Callable[[RowsOfBlock, fx.Node], fx.Node]] = {
    "aten._softmax": RowsOfBlock.softmax,
    "aten._log_softmax": RowsOfBlock.softmax,
    "aten._softmax_backward_data": RowsOfBlock.softmax_backward,
    "aten._log_softmax_backward_data": RowsOfBlock.softmax_backward,
    "aten.gather": RowsOfBlock.chosen,
    "aten.scatter_add": RowsOfBlock.scattered,
    "aten.nll_loss_forward": RowsOfBlock.loss,
    "aten.nll_loss_backward": RowsOfBlock.loss_backward,
    "getitem": RowsOfBlock.of_loss,
    **dict.fromkeys(PRODUCTS, RowsOfBlock.product),
    **dict.fromkeys(REDUCTIONS, RowsOfBlock.reduced),
}

__all__ = ["RowsOfBlock"]
