"""Finds the cross entropy of a linear layer's results in a graph after autograd.

    z    = mm(h, w)                     the product; maps of its elements, views, slices of rows and casts in between
    y    = log_softmax(z.float(), 1)
    loss = nll_loss_forward(y, target, weight, mean, sum or none)

    dy   = nll_loss_backward(grad, y, target, ...)
    dz   = to(log_softmax_backward_data(dy, y), z.dtype)         and back through the maps (`logit_maps`)
    dh, dw, db  =  mm(dz, w.t()), mm(dz.t(), h), sum(dz, 0)      each as far as there is one

The values between the product and the loss must have no other reader. Of a loss for each row, the gradient that comes
in must be one number, times factors for the rows that the forward knows (`row_factors`).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from ...rewrites.graph import op_name, shape, val
from ...rewrites.moves import ALIASES, REORDERS
from ...rewrites.symbolic import concrete
from .logit_maps import LogitMaps, UnmappedLogitsError, mapped, returned
from .row_factors import RowFactors, row_factors

NONE, MEAN, SUM = 0, 1, 2


@dataclass(frozen=True)
class LossGradients:
    """The backward of a loss: the gradient that comes in, and the calls that read the gradient of the product.

    Gradients of the weight have shape [V, H] or, transposed, [H, V]. Of a loss for each row, the gradient is one number
    times `factors`. `logits` is the gradient of the log-softmax's operand, `product` that of the product; `sums` are
    sums over rows of gradients, each with the gradient.
    """

    incoming: fx.Node
    factors: RowFactors | None
    logits: fx.Node
    product: fx.Node | None
    sums: list[tuple[fx.Node, fx.Node]]
    rows: list[fx.Node] = field(default_factory=list)
    weights: list[fx.Node] = field(default_factory=list)
    turned: list[fx.Node] = field(default_factory=list)


@dataclass(frozen=True)
class LinearCrossEntropy:
    """A product, `rows` [T, H] by `weight` [H, V], perhaps with a `bias` [V], and the cross entropy of its results."""

    product: fx.Node
    rows: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    maps: LogitMaps
    log_softmax: fx.Node
    loss: fx.Node
    gradients: LossGradients | None

    @property
    def logits(self) -> fx.Node:
        """The operand of the log-softmax."""
        return self.log_softmax.args[0]  # type: ignore[return-value]

    @property
    def bytes(self) -> int:
        """The size of the product's results in bytes."""
        made: torch.Tensor = val(self.product)
        return made.numel() * made.element_size()


def find(loss: fx.Node, backward: Set[fx.Node] = frozenset()) -> LinearCrossEntropy | str:
    """The linear layer whose results `loss` (``nll_loss_forward``) reads; why there is none for blocks to compute."""
    try:
        return _found(loss, backward)
    except UnmappedLogitsError as reason:
        return str(reason)


def _found(loss: fx.Node, backward: Set[fx.Node]) -> LinearCrossEntropy:
    logs, target, _, reduction, _ = loss.args
    if op_name(logs) != "aten._log_softmax" or reduction not in (NONE, MEAN, SUM) or val(target).dtype != torch.int64:
        raise UnmappedLogitsError("the loss is none of a log_softmax and int64 targets")
    assert isinstance(logs, fx.Node)
    if not all(map(concrete, shape(logs))):
        raise UnmappedLogitsError("the number of rows is symbolic")
    maps = mapped(logs.args[0])  # type: ignore[arg-type]
    product = maps.product
    if not _is_plain(product, logs) or any("recompute" in node.meta for node in (*maps.values, logs)):
        raise UnmappedLogitsError("the logits have sizes other than known rows and classes, or are computed again")
    readers = set(_readers(logs)) - {loss}
    gradients = _gradients(readers, loss, maps, backward) if readers else None
    if gradients is None:
        _check_readers(maps, logs)
    bias, rows, weight = product.args if op_name(product) == "aten.addmm" else (None, *product.args)  # type: ignore[misc]
    return LinearCrossEntropy(product, rows, weight, bias, maps, logs, loss, gradients)  # type: ignore[arg-type]


def _is_plain(product: fx.Node, logs: fx.Node) -> bool:
    """Whether a product and a log-softmax are of matrices with known sizes."""
    if product.kwargs or not val(product).is_floating_point() or not val(logs.args[0]).is_floating_point():
        return False
    if not all(isinstance(size, int) and size for node in (product, logs) for size in shape(node)):
        return False
    if len(shape(logs)) != 2 or logs.args[1] not in (1, -1):
        return False
    return op_name(product) != "aten.addmm" or len(shape(product.args[0])) == 1  # type: ignore[arg-type]


