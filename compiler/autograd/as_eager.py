"""Operators that torch computes otherwise when it traces them than when it runs them.

multilabel_margin_loss(x, t)    torch's spelling counts targets behind the end (-1), too: spelled anew
binary_cross_entropy(x, y)      on a CPU eager refuses what is no probability: an assertion before the call
multi_margin_loss(x, t)         torch's metadata of one sample's loss, not reduced, is of one dim, eager's of none;
                                its margin may be a truth value; where no margin is active, and in the loss of several
                                labels, the gradient is 0 times what is given, NaN of what is infinite
prod(x)                         torch's derivative is another one where no element is 0, or several are (`products`)
softshrink(x, 0.3)              torch's spelling rounds limits to 16 bits, eager's kernel does not: kept whole
one_hot(i, n), rrelu(x)         torch's spelling lies in memory as the operand does, eager's result is contiguous:
                                of an operand that is made contiguous
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.walk import recompiles
from .late_numbers import named
from .products import product, product_along
from .whole_resampling import kept_whole

aten = torch.ops.aten
_NONE, _MEAN = range(2)
_CONTIGUOUS = (aten.one_hot.default, aten.rrelu.default)
_MARGIN, _ENTROPY = aten.multilabel_margin_loss.default, aten.binary_cross_entropy.default
_SAMPLE = aten.multi_margin_loss.default
_OF_MARGINS = ("p", "margin", "weight", "reduction")
_WHOLE = {target: kept_whole(target) for target in (aten.softshrink.default, aten.hardshrink.default)}
_PRODUCTS = {of: named(by, of) for of, by in ((aten.prod.default, product), (aten.prod.dim_int, product_along))}
_SHRUNK = (aten.softshrink_backward.default, aten.hardshrink_backward.default)
_REFUSED = "all elements of {} should be between 0 and 1"


@recompiles
def compute_as_eager(graph_module: fx.GraphModule) -> int:
    """Have such calls of a program before autograd mean what eager computes, in place; returns how many."""
    found = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    margins = [node for node in found if node.target is _MARGIN and _is_known(node)]
    entropies = [node for node in found if node.target is _ENTROPY and _is_known(node) and _on_cpu(node)]
    for node in margins:
        node.target = multilabel_margin_loss
    for node in entropies:
        with graph_module.graph.inserting_before(node):
            made = graph_module.graph.call_function(_refuse_improbable, node.args[:2])
        made.meta = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
        made.meta["val"] = None
    contiguous = [node for node in found if node.target in _CONTIGUOUS and _lies_otherwise(node)]
    for node in contiguous:
        node.target = _OF_CONTIGUOUS[node.target]
    products = [node for node in found if node.target in _PRODUCTS and _is_real(node)]
    for node in products:
        node.target = _PRODUCTS[node.target]
    samples = [node for node in found if node.target is _SAMPLE and _is_known(node)]
    for node in samples:
        node.target = multi_margin_loss
    whole = [node for node in found if node.target in _WHOLE and not _has_symbols(node)]
    for node in whole:
        node.target = _WHOLE[node.target]
    return len(margins) + len(entropies) + len(contiguous) + len(samples) + len(whole) + len(products)


def shrunk_of_symbolic_sizes(func: Any, args: Sequence[Any]) -> torch.Tensor | None:
    """What the backward of a whole call gives on fake tensors of symbolic sizes, for which torch has no metadata."""
    return args[0] * args[1] if func in _SHRUNK and any(map(compat.has_symbols, args[:2])) else None


def _has_symbols(node: fx.Node) -> bool:
    """Whether a number changes from call to call: as an argument of an operator it would be a constant."""
    return any(not isinstance(x.meta.get("val"), torch.Tensor) for x in node.all_input_nodes)


def _is_real(node: fx.Node) -> bool:
    value = _value(node)
    return value is not None and value.is_floating_point()


def _lies_otherwise(node: fx.Node) -> bool:
    value = _value(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
    return value is not None and value.layout == torch.strided and not value.is_contiguous()


def multi_margin_loss(x: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The margins of each sample's class over the others, as torch spells them, in the sizes of eager's."""
    given = {name: _number(value) for name, value in [*zip(_OF_MARGINS, args, strict=False), *kwargs.items()]}
    loss = _SAMPLE(x, target, **given)
    rows, chosen = torch.atleast_2d(x), target.reshape(-1, 1)
    others = torch.arange(rows.shape[-1], device=x.device) != chosen
    active = (given.get("margin", 1) - rows.gather(-1, chosen) + rows > 0) & others
    zeros = _of_no_margin(rows, active | (~others & active.any(-1, keepdim=True)))
    kept = given.get("reduction", _MEAN) == _NONE
    return loss + zeros if kept and x.dim() > 1 else loss.reshape(()) + zeros.sum()


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _of_no_margin(rows: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
    """Zeros for the loss of each row: gradients of elements in no active margin are 0 times what is given."""
    return (torch.where(rows.isfinite() & ~active, rows, 0) * 0).sum(-1)


def _of_contiguous(target: Any) -> Callable[..., Any]:
    def call(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return target(x.contiguous(), *args, **kwargs)

    call.__name__ = call.__qualname__ = compat.packet_name(target)  # nodes are named after it
    return call


_OF_CONTIGUOUS = {target: _of_contiguous(target) for target in _CONTIGUOUS}


def _is_known(node: fx.Node) -> bool:
    return bool(node.args) and all(isinstance(a, fx.Node) and _value(a) is not None for a in node.args[:2])


def _value(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def _on_cpu(node: fx.Node) -> bool:
    value = _value(node.args[0])
    return value.device.type == "cpu" and value.is_floating_point()


def _refuse_improbable(x: torch.Tensor, target: torch.Tensor) -> None:
    for name, value in (("input", x), ("target", target)):
        if name == "input" or _refuses_targets():
            given = value.detach()
            aten._assert_async.msg(((given >= 0) & (given <= 1)).all(), _REFUSED.format(name))


@functools.cache
def _refuses_targets() -> bool:
    """Whether this version of torch looks at targets, too."""
    with compat.no_dispatch_modes():
        try:
            aten.binary_cross_entropy(torch.zeros(1), torch.full((1,), 2.0))
        except RuntimeError:
            return True
    return False


def multilabel_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN) -> torch.Tensor:
    """The margins of each target before the first -1 over each class that is none, their mean over the classes."""
    rows, targets = torch.atleast_2d(x), torch.atleast_2d(target)
    counts = (targets < 0).cumsum(-1) == 0
    places = torch.where(counts, targets, 0)
    classes = torch.arange(rows.shape[-1], device=x.device)
    at = (places[:, :, None] == classes) & counts[:, :, None]
    margins = (1 - rows.gather(-1, places)[:, :, None] + rows[:, None]).relu()
    margins = torch.where(at.any(1)[:, None] | ~counts[:, :, None], 0, margins)
    active = margins > 0
    zeros = _of_no_margin(rows, active.any(1) | (at & active.any(2)[:, :, None]).any(1))
    losses = margins.sum((1, 2)) / rows.shape[-1] + zeros
    if reduction == _NONE:
        return losses if x.dim() > 1 else losses[0]
    return losses.mean() if reduction == _MEAN else losses.sum()
