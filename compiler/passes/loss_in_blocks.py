"""Computes a linear layer over a vocabulary together with its cross entropy, one block of rows at a time.

    z    = mm(h, w)                               for each block of rows:
    loss = nll_loss(log_softmax(z), target)         z_b   = mm(h_b, w)
                                                    loss += nll_loss(log_softmax(z_b), target_b)
    backward:                               ->      dz_b  = (softmax(z_b) - one_hot(target_b)), in the dtype of z
    dz = (softmax(z) - one_hot) * grad / n          dh_b  = mm(dz_b, w.t())
    dh = mm(dz, w.t())                              dw   += mm(dz_b.t(), h_b)
    dw = mm(dz.t(), h)                            backward: dh * (grad / n), dw * (grad / n)

A loss for each row that is averaged by hand, over a mask, say, has a factor for each row in dz_b. Maps of the logits,
element by element (scales, soft caps, casts, biases), and their derivatives are computed for each block as well.
Other losses (label smoothing, z-loss, log-probabilities of chosen tokens, entropies, distillation) are whatever each
row of logits is reduced to, and are written by blocks as well: `row_region` finds them, `region_in_blocks` writes them.
Neither the logits nor their gradient are stored as a whole. The loss is one number: as soon as a block's logits are
known, so are its gradients, but for a common factor. They are computed at that point. Sums over blocks are in single
precision.
If the number of rows changes between calls (dynamic sizes), the number of blocks is that of the first call, and a block
has that part of the rows, whatever there are: of n blocks, logits take 1/n of the memory of all logits.
The pass runs on the joint graph before it is split, and on inference graphs, which have no gradients.
Liger's kernels (https://arxiv.org/abs/2410.10989) compute gradients together with the loss in the same way.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor
from ...rewrites.graph import is_tensor, op_name, shape, val
from ...rewrites.moves import RESHAPES
from ...rewrites.purity import erase_dead
from ...rewrites.sizes import SizeTable
from ...rewrites.symbolic import concrete, hint, known_equal
from ...rewrites.walk import recompiles
from ..autograd.joint_graph import backward_nodes, mark_recomputed
from .linear_cross_entropy import MEAN, NONE, SUM, LinearCrossEntropy, LossGradients, find
from .logit_maps import MapsOfBlock, UnmappedLogitsError
from .recompute_softmax import ROWS
from .region_in_blocks import RegionInBlocks
from .registry import refuse
from .row_region import find_region

aten = torch.ops.aten

_LARGE = 1 << 29
"""Bytes of logits from which on they are not made whole."""
_FEWEST = 1024
"""Rows of a block at least: products of fewer keep a GPU less busy."""
_MOST = 16
"""Blocks at most: each is written out, and compiled."""
_EVEN = 128
"""A block's rows are a multiple of it, but for the last one's."""
_HALF = (torch.float16, torch.bfloat16)

_LOSSES = ("aten.nll_loss_forward", "aten.logsumexp")
_PRODUCTS = (aten.mm.default, aten.addmm.default)

_library = torch.library.Library("regraft", "FRAGMENT")
_library.define("add_product(Tensor sum, Tensor a, Tensor b) -> Tensor")
_library.define("add_product_(Tensor(a!) sum, Tensor a, Tensor b) -> Tensor(a!)")


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``total + a @ b`` with a total of a wider dtype: torch 2.11 infers no metadata of such an ``addmm``."""
    return _add_product_(total.clone(), a, b)


