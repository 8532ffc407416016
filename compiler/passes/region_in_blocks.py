"""Writes what a large product is reduced to, and the gradients, one block of rows at a time (`row_region`).

If the gradients are one number of the backward times what the forward knows, they are computed with the results, as
soon as a block's logits are known. If not (a loss that is no sum over rows: preferences of pairs of sequences; sums of
16 bits with few exponents, where the number has to come first), the backward computes each block's logits again.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Set
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_tensor, op_name, shape, val
from ...rewrites.moves import RESHAPES
from ...rewrites.symbolic import known_equal, product, same_shape
from ..autograd.joint_graph import mark_recomputed
from .linear_cross_entropy import MEAN
from .logit_maps import UnmappedLogitsError
from .recompute_softmax import ROWS
from .row_factors import followers, is_zero, linear_in, moved
from .row_region import LARGE, LOSS, REDUCTIONS, ROW, SAME, SUMS, TOTAL, TURNED, RowRegion
from .rows_of_block import RowsOfBlock
from .zeros import is_filled

aten = torch.ops.aten

_FIRST = SAME | SUMS | {
    "aten.expand", "aten.slice", "aten.slice_backward", "aten._softmax_backward_data",
    "aten._log_softmax_backward_data", "aten.nll_loss_backward",
}  # fmt: skip
"""Calls that are linear in their first operand."""
_TOGETHER = ("aten.add", "aten.sub")


class RegionInBlocks:
    """Writes one region.

    Args:
        editor: of the graph.
        region: what is computed row by row.
        backward: the nodes that follow from what the backward is given.
        spans: first and last row of each block.
        add: ``sum + a @ b`` for sums of a wider dtype than the product's.
    """

    def __init__(
        self, editor: Editor, region: RowRegion, backward: Set[fx.Node], spans: list[tuple[Any, Any]], add: Any
    ) -> None:
        self.call, self.cast, self.editor = editor.call, editor.cast, editor
        self.region, self._backward, self._spans, self._add = region, backward, spans, add
        graph = region.product.graph
        self._place = {node: i for i, node in enumerate(graph.nodes)}
        self._after = followers([region.product], graph)
        self._incoming = _following([node for node in backward if node.op == "placeholder"], graph)
        self._anchor = self._first_reader()
        self._weights: dict[fx.Node, fx.Node] = {}
        self._ones: dict[fx.Node, fx.Node] = {}

    def write(self) -> None:
        """Replace the region; `UnmappedLogitsError` if the graph does not know all that is needed in time."""
        region = self.region
        number = self._one_number() if region.ends else None
        ends = region.ends if number is not None else []
        self._move(region.results + ends, self._is_local if ends else self._is_local_forward, ends)
        again = [] if number is not None or not region.ends else self._needed_again()
        results = {node: [] for node in region.results}  # type: dict[fx.Node, list[fx.Node]]
        with self.editor.at(self._anchor):
            rows = self.cut(region.product.args[-2])
            units = _Ends(self, ends)
            blocks = [self._write_block(rows, span, number, results, units) for span in self._spans]
            made = {node: self._joined(node, parts) for node, parts in results.items()}
            finished = units.finished()
        for node, whole in made.items():
            self._replace(node, whole)
        if number is not None:
            for end, unit in finished.items():
                mark_recomputed(unit, False)
                self._put(end, unit, number)
        elif again:
            self._write_again(again, blocks)

    # -- what is read -------------------------------------------------------------------------------------------------

    def _first_reader(self) -> fx.Node:
        """The first call that reads a result or a gradient and that is not computed by blocks."""
        kinds, results = self.region.kinds, set(self.region.results)
        sources = [user for node in results if kinds[node] == LOSS for user in node.users] + [*results]
        readers = {
            user
            for node in sources
            for user in node.users
            if kinds.get(user) not in (LARGE, LOSS, TURNED) and user not in results and user not in sources
        }
        readers |= {*self.region.ends}
        if not readers:  # of what blocks have replaced
            raise UnmappedLogitsError("nobody reads the loss")
        return min(readers, key=self._place.__getitem__)

    def _is_local(self, node: fx.Node) -> bool:
        return self.region.kinds.get(node) in (LARGE, ROW, LOSS, TURNED)

    def _is_local_forward(self, node: fx.Node) -> bool:
        return self._is_local(node) and node not in self._backward

    def _move(self, roots: list[fx.Node], is_local: Callable[[fx.Node], bool], ends: list[fx.Node]) -> None:
        """Have what the blocks read computed before them."""
        _, given = self.region.needed_by([*roots], is_local)
        given |= {*self.region.product.all_input_nodes}  # another product's results may be read before this one is
        if ends:
            copied = self._copied(given)
            given = {one for node in copied for one in node.all_input_nodes} | given
            given = {node for node in given if node not in self._incoming}
        losses = {self._weight_of(node) for node in given} - {None}
        given = {node for node in given if self._weight_of(node) is None} | {loss.args[1] for loss in losses if loss}  # type: ignore[misc]
        late = given & self._after
        needed = None if late else moved(given, self._anchor, self._after)
        if needed is None:
            raise UnmappedLogitsError("a function of each row reads what other rows are needed for")
        for node in needed:
            self._anchor.prepend(node)

    def _weight_of(self, node: fx.Node) -> fx.Node | None:
        """The loss of which a node is the weight of all targets, which these alone tell."""
        is_weight = self.region.kinds.get(node) == TOTAL and op_name(node) == "getitem" and node.args[1] == 1
        return node.args[0] if is_weight else None  # type: ignore[return-value]

    # -- gradients with the loss --------------------------------------------------------------------------------------

    def _one_number(self) -> fx.Node | None:
        """The number of the backward in which all gradients are linear, with factors that the forward knows."""
        region, incoming = self.region, self._incoming
        if any(val(one).dtype == torch.float16 for one in region.slices):
            return None
        local, given = region.needed_by([*region.ends], self._is_local)
        copied = self._copied(given)
        numbers = {node for node in copied if node.op == "placeholder"}
        if len(numbers) != 1 or not all(known_equal(product(shape(node)), 1) for node in numbers):
            return None
        follow = {*copied, *(node for node in local if node in incoming)}
        if not all(self._is_linear(node, follow) for node in follow - numbers - {*region.ends}):
            return None
        read = given.union(*(node.all_input_nodes for node in copied)) - incoming
        if any(node in self._after and self._weight_of(node) is None for node in read):
            return None
        return numbers.pop()

    def _copied(self, given: Iterable[fx.Node]) -> set[fx.Node]:
        """What follows from the numbers that come in, outside of the blocks, and gives some values."""
        found: set[fx.Node] = set()
        waiting = [node for node in given if node in self._incoming]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting.extend(one for one in node.all_input_nodes if one in self._incoming)
        return found

    def _is_linear(self, node: fx.Node, following: Set[fx.Node]) -> bool:
        name = op_name(node)
        given = [one for one in node.all_input_nodes if one in following]
        if name in _TOGETHER:
            return all(one in following or is_zero(one) for one in node.args[:2])
        if name == "aten.where":
            return node.args[0] not in following and all(one in following or is_zero(one) for one in node.args[1:])
        if name == "aten.scatter_add":
            return given == [node.args[3]]
        if name in _FIRST or self.region.kinds.get(node) == TURNED:
            return given == [node.args[0]]
        return linear_in(node, following) is not None

    def _with_one(self, node: fx.Node) -> fx.Node:
        """A value of the backward for a gradient of 1; other values themselves."""
        loss = self._weight_of(node)
        if loss is not None:
            if loss not in self._weights:
                self._weights[loss] = self._weight(loss)
            return self._weights[loss]
        if node not in self._incoming:
            return node
        if node not in self._ones:
            if node.op == "placeholder":
                value = val(node)
                made = self.call(aten.full.default, [*shape(node)], 1, dtype=value.dtype, device=value.device)
            else:
                args, kwargs = (fx.node.map_arg(given, self._with_one) for given in (node.args, node.kwargs))
                made = self.call(node.target, *args, **kwargs)
            self._ones[node] = made
        return self._ones[node]

    def _weight(self, loss: fx.Node) -> fx.Node:
        """The weight of all targets of a loss."""
        _, target, weight, _, ignored = loss.args
        counts = self.call(aten.ne.Scalar, target, ignored)
        kind = val(loss)[1].dtype
        if weight is None:
            return self.cast(self.call(aten.sum.default, counts), kind)
        chosen = self.call(aten.index.Tensor, weight, [self.call(aten.mul.Tensor, target, counts)])
        return self.cast(self.call(aten.sum.default, self.call(aten.mul.Tensor, chosen, counts)), kind)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _write_block(
        self, rows: fx.Node, span: tuple[Any, Any], number: fx.Node | None, results: dict[fx.Node, list[fx.Node]],
        units: _Ends,
    ) -> RowsOfBlock:  # fmt: skip
        region, product = self.region, self.region.product
        some = self.call(aten.slice.Tensor, rows, 0, *span)
        bias = product.args[:-2]
        block = self.call(product.target, *bias, some, product.args[-1])
        whole = self._with_one if number is not None else (lambda node: node)
        local = self._is_local if number is not None else self._is_local_forward
        values = RowsOfBlock(region, self.editor, whole, local, self.cut, span, block)
        for node, parts in results.items():
            parts.append(values.of(node))
        units.add(values)
        values.made.append(some)
        return values

    def _joined(self, node: fx.Node, parts: list[fx.Node]) -> list[fx.Node]:
        """A result of all rows, of the blocks'; a loss has two."""
        if self.region.kinds[node] == ROW:
            return [self._sized(self.call(aten.cat.default, parts), node)]
        if self.region.kinds[node] == TOTAL:
            return [self.cast(self.total(parts), val(node).dtype)]
        loss, weight = ([self.call(operator.getitem, part, k) for part in parts] for k in range(2))
        weights = self.total(weight)
        if shape(loss[0]):
            return [self.call(aten.cat.default, loss), weights]
        kind, whole = val(node)[0].dtype, self.total(loss)
        whole = self.call(aten.div.Tensor, whole, weights) if node.args[3] == MEAN else whole
        return [self.cast(whole, kind), self.cast(weights, kind)]

    def _replace(self, node: fx.Node, whole: list[fx.Node]) -> None:
        if self.region.kinds[node] != LOSS:
            mark_recomputed(whole[0], False)
            self.editor.replace(node, whole[0])
            return
        for user in [*node.users]:
            if op_name(user) == "getitem":
                mark_recomputed(whole[user.args[1]], False)  # type: ignore[index]
                self.editor.replace(user, whole[user.args[1]])  # type: ignore[index]

    def total(self, parts: list[fx.Node]) -> fx.Node:
        """The sum of what blocks give."""
        return functools.reduce(lambda a, b: self.call(aten.add.Tensor, a, b), parts)

    def _sized(self, value: fx.Node, like: fx.Node) -> fx.Node:
        return value if same_shape(shape(value), shape(like)) else self.call(aten.view.default, value, [*shape(like)])

    def cut(self, value: Any) -> fx.Node:
        """The rows of a matrix that are left after all slices."""
        width = shape(value)[1]
        for step in self.region.path:
            if op_name(step) in RESHAPES:
                value = self.call(aten.view.default, value, [*shape(step)[:-1], width])
            else:
                value = self.call(aten.slice.Tensor, value, *step.args[1:])
                value = self.call(aten.clone.default, value, memory_format=torch.contiguous_format)
        return value if len(shape(value)) == 2 else self.call(aten.view.default, value, [self.region.rows, width])

    def uncut(self, value: fx.Node) -> fx.Node:
        """A matrix with rows of zeros for those that were sliced off."""
        width, path = shape(value)[1], self.region.path
        if path:
            value = self.call(aten.view.default, value, [*shape(path[-1])[:-1], width])
        for step in reversed(path):
            before = [*shape(step.args[0])[:-1], width]  # type: ignore[arg-type]
            if op_name(step) in RESHAPES:
                value = self.call(aten.view.default, value, before)
            else:
                given = arguments(step)
                cut = [given[name] for name in ("dim", "start", "end", "step")]
                ends = [0 if cut[1] is None else cut[1], before[cut[0]] if cut[2] is None else cut[2]]
                value = self.call(aten.slice_backward.default, value, before, cut[0], *ends, cut[3])
        return value

    # -- gradients in the backward ------------------------------------------------------------------------------------

    def _needed_again(self) -> list[fx.Node]:
        """The ends, if the backward knows in time what they need."""
        region, graph = self.region, self.region.product.graph
        sums = [node for node in region.kinds if region.kinds[node] == ROW and node in self._backward
                and any(region.kinds.get(one) == LARGE for one in node.all_input_nodes)]  # fmt: skip
        self._from_sums = followers(sums, graph)
        first = min(region.ends, key=self._place.__getitem__)
        _, given = region.needed_by([*region.ends], self._is_local_again)
        place = {node: i for i, node in enumerate(graph.nodes)}
        late = [node for node in given if place[node] > place[first]]
        needed = moved(set(late), first, followers(region.ends, graph) | self._from_sums)
        if needed is None or given & self._from_sums:
            raise UnmappedLogitsError("the gradient of the logits goes another way than the logits")
        for node in needed:
            first.prepend(node)
        return [first]

    def _is_local_again(self, node: fx.Node) -> bool:
        if not self._is_local(node) or self.region.kinds[node] in (LARGE, TURNED):
            return self._is_local(node)
        return node not in self._backward or node in self._from_sums

    def _write_again(self, first: list[fx.Node], blocks: list[RowsOfBlock]) -> None:
        with self.editor.at(first[0]):
            units = _Ends(self, self.region.ends)
            for values in blocks:
                values.local = self._is_local_again
                units.add(values)
            finished = units.finished()
        self._mark(blocks)
        for end, unit in finished.items():
            self._put(end, unit, None)

    def _mark(self, blocks: list[RowsOfBlock]) -> None:
        """Have the backward compute logits again, and keep what they are reduced to."""
        graph = self.region.product.graph
        after = _following([node for node in self._backward if node.op == "placeholder"], graph)
        for values in blocks:
            for node in values.made:
                if node in after:
                    continue
                reduced = node.target is ROWS or op_name(node) in REDUCTIONS | {"getitem", "aten.gather"}
                if reduced:
                    mark_recomputed(node, False)
                elif (
                    is_tensor(node)
                    and len(shape(node)) == 2
                    and (known_equal(shape(node)[1], self.region.columns) or op_name(node) == "aten.slice")
                ):
                    mark_recomputed(node, True)

    def _put(self, end: fx.Node, unit: fx.Node, number: fx.Node | None) -> None:
        """A gradient of all rows in the place of what gave it."""
        with self.editor.at(end):
            if number is not None:
                wide = torch.promote_types(val(unit).dtype, torch.float32)
                factor = self.cast(number, wide)
                factor = self.call(aten.view.default, factor, []) if shape(factor) else factor
                unit = self.call(aten.mul.Tensor, self.cast(unit, wide), factor)
            unit = self._sized(self.cast(unit, val(end).dtype), end)
        self.editor.replace(end, unit)
        self.editor.erase_dead(end)

    def added(self, before: fx.Node | None, a: fx.Node, b: fx.Node) -> fx.Node:
        """``a @ b`` added to the sum of earlier blocks, at least in single precision."""
        call, kind = self.call, val(a).dtype
        if kind not in (torch.float16, torch.bfloat16):
            return call(aten.mm.default, a, b) if before is None else call(aten.addmm.default, before, a, b)
        if before is not None:
            return call(self._add, before, a, b)
        if val(a).device.type == "cuda":
            return call(aten.mm.dtype, a, b, torch.float32)
        return self.cast(call(aten.mm.default, a, b), torch.float32)


