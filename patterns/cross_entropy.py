"""Logarithms of the probabilities of given classes, in which cross entropies are written by hand.

    gather(log_softmax(z, -1), -1, index)           ->   -nll_loss(log_softmax(z, -1), index), one for each row
    gather(z, -1, index) - logsumexp(z, -1, True)   ->   -nll_loss(z, index) - logsumexp(z, -1, True)

The gradient of a gather is a tensor of zeros for all rows and classes, to which one number a row is added. That of
`nll_loss` compares each place with the class, as part of what computes the gradient of the logits; and large losses of
linear layers are computed by blocks of rows, without all logits in memory.
The second is -inf where another class of the row is infinite, and a log_softmax is NaN there. With ``nan="safe"`` it
becomes the first, which blocks need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional as F

from ..rewrites.binding import Binding
from ..rewrites.graph import describe, dtype, rank, shape
from ..rewrites.pattern import choose
from ..rewrites.reason import Reason
from ..rewrites.rule import Numerics, register_pattern
from ..rewrites.sample import Sample, T
from ..rewrites.symbolic import known_equal
from .cross_entropy_overlooked import overlooked_choices

_NO_CLASS = -(1 << 62)
"""No target counts as ignored: `gather` refuses whatever is no class, and so does `nll_loss` then."""


def of_each_row(z: Any, index: Any) -> Reason | None:
    """There is one class for each row of real logits."""
    if not dtype(z).is_floating_point or dtype(index) != torch.int64:
        message = f"classes {describe(index)} of logits {describe(z)}"
        return Reason("dtype-not-floating", message, (z, index), "floats and int64", describe(index))
    sizes, others = shape(z), shape(index)
    if rank(z) != rank(index) or rank(z) < 2 or not all(map(known_equal, others, (*sizes[:-1], 1))):
        message = f"{describe(index)} chooses other than one number of each row of {describe(z)}"
        return Reason("not-one-a-row", message, (index,), "one class for each row", describe(index))
    return None


def _keeps_infinities(match: Binding, policy: Mapping[str, str]) -> bool:
    """Whether a row that holds infinity must have -inf for its other classes."""
    return dict(match.tags)["spelling"] == "total" and policy.get("nan", "eager") != "safe"


def _picked(z: torch.Tensor, index: torch.Tensor, keeps_infinities: bool) -> torch.Tensor:
    rows = z.reshape(-1, z.shape[-1])
    logs = rows if keeps_infinities else F.log_softmax(rows, -1)
    picked = -F.nll_loss(logs, index.reshape(-1), reduction="none", ignore_index=_NO_CLASS).reshape(index.shape)
    return picked - z.logsumexp(-1, keepdim=True) if keeps_infinities else picked


def _sample(**given: Any) -> Sample:
    operands = {"z": T("N 6"), "index": T("N 1", dtype=torch.int64, below="6")} | given
    refused = operands.pop("refused", "")
    return Sample(**operands, refused=refused)


@register_pattern(
    "picked_log_softmax",
    family="loss",
    replacement=_picked,
    samples=[
        _sample(),
        _sample(z=T("B S 6"), index=T("B S 1", dtype=torch.int64, below="6")),
        _sample(tags={"spelling": "total"}),
        _sample(index=T("N 2", dtype=torch.int64, below="6"), refused="not-one-a-row"),
        _sample(z=T("N 6", dtype=torch.complex64), refused="dtype-not-floating"),
    ],
    guards=(of_each_row,),
    derived={"keeps_infinities": _keeps_infinities},
    numerics=Numerics(slack=4.0),
    escapes="keep",  # of what is left, equal calls are computed once
    overlooked=overlooked_choices,
    profitable=True,  # the same forward, and a backward without a scatter
)
def picked_log_softmax(z: Any, index: Any) -> Any:
    """gather(log_softmax(z, -1), -1, index)  ->  -nll_loss(log_softmax(z, -1), index), for one class a row."""
    return choose(
        "spelling",
        logs=lambda: torch.gather(torch.log_softmax(z, -1), -1, index),
        total=lambda: torch.gather(z, -1, index) - torch.logsumexp(z, [-1], True),
    )