def _add_product_(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Add the product of two matrices to the total, in place; gives the total."""
    if total.is_cuda:
        return aten.addmm.dtype_out(total, a, b, total.dtype, out=total)  # type: ignore[no-any-return]
    return total.add_(a @ b)


_library.impl("add_product", _add_product, "CompositeExplicitAutograd")
_library.impl("add_product_", _add_product_, "CompositeExplicitAutograd")
torch.library.register_fake("regraft::add_product", lambda total, a, b: torch.empty_like(total), lib=_library)
_ADD = torch.ops.regraft.add_product.default


@recompiles
def loss_in_blocks(graph_module: fx.GraphModule) -> int:
    """Compute large linear layers and their losses by blocks of rows, in place; returns their number."""
    graph = graph_module.graph
    backward = backward_nodes(graph)
    editor = Editor(graph)
    count, others = 0, dict[fx.Node, str]()
    products = [node for target in _PRODUCTS for node in graph.find_nodes(op="call_function", target=target)]
    for loss in graph.find_nodes(op="call_function", target=aten.nll_loss_forward.default):
        if loss in backward or not _is_large(loss):
            continue
        found = find(loss, backward)
        if isinstance(found, str):
            others[loss] = found
        elif found.bytes >= _LARGE and len(_blocks(found.rows)) > 1:
            _Writing(editor, found).write()
            count += 1
    if any(not concrete(size) for product in products for size in shape(product)):
        _compute_sizes(graph)
    for product in products:
        size = hint(val(product).numel() * val(product).element_size())
        if product.users and product not in backward and size is not None and size >= _LARGE:
            count += _reduce_in_blocks(editor, product, others)
    left = {*graph.nodes} if others else ()
    for loss, reason in others.items():
        if loss in left:
            refuse("loss-differs", reason, loss)
    return count


def _reduce_in_blocks(editor: Editor, product: fx.Node, others: dict[fx.Node, str]) -> int:
    """Compute by blocks of rows whatever each row of a product is reduced to; 0 if its rows are needed whole.

    `others` are losses that stay as they are, each with the reason.
    """
    graph = editor.graph
    backward = backward_nodes(graph)
    try:
        region = find_region(product, backward)
        spans = _blocks(product.args[-2], region.rows)
        if len(spans) < 2:
            return 0
        RegionInBlocks(editor, region, backward, spans, _ADD).write()
    except UnmappedLogitsError as reason:
        for loss in _losses_of(product) - backward:
            others.setdefault(loss, str(reason))
        return 0
    erase_dead(graph, [node for node in region.kinds if not node.users])
    return 1


def _compute_sizes(graph: fx.Graph) -> None:
    """Have sizes that are read of values computed from those of inputs, so that the values need not be made."""
    sizes = SizeTable(graph)
    for node in graph.find_nodes(op="call_function", target=aten.sym_size.int):
        if node.args[0].op != "placeholder" and hint(val(node)) is not None:
            with graph.inserting_before(node):
                computed = sizes.node(val(node))
            if computed is not node:
                node.replace_all_uses_with(computed)
                graph.erase_node(node)


def _losses_of(product: fx.Node) -> set[fx.Node]:
    """The losses of what has a product's columns, and the logarithms that they read."""
    found, waiting = {product}, [product]
    while waiting:
        for user in waiting.pop().users:
            if user not in found and (
                op_name(user) in _LOSSES or (is_tensor(user) and _have_same_columns(user, product))
            ):
                found.add(user)
                waiting.append(user)
    return {node for node in found if op_name(node) in _LOSSES}


def _have_same_columns(a: fx.Node, b: fx.Node) -> bool:
    return bool(shape(a)) and known_equal(shape(a)[-1], shape(b)[-1])


def _is_large(loss: fx.Node) -> bool:
    """Whether a loss reads logits that may be too many to be made whole."""
    logs: Any = loss.args[0]
    logits = val(logs.args[0] if op_name(logs) == "aten._log_softmax" else logs)
    size = hint(logits.numel() * logits.element_size())
    return size is not None and size >= _LARGE


def _blocks(rows: Any, count: Any = None) -> list[tuple[Any, Any]]:
    """The first and the last row of each block.

    A block has about as many rows as a row has elements, so that its logits are no larger than the weight. If the
    number of rows changes between calls, there are as many blocks as the first call needs, and all grow with it; calls
    with fewer than two rows for each block have another graph.
    """
    count, depth = shape(rows)[0] if count is None else count, shape(rows)[1]
    blocks = min(math.ceil(hint(count) / max(_FEWEST, depth)), _MOST)
    if not concrete(count):
        even = count // blocks
        if hint(even) < 2 or not compat.takes_guards(count.node.shape_env) or not even >= 2:
            return [(0, count)]
        return [(k * even, (k + 1) * even if k + 1 < blocks else count) for k in range(blocks)]
    rows = math.ceil(count / blocks / _EVEN) * _EVEN
    return [(start, min(start + rows, count)) for start in range(0, count, rows)]


class _Writing:
    """Writes one loss by blocks."""

    def __init__(self, editor: Editor, found: LinearCrossEntropy) -> None:
        self.call, self.cast, self.editor, self.found = editor.call, editor.cast, editor, found
        self.products: torch.dtype = val(found.product).dtype
        self.result: torch.dtype = val(found.log_softmax).dtype
        self.wide = torch.promote_types(torch.promote_types(val(found.logits).dtype, torch.float32), self.result)
        _, _, self.class_weights, self.reduction, self.ignored = found.loss.args
        self._by_row = self.reduction == NONE
        self.losses: list[fx.Node] = []
        self.weights: list[fx.Node] = []
        self.of_rows: list[fx.Node] = []
        self.sums: list[list[fx.Node]] = [[] for _ in found.maps.sums]
        self.of_weights: fx.Node | None = None

    def write(self) -> None:
        """Put the blocks where the loss was computed, and the rest of the backward where the backward was."""
        for node in self.found.maps.needed:
            self.found.loss.prepend(node)
        with self.editor.at(self.found.loss):
            targets, factors = self._of_rows(self.found.loss.args[1], self.ignored), self._factors()
            for start, end in _blocks(self.found.rows):
                self._write_block(targets, factors, start, end)
            loss = self._cut(self.call(aten.cat.default, self.losses)) if self._by_row else self._total(self.losses)
            weight = self._total(self.weights)
            mean = self.call(aten.div.Tensor, loss, weight) if self.reduction == MEAN else loss
            results = [self.cast(one, self.result) for one in (mean, weight)]
            rows = self.call(aten.cat.default, self.of_rows) if self.of_rows else None
            sums = [self._total(one) for one in self.sums]
        self._replace_loss(results)
        gradients = self.found.gradients
        if gradients is None:
            return
        for kept in (rows, *sums, self.of_weights, weight):
            if kept is not None:
                mark_recomputed(kept, False)
        of_weights = [*gradients.weights, *gradients.turned]
        for readers, unit in ((gradients.rows, rows), (of_weights, self.of_weights)):
            for reader in readers:
                self._scale(reader, unit, weight, gradients.incoming)
        for (reader, _), unit in zip(gradients.sums, sums, strict=True):
            self._scale(reader, unit, weight, gradients.incoming)

    def _replace_loss(self, results: list[fx.Node]) -> None:
        for user in list(self.found.loss.users):
            self.editor.replace(user, results[user.args[1]])  # type: ignore[index]
            self.editor.erase_dead(user)

    # -- with the loss ------------------------------------------------------------------------------------------------

    def _factors(self) -> fx.Node | None:
        """A factor for each row of the product, where the loss is one for each row."""
        gradients = self.found.gradients
        if gradients is None or gradients.factors is None:
            return None
        device, kind = val(self.found.loss.args[1]).device, val(gradients.factors.root).dtype  # type: ignore[arg-type]
        sizes = list(shape(gradients.factors.root))
        whole = functools.partial(self.call, aten.full.default, sizes, 1, dtype=kind, device=device)
        return self._of_rows(self.cast(gradients.factors.write(self.editor, self.found.loss, whole), self.wide), 0)

    def _of_rows(self, value: Any, other: Any) -> fx.Node:
        """What each row of the loss has, for each row of the product: `other` for rows that were sliced off."""
        for step in reversed(self.found.maps.path):
            before = list(shape(step.args[0])[:-1])  # type: ignore[arg-type]
            if op_name(step) in RESHAPES:
                value = self.call(aten.view.default, value, before)
            elif op_name(step) == "aten.slice":
                kind, device = val(value).dtype, val(value).device
                whole = self.call(aten.full.default, before, other, dtype=kind, device=device)
                value = self.call(aten.slice_scatter.default, whole, value, *step.args[1:])
        return value  # type: ignore[no-any-return]

    def _cut(self, value: fx.Node) -> fx.Node:
        """What each row of the product has, for each row of the loss."""
        for step in self.found.maps.path:
            if op_name(step) in RESHAPES:
                value = self.call(aten.view.default, value, list(shape(step)[:-1]))
            elif op_name(step) == "aten.slice":
                value = self.call(aten.slice.Tensor, value, *step.args[1:])
                value = self.call(aten.clone.default, value, memory_format=torch.contiguous_format)
        return value

    def _write_block(self, targets: fx.Node, factors: fx.Node | None, start: int, end: int) -> None:
        """The loss and weight of the targets of some rows, and their gradients but for the common factor."""
        found, call = self.found, self.call
        rows = call(aten.slice.Tensor, found.rows, 0, start, end)
        target = call(aten.slice.Tensor, targets, 0, start, end)
        logits = call(found.product.target, *(() if found.bias is None else (found.bias,)), rows, found.weight)
        replay = MapsOfBlock(self.editor, found.maps, logits)
        last = replay.of(found.logits)
        wide = self.cast(last, self.wide)
        numbers = call(ROWS, last, 1, self.wide)
        peak, logs = (call(operator.getitem, numbers, k) for k in range(2))
        away = call(aten.sub.Tensor, call(aten.sub.Tensor, wide, peak), logs)
        reduction = NONE if self._by_row else SUM
        sums = call(aten.nll_loss_forward.default, away, target, self.class_weights, reduction, self.ignored)
        self.losses.append(call(operator.getitem, sums, 0))
        self.weights.append(call(operator.getitem, sums, 1))
        if found.gradients is not None:
            slope = self._slope(away, target)
            if factors is not None:
                some = call(aten.unsqueeze.default, call(aten.slice.Tensor, factors, 0, start, end), 1)
                slope = call(aten.mul.Tensor, slope, some)
            replay.enter(found.gradients.logits, self.cast(slope, val(found.gradients.logits).dtype))
            self._multiply(found.gradients, replay, rows)

    def _slope(self, away: fx.Node, target: fx.Node) -> fx.Node:
        """``(softmax - one_hot(target)) * weight``; 0 for rows whose target is ignored."""
        call, device = self.call, val(target).device
        column = call(aten.unsqueeze.default, target, 1)
        counts = call(aten.ne.Scalar, column, self.ignored)
        classes = call(aten.arange.default, shape(away)[1], device=device)
        hit = self.cast(call(aten.eq.Tensor, column, call(aten.unsqueeze.default, classes, 0)), self.wide)
        slope = call(aten.sub.Tensor, call(aten.exp.default, away), hit)
        weight = self.cast(counts, self.wide)
        if self.class_weights is not None:
            chosen = call(aten.index.Tensor, self.class_weights, [call(aten.mul.Tensor, column, counts)])
            weight = call(aten.mul.Tensor, weight, self.cast(chosen, self.wide))
        return call(aten.mul.Tensor, slope, weight)

    def _multiply(self, asked: LossGradients, replay: MapsOfBlock, rows: fx.Node) -> None:
        """The products and sums of the gradients of a block's logits; products for the weight are accumulated."""
        call = self.call
        gradient: Any = replay.of(asked.product) if asked.product is not None else None
        if asked.rows:
            self.of_rows.append(call(aten.mm.default, gradient, call(aten.t.default, self.found.weight)))
        if asked.weights or asked.turned:
            pair = (rows, gradient) if asked.turned else (gradient, rows)
            self.of_weights = self._added(call(aten.t.default, pair[0]), pair[1])
        for (reader, source), sums in zip(asked.sums, self.sums, strict=True):
            dims = [0] if shape(reader) and shape(reader)[-1] == shape(source)[-1] else [0, 1]
            sums.append(call(aten.sum.dim_IntList, replay.of(source), dims, True, dtype=self.wide))

    def _added(self, a: fx.Node, b: fx.Node) -> fx.Node:
        """``a @ b`` added to the sum of earlier blocks, at least in single precision."""
        call, before = self.call, self.of_weights
        if self.products not in _HALF:
            return call(aten.mm.default, a, b) if before is None else call(aten.addmm.default, before, a, b)
        if before is not None:
            return call(_ADD, before, a, b)
        if val(a).device.type == "cuda":
            return call(aten.mm.dtype, a, b, self.wide)
        return self.cast(call(aten.mm.default, a, b), self.wide)

    def _total(self, numbers: list[fx.Node]) -> fx.Node:
        return functools.reduce(lambda a, b: self.call(aten.add.Tensor, a, b), numbers)

    # -- in the backward ----------------------------------------------------------------------------------------------

    def _scale(self, reader: fx.Node, unit: Any, weight: fx.Node, incoming: fx.Node) -> None:
        """``unit * grad``, divided by the weight of all targets for mean losses, in place of `reader`."""
        with self.editor.at(reader):
            factors = self.found.gradients.factors if self.found.gradients is not None else None
            factor = self.cast(incoming if factors is None else factors.number(self.editor), self.wide)
            if self.reduction == MEAN:  # if all targets are ignored, gradients are 0, not 0 / 0
                share = self.call(aten.div.Tensor, factor, weight)
                factor = self.call(aten.where.ScalarSelf, self.call(aten.eq.Scalar, weight, 0), 0.0, share)
            scaled = self.cast(self.call(aten.mul.Tensor, self.cast(unit, self.wide), factor), val(reader).dtype)
            if shape(scaled) != shape(reader):
                scaled = self.call(aten.view.default, scaled, list(shape(reader)))
        self.editor.replace(reader, scaled)
        self.editor.erase_dead(reader)


__all__ = ["loss_in_blocks"]