def _following(given: list[fx.Node], graph: fx.Graph) -> set[fx.Node]:
    """What depends on some values, not on their sizes only."""
    found = {*given}
    for node in graph.nodes:
        if not is_filled(node) and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


class _Ends:
    """The gradients of all rows, as far as blocks are known."""

    def __init__(self, writer: RegionInBlocks, ends: list[fx.Node]) -> None:
        self._writer, self._ends = writer, ends
        self._parts: dict[fx.Node, list[fx.Node]] = {end: [] for end in ends}
        self._others: dict[tuple[fx.Node, bool], fx.Node] = {}

    def add(self, values: RowsOfBlock) -> None:
        """Enter a block's products and sums."""
        writer, kinds = self._writer, self._writer.region.kinds
        for end, parts in self._parts.items():
            call, first = writer.call, end.args[0]
            if op_name(end) == "aten.sum":
                gradient = values.of(first)  # type: ignore[arg-type]
                dims = [0] if shape(end)[-1:] == shape(first)[-1:] else [0, 1]  # type: ignore[arg-type]
                wide = torch.promote_types(val(gradient).dtype, torch.float32)
                parts.append(call(aten.sum.dim_IntList, gradient, dims, True, dtype=wide))
            elif kinds.get(first) == LARGE:  # type: ignore[arg-type]
                parts.append(call(aten.mm.default, values.of(first), values.whole(end.args[1])))  # type: ignore[arg-type]
            else:
                before = parts.pop() if parts else None
                if kinds.get(first) == TURNED:  # type: ignore[arg-type]
                    gradient = values.of(first.args[0])  # type: ignore[union-attr,arg-type]
                    pair = call(aten.t.default, gradient), self._other_of(values, end.args[1], False)  # type: ignore[arg-type]
                else:
                    other = self._other_of(values, first, True)  # type: ignore[arg-type]
                    pair = call(aten.t.default, other), values.of(end.args[1])  # type: ignore[arg-type]
                parts.append(writer.added(before, *pair))

    def _other_of(self, values: RowsOfBlock, other: fx.Node, turned: bool) -> fx.Node:
        """The block's rows of the other operand of a product for a weight."""
        key, writer = (other, turned), self._writer
        if key not in self._others:
            given = values.whole(other)
            self._others[key] = writer.cut(writer.call(aten.t.default, given) if turned else given)
        return writer.call(aten.slice.Tensor, self._others[key], 0, *values.span)

    def finished(self) -> dict[fx.Node, fx.Node]:
        """The gradient of all rows in the place of each end."""
        writer, found = self._writer, {}
        for end, parts in self._parts.items():
            by_row = op_name(end) == "aten.mm" and writer.region.kinds.get(end.args[0]) == LARGE  # type: ignore[arg-type]
            found[end] = writer.uncut(writer.call(aten.cat.default, parts)) if by_row else writer.total(parts)
        return found


__all__ = ["RegionInBlocks"]
