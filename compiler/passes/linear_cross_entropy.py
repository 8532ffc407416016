"""Finds the cross entropy of a linear layer's results in a graph after autograd.

    z    = mm(h, w)                     the product; views, slices of rows and casts up in between (`steps`)
    y    = log_softmax(z.float(), 1)
    loss = nll_loss_forward(y, target, weight, mean, sum or none)

    dy   = nll_loss_backward(grad, y, target, ...)
    dz   = to(log_softmax_backward_data(dy, y), z.dtype)         and what undoes the steps
    dh, dw, db  =  mm(dz, w.t()), mm(dz.t(), h), sum(dz, 0)      each as far as there is one

The values between the product and the loss must have no other reader. Of a loss for each row, the gradient that comes
in must be one number, times factors for the rows that the forward knows (`row_factors`).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ...rewrites.graph import arguments, op_name, shape, val
from ...rewrites.moves import ALIASES, COPIES, REORDERS, RESHAPES
from .row_factors import RowFactors, row_factors

NONE, MEAN, SUM = 0, 1, 2
_PASSED = RESHAPES | ALIASES | COPIES | {"aten._to_copy"}  # between a product and its loss


@dataclass(frozen=True)
class LossGradients:
    """The backward of a loss: the gradient that comes in, and the calls that read the gradient of the product.

    Gradients of the weight have shape [V, H] or, transposed, [H, V]. Of a loss for each row, the gradient is one number
    times `factors`.
    """

    incoming: fx.Node
    factors: RowFactors | None = None
    rows: list[fx.Node] = field(default_factory=list)
    weights: list[fx.Node] = field(default_factory=list)
    turned: list[fx.Node] = field(default_factory=list)
    biases: list[fx.Node] = field(default_factory=list)


@dataclass(frozen=True)
class LinearCrossEntropy:
    """A product, `rows` [T, H] by `weight` [H, V], perhaps with a `bias` [V], and the cross entropy of its results."""

    product: fx.Node
    rows: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    steps: list[fx.Node]
    log_softmax: fx.Node
    loss: fx.Node
    gradients: LossGradients | None

    @property
    def bytes(self) -> int:
        """The size of the product's results in bytes."""
        made: torch.Tensor = val(self.product)
        return made.numel() * made.element_size()


def find(loss: fx.Node, backward: Set[fx.Node] = frozenset()) -> LinearCrossEntropy | str:
    """The linear layer whose results `loss` (``nll_loss_forward``) reads; why there is none for blocks to compute."""
    logs, target, _, reduction, _ = loss.args
    if op_name(logs) != "aten._log_softmax" or reduction not in (NONE, MEAN, SUM) or val(target).dtype != torch.int64:
        return "the loss is none of a log_softmax and int64 targets"
    assert isinstance(logs, fx.Node)
    steps = _steps(logs)
    product: Any = steps[0].args[0] if steps else logs.args[0]
    if op_name(product) not in ("aten.mm", "aten.addmm"):
        return f"{op_name(product) or 'an input'} gives the logits, not a product"
    if not _is_plain(product, steps, logs):
        return "the logits have other readers, sizes other than known rows and classes, or are rounded on the way"
    bias, rows, weight = product.args if op_name(product) == "aten.addmm" else (None, *product.args)  # type: ignore[misc]
    readers = set(_readers(logs)) - {loss}
    if not readers:
        return LinearCrossEntropy(product, rows, weight, bias, steps, logs, loss, None)  # type: ignore[arg-type]
    gradients = _gradients(readers, loss, steps, product, backward)
    if isinstance(gradients, str):
        return gradients
    return LinearCrossEntropy(product, rows, weight, bias, steps, logs, loss, gradients)  # type: ignore[arg-type]


def _steps(logs: fx.Node) -> list[fx.Node]:
    """The calls between a product and the log-softmax, which must be their only reader."""
    steps: list[fx.Node] = []
    node: Any = logs.args[0]
    while op_name(node) in _PASSED | {"aten.slice"}:
        steps.append(node)
        node = node.args[0]
    return steps[::-1]