def _check_readers(maps: LogitMaps, logs: fx.Node) -> None:
    known = {*maps.values, logs, *(reader for reader, _ in (*maps.sums, *maps.ends))}
    if any(reader not in known for node in maps.values for reader in _readers(node)):
        raise UnmappedLogitsError("the logits have other readers than this loss")


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The readers of a value, also under its other names."""
    for user in node.users:
        if op_name(user) in ("aten.detach", "aten.alias"):
            yield from _readers(user)
        else:
            yield user


# -- the backward -----------------------------------------------------------------------------------------------------


def _gradients(readers: set[fx.Node], loss: fx.Node, maps: LogitMaps, backward: Set[fx.Node]) -> LossGradients:
    """The backward, if it is the backward of this loss alone."""
    named = {op_name(reader): reader for reader in readers}
    ours = ("aten.nll_loss_backward", "aten._log_softmax_backward_data")
    if len(readers) != 2 or set(named) != set(ours):
        others = ", ".join(sorted(name for name in named if name not in ours))
        raise UnmappedLogitsError(f"the logarithms have other readers than this loss: {others or 'more of its kind'}")
    of_loss, of_logs = (named[name] for name in ours)
    if of_loss.args[2:6] != loss.args[1:5] or of_logs.args[0] is not of_loss or set(of_loss.users) != {of_logs}:
        raise UnmappedLogitsError("the gradient of the loss is not the logarithms' only one")
    incoming: fx.Node = of_loss.args[0]  # type: ignore[assignment]
    factors = row_factors(incoming, loss, backward) if loss.args[3] == NONE else None
    if loss.args[3] == NONE and factors is None:
        raise UnmappedLogitsError("the loss of each row has a gradient that is only known in the backward")
    returned(maps, loss.args[0].args[0], of_logs, loss, backward)  # type: ignore[union-attr,arg-type]
    _check_readers(maps, loss.args[0])  # type: ignore[arg-type]
    if factors is not None:
        factors = replace(factors, needed=tuple(node for node in factors.needed if node not in maps.needed))
    return _sorted_out(
        maps, LossGradients(incoming if factors is None else factors.root, factors, of_logs, None, maps.sums)
    )


def _sorted_out(maps: LogitMaps, found: LossGradients) -> LossGradients:
    """The products that read the gradient of a product."""
    rows, weight = maps.product.args[-2:]
    for gradient in {gradient for _, gradient in maps.ends}:
        if maps.values[gradient] or found.product is not None or not _is_like(gradient, maps.product):
            raise UnmappedLogitsError("the gradient of the logits goes another way than the logits")
        found = replace(found, product=gradient)
    for reader, gradient in maps.ends:
        if not _enter(reader, gradient, found, rows, weight):
            name = op_name(reader)
            raise UnmappedLogitsError(f"the gradient of the logits is read by other calls than their products: {name}")
    if (found.weights and found.turned) or not (maps.ends or maps.sums):
        raise UnmappedLogitsError("the gradient of the logits is read by other calls than their products")
    return found


def _is_like(gradient: fx.Node, product: fx.Node) -> bool:
    return shape(gradient) == shape(product) and val(gradient).dtype == val(product).dtype


def _enter(user: fx.Node, gradient: fx.Node, found: LossGradients, rows: Any, weight: Any) -> bool:
    """Record the call of one reader of the product's gradient; False if it computes something else."""
    name, args = op_name(user), user.args
    if name == "aten.t":
        return all(_enter_turned(reader, user, found, rows) for reader in user.users)
    if name != "aten.mm" or user.kwargs:
        return False
    if args[0] is gradient and _turned(args[1]) == _turned(weight, 1):
        found.rows.append(user)
        return True
    if args[1] is gradient and _turned(args[0]) == _turned(rows, 1):
        found.turned.append(user)
        return True
    return False


def _enter_turned(reader: fx.Node, turned: fx.Node, found: LossGradients, rows: Any) -> bool:
    if op_name(reader) != "aten.mm" or reader.args[0] is not turned or _turned(reader.args[1]) != _turned(rows):
        return False
    found.weights.append(reader)
    return True


def _turned(matrix: Any, times: int = 0) -> tuple[Any, int]:
    """A matrix without its transpositions, and the number of these modulo two."""
    while op_name(matrix) in REORDERS | ALIASES and len(shape(matrix)) == 2:
        times += _turns(matrix)
        matrix = matrix.args[0]
    return matrix, times % 2


def _turns(view: fx.Node) -> bool:
    """Whether a view of a matrix swaps its dims."""
    if op_name(view) == "aten.permute":
        return [dim % 2 for dim in view.args[1]] == [1, 0]  # type: ignore[union-attr]
    if op_name(view) == "aten.transpose":
        return view.args[1] % 2 != view.args[2] % 2  # type: ignore[operator]
    return op_name(view) == "aten.t"