def _is_plain(product: fx.Node, steps: list[fx.Node], logs: fx.Node) -> bool:
    """Whether each row of the product is one row of the log-softmax, and nothing else reads the values in between."""
    chain = [product, *steps]
    if op_name(product) not in ("aten.mm", "aten.addmm") or product.kwargs or not val(product).is_floating_point():
        return False
    if not all(isinstance(size, int) and size for node in (*chain, logs) for size in shape(node)):
        return False
    if any(len(node.users) != 1 or "recompute" in node.meta for node in chain) or "recompute" in logs.meta:
        return False
    if (
        any(shape(node)[-1] != shape(product)[1] for node in steps)
        or len(shape(logs)) != 2
        or logs.args[1] not in (1, -1)
    ):
        return False
    if op_name(product) == "aten.addmm" and len(shape(product.args[0])) != 1:  # type: ignore[arg-type]
        return False
    return all(_keeps_values(node) for node in steps)


def _keeps_values(step: fx.Node) -> bool:
    before, after = val(step.args[0]), val(step)
    if op_name(step) == "aten.slice":
        dim = step.args[1] if len(step.args) > 1 else 0
        return isinstance(dim, int) and dim % before.dim() != before.dim() - 1
    return after.is_floating_point() and torch.promote_types(before.dtype, after.dtype) == after.dtype


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The readers of a value, also under its other names."""
    for user in node.users:
        if op_name(user) in ("aten.detach", "aten.alias"):
            yield from _readers(user)
        else:
            yield user


# -- the backward -----------------------------------------------------------------------------------------------------


def _gradients(
    readers: set[fx.Node], loss: fx.Node, steps: list[fx.Node], product: fx.Node, backward: Set[fx.Node]
) -> LossGradients | str:
    """The backward, if it is the backward of this loss alone; why it is not."""
    named = {op_name(reader): reader for reader in readers}
    ours = ("aten.nll_loss_backward", "aten._log_softmax_backward_data")
    if len(readers) != 2 or set(named) != set(ours):
        others = ", ".join(sorted(name for name in named if name not in ours))
        return f"the logarithms have other readers than this loss: {others or 'more of its kind'}"
    of_loss, of_logs = (named[name] for name in ours)
    if of_loss.args[2:6] != loss.args[1:5] or of_logs.args[0] is not of_loss or set(of_loss.users) != {of_logs}:
        return "the gradient of the loss is not the logarithms' only one"
    incoming: fx.Node = of_loss.args[0]  # type: ignore[assignment]
    factors = row_factors(incoming, loss, backward) if loss.args[3] == NONE else None
    if loss.args[3] == NONE and factors is None:
        return "the loss of each row has a gradient that is only known in the backward"
    gradient, undone = _followed(of_logs)
    if undone != [_slice_of(step) for step in reversed(steps) if op_name(step) == "aten.slice"]:
        return "the gradient of the logits goes another way than the logits"
    if shape(gradient) != shape(product) or val(gradient).dtype != val(product).dtype:
        return "the gradient of the logits goes another way than the logits"
    rows, weight = product.args[-2:]
    found = LossGradients(incoming if factors is None else factors.root, factors)
    sorted_out = all(_enter(user, gradient, found, rows, weight) for user in gradient.users)
    if sorted_out and gradient.users and not (found.weights and found.turned):
        return found
    return "the gradient of the logits is read by other calls than products with rows and weight"


def _slice_of(step: fx.Node) -> tuple[Any, ...]:
    given = arguments(step)
    return _normalized(shape(step.args[0]), given["dim"], given["start"], given["end"], given["step"])  # type: ignore[arg-type]


def _normalized(sizes: Any, dim: Any, start: Any, end: Any, stride: Any) -> tuple[Any, ...]:
    dim = dim % len(sizes)
    return (tuple(sizes), dim, range(sizes[dim])[slice(start, end, stride)])


def _followed(node: fx.Node) -> tuple[fx.Node, list[tuple[Any, ...]]]:
    """The gradient of the product's results, from that of the log-softmax's operand, and the slices that it undoes."""
    undone = []
    while len(node.users) == 1:
        (user,) = node.users
        if op_name(user) == "aten.slice_backward":
            _, sizes, dim, start, end, stride = user.args
            undone.append(_normalized(sizes, dim, start, end, stride))
        elif op_name(user) not in _PASSED:
            break
        node = user
    return node, undone


def _enter(user: fx.Node, gradient: fx.Node, found: LossGradients, rows: Any, weight: Any) -> bool:
    """Record the call of one reader of the product's gradient; False if it computes something else."""
    name, args = op_name(user), user.args
    if name == "aten.t":
        return all(_enter_turned(reader, user, found, rows) for reader in user.users)
    if name == "aten.sum" and list(args[1]) == [0] and not user.kwargs:  # type: ignore[call-overload]
        found.biases.append(user)
        return True
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
