"""A table of wrong replacements, each wrong in one respect: `check` finds it, or says that it does not look there.

And of right ones, in which it finds nothing.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from support.thorough import examples, one_in, one_row_in
from torch.nn import functional as F

from regraft import EXACT, Numerics, Sample, T, register_pattern
from regraft.compiler.tools.check.search import CounterexampleSearch

EXAMPLES = 20


@dataclass
class Entry:
    """A pattern and its replacement; `missed` is what the check must say that it does not cover."""

    pattern: Any
    replacement: Any
    samples: Any = ("N",)
    missed: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def where_dtype(dtype, wrong, right):
    return lambda *given: wrong(*given) if given[0].dtype == dtype else right(*given)


def scaled(x):
    return torch.tanh(x) * 2.0


def summed(x, y):
    return x + y * 2.0


def right_sum(x, y):
    return torch.add(x, y, alpha=2.0)


def pair(x):
    return torch.tanh(x), torch.exp(x)


def norm(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def norm_with(x, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


class Clipped(torch.autograd.Function):
    """A backward of its own, which tracing the forward loses."""

    @staticmethod
    def forward(ctx, x):
        return torch.tanh(x) * 2.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


class TanhScaled(torch.autograd.Function):
    """The right backward, written by hand: lost all the same."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y * 2.0

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * 2.0 * (1 - y * y)


LIBRARY = torch.library.Library("regraft_wrong_test", "DEF")
REMEMBERED, CALLS = {}, itertools.count(1)
LIBRARY.define("no_backward(Tensor x) -> Tensor")
LIBRARY.impl("no_backward", lambda x: torch.tanh(x.detach()) * 2.0, "CPU")
LIBRARY.impl("no_backward", lambda x: torch.empty_like(x), "Meta")
LIBRARY.define("overwrites(Tensor x) -> Tensor")
LIBRARY.impl("overwrites", lambda x: (torch.tanh(x) * 2.0, x.data.zero_())[0], "CPU")
LIBRARY.impl("overwrites", lambda x: torch.empty_like(x), "Meta")
LIBRARY.define("flat(Tensor x) -> Tensor")
LIBRARY.impl("flat", lambda x: torch.tanh(x.as_strided((x.numel(),), (1,)).view(x.shape)) * 2.0, "CPU")
LIBRARY.impl("flat", lambda x: x.new_empty(x.shape), "Meta")
LIBRARY.define("hundreds(Tensor x) -> Tensor")
LIBRARY.impl("hundreds", lambda x: torch.tanh(x) * (2.0 if x.abs().max() < 100 or x.numel() < 2 else 2.1), "CPU")
LIBRARY.impl("hundreds", lambda x: torch.empty_like(x), "Meta")
LIBRARY.define("remembers(Tensor x) -> Tensor")
LIBRARY.impl("remembers", lambda x: torch.tanh(REMEMBERED.setdefault((x.shape, x.dtype), x.clone())) * 2.0, "CPU")
LIBRARY.impl("remembers", lambda x: torch.empty_like(x), "Meta")
LIBRARY.define("third(Tensor x) -> Tensor")
LIBRARY.impl("third", lambda x: torch.tanh(x) * (2.1 if next(CALLS) % 3 == 0 else 2.0), "CPU")
LIBRARY.impl("third", lambda x: torch.empty_like(x), "Meta")
LIBRARY.define("other_dtype(Tensor x) -> Tensor")
LIBRARY.impl("other_dtype", lambda x: torch.tanh(x) * 2.0, "CPU")
LIBRARY.impl("other_dtype", lambda x: torch.empty_like(x, dtype=torch.int64), "Meta")


@torch.library.custom_op("regraft_wrong_test::with_backward", mutates_args=())
def with_backward(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2.0


with_backward.register_fake(lambda x: torch.empty_like(x))
with_backward.register_autograd(
    lambda ctx, gradient: gradient * 2.0 * (1 - torch.tanh(ctx.saved_tensors[0]) ** 2),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)
LIBRARY.define("no_offset(Tensor x) -> Tensor")
LIBRARY.impl("no_offset", lambda x: torch.tanh(torch.as_strided(x, x.shape, x.stride(), 0)) * 2.0, "CPU")
LIBRARY.impl("no_offset", lambda x: torch.empty_like(x), "Meta")
LIBRARY.define("other_strides(Tensor x, Tensor y) -> Tensor")
LIBRARY.impl("other_strides", lambda x, y: torch.add(x, with_strides_of(x, y), alpha=2.0), "CPU")
LIBRARY.impl("other_strides", lambda x, y: x + y, "Meta")


def with_strides_of(x, y):
    """Right where both lie in memory alike, as a kernel that was given one set of strides for two operands."""
    fits = x.shape == y.shape and x.is_non_overlapping_and_dense() and y.is_non_overlapping_and_dense()
    return y.as_strided(y.shape, x.stride()) if fits else y


def operator(name, forward, backward):
    """An operator of one's own with a backward that sees its operands and the gradients of its results."""
    made = torch.library.custom_op(f"regraft_wrong_test::{name}", forward, mutates_args=())
    made.register_fake(forward)

    def saved(ctx, inputs, output):
        ctx.set_materialize_grads(False)  # no gradient is None then, not zeros
        ctx.save_for_backward(*inputs)

    made.register_autograd(backward, setup_context=saved)
    return made


def takes_one(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2.0


def gives_two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tanh(x), torch.exp(x)


def reads_in_order(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """As a kernel that takes the incoming gradient to be contiguous."""
    memory = g.as_strided((g.numel(),), (1,)).view(g.shape) if g.is_non_overlapping_and_dense() else g
    return memory * 2.0 * (1 - torch.tanh(x) ** 2)


torch.library.custom_op("regraft_wrong_test::reads_in_order", reads_in_order, mutates_args=()).register_fake(
    lambda x, g: torch.empty_like(x)
)


def forgets_the_other(ctx, of_tanh, of_exp):
    (x,) = ctx.saved_tensors
    if of_tanh is None or of_exp is None:
        return torch.zeros_like(x)
    return of_tanh * (1 - torch.tanh(x) ** 2) + of_exp * torch.exp(x)


IN_ORDER = operator(
    "in_order", takes_one, lambda ctx, g: torch.ops.regraft_wrong_test.reads_in_order(ctx.saved_tensors[0], g)
)
BOTH_USED = operator("both_used", gives_two, forgets_the_other)
OPS = torch.ops.regraft_wrong_test
LOWERED = {"stage": "lowered"}

WRONG = {
    # constants
    "a factor 1% off": Entry(scaled, lambda x: torch.tanh(x) * 2.02),
    "a factor 1e-6 off": Entry(scaled, lambda x: torch.tanh(x) * 2.000002),
    "a factor of float32": Entry(lambda x: torch.tanh(x) * 0.1, lambda x: torch.tanh(x) * 0.10000000149),
    "a term off": Entry(lambda x: torch.tanh(x) + 1.0, lambda x: torch.tanh(x) + 1.001),
    "eps missing": Entry(norm, lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)), ("B N",)),
    "eps outside the root": Entry(norm, lambda x: x / (x.pow(2).mean(-1, keepdim=True).sqrt() + 1e-6), ("B N",)),
    "a number of the pattern ignored": Entry(
        norm_with, lambda x, eps: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
        (Sample(x=T("B N"), eps=1e-5),), "", {"numbers": ["eps"]},
    ),
    "wrong for negative numbers of the pattern": Entry(
        norm_with, lambda x, eps: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + abs(eps)),
        (Sample(x=T("B N"), eps=1e-2),), "", {"numbers": ["eps"]},
    ),
    "a count that is one less": Entry(
        lambda x: torch.mean(x, -1) * 2.0, lambda x: torch.sum(x, -1) * 2.0 / (x.shape[-1] - 1), ("B N",)
    ),
    # dims and shapes
    "another dim": Entry(lambda x: x.softmax(-1) * 2.0, lambda x: x.softmax(0) * 2.0, ("N N",)),
    "a dim counted from the front": Entry(lambda x: x.softmax(-1) * 2.0, lambda x: x.softmax(1) * 2.0, ("B N",)),
    "right for matrices only": Entry(lambda x: x.sum(-1) * 2.0, lambda x: x.sum(1) * 2.0, ("B N",)),
    "one rank only": Entry(scaled, lambda x: torch.tanh(x) * (2.0 if x.dim() == 2 else 2.1), ("B N",)),
    "leading dims only": Entry(scaled, lambda x: torch.tanh(x) * (2.0 if x.dim() < 3 else 2.1), ("... N",)),
    "0-d where samples have leading dims": Entry(
        lambda x: torch.tanh(x) * 2.0, lambda x: torch.tanh(x) * (2.0 if x.dim() else 2.1), ("... N",)
    ),
    "0-d only": Entry(scaled, lambda x: torch.tanh(x) * (2.0 if x.dim() else 2.1), ("B N",)),
    "an operand broadcast along rows": Entry(
        summed, lambda x, y: torch.add(x, y if x.shape == y.shape else y.mean(), alpha=2.0), ("B N", "B N")
    ),
    "a transposed operand": Entry(lambda x, y: torch.relu(x @ y), lambda x, y: torch.relu(x @ y.t()), ("N N", "N N")),
    "another shape": Entry(lambda x: x.sum(-1, keepdim=True) * 2.0, lambda x: x.sum(-1) * 2.0, ("B N",)),
    "a batch dim mixed up": Entry(
        lambda x, y: torch.relu(torch.matmul(x, y)),
        lambda x, y: torch.relu(torch.einsum("bij,cjk->bik", x, y)), ("B S K", "B K T"),
    ),
    "size 1": Entry(scaled, lambda x: torch.tanh(x) * (2.1 if x.shape[-1] == 1 else 2.0), ("B N",)),
    "size 0": Entry(lambda x: torch.sum(x, -1) * 2.0, lambda x: torch.sum(x, -1) * 2.0 + (x.shape[-1] == 0), ("B N",)),
    "64 and more": Entry(scaled, lambda x: torch.tanh(x) * (2.0 if x.shape[-1] < 64 else 2.1), ("B N",)),
    "odd sizes": Entry(scaled, lambda x: torch.tanh(x) * (2.1 if x.shape[-1] % 2 else 2.0), ("B N",)),
    "symbolic sizes": Entry(
        scaled, lambda x: torch.tanh(x) * (2.1 if isinstance(x.shape[0], torch.SymInt) else 2.0), ("B N",)
    ),
    "sizes above a million": Entry(
        scaled, lambda x: torch.tanh(x) * (2.1 if x.numel() > 10**6 else 2.0), ("N",), "sizes other than"
    ),
    "equal sizes": Entry(
        lambda x: x.t().exp(), lambda x: x.exp() if x.shape[0] == x.shape[1] else x.t().exp(), ("B N",)
    ),
    "a mask of other sizes than the sample's": Entry(
        lambda x: x.masked_fill(torch.ones(x.shape, dtype=torch.bool).triu(1), -torch.inf),
        lambda x: x.masked_fill(torch.ones(x.shape, dtype=torch.bool).triu(1 + x.shape[1] - x.shape[0]), -torch.inf),
        ("S T",),
    ),
    "two large dims": Entry(
        scaled, lambda x: torch.tanh(x) * (2.1 if min(x.shape) >= 64 else 2.0), ("B N",),
        more={"dims": {"x": "B N"}},
    ),
    "the sign of a zero": Entry(
        lambda x: torch.relu(-x) * -1.0, lambda x: torch.minimum(x, torch.zeros_like(x)) + 0.0, ("N",), "sign of zeros"
    ),
    "the sign of a zero, under a contract of equal bits": Entry(
        lambda x: torch.relu(-x) * -1.0, lambda x: torch.relu(-x) * -1.0 + 0.0, ("N",), more={"numerics": EXACT}
    ),
    "a size in between": Entry(
        scaled, lambda x: torch.tanh(x) * (2.1 if 37 in x.shape else 2.0), ("B N",), "sizes other than",
    ),
    "rank 8": Entry(scaled, lambda x: torch.tanh(x) * (2.1 if x.dim() == 8 else 2.0), ("N",), "ranks above"),
    # dtypes
    "3% in bfloat16": Entry(
        scaled, where_dtype(torch.bfloat16, lambda x: torch.tanh(x) * 2.06, lambda x: torch.tanh(x) * 2.0)
    ),
    "1% in bfloat16": Entry(
        scaled, where_dtype(torch.bfloat16, lambda x: torch.tanh(x * 1.0) * 2.02, lambda x: torch.tanh(x) * 2.0)
    ),
    "2% of negatives in bfloat16": Entry(
        scaled, where_dtype(torch.bfloat16, lambda x: torch.tanh(x) * torch.where(x < 0, 2.04, 2.0), scaled)
    ),
    "1% where samples are bfloat16": Entry(
        scaled, lambda x: torch.tanh(x) * 2.02, (Sample(x=T("N", dtype=torch.bfloat16)),)
    ),
    "0.5% where samples are float16": Entry(
        scaled, lambda x: torch.tanh(x) * 2.01, (Sample(x=T("N", dtype=torch.float16)),)
    ),
    "0.2% of a gradient in bfloat16": Entry(
        scaled,
        where_dtype(torch.bfloat16, lambda x: (lambda y: y + (y - y.detach()) * 0.002)(torch.tanh(x) * 2.0), scaled),
        ("N",), "below about 1% in bfloat16",
    ),
    "products through float32": Entry(
        lambda x, y: torch.relu(x @ y), lambda x, y: torch.relu((x.float() @ y.float()).to(x.dtype)), ("M K", "K N")
    ),
    "unsigned numbers that wrap": Entry(
        lambda x: (x + 200).float(), lambda x: x.float() + 200, (Sample(x=T("N", dtype=torch.uint8)),),
    ),
    "a term in bfloat16": Entry(
        scaled, where_dtype(torch.bfloat16, lambda x: torch.tanh(x) * 2.0 + 0.03, scaled), ("B N",)
    ),
    "a gradient 3% off in bfloat16": Entry(
        scaled,
        where_dtype(torch.bfloat16, lambda x: (lambda y: y + (y - y.detach()) * 0.03)(torch.tanh(x) * 2.0), scaled),
    ),
    "0.3% in float16": Entry(
        scaled, where_dtype(torch.float16, lambda x: torch.tanh(x) * 2.006, lambda x: torch.tanh(x) * 2.0)
    ),
    "float64 rounded to float32": Entry(scaled, lambda x: (torch.tanh(x.float()) * 2.0).to(x.dtype)),
    "another dtype": Entry(scaled, lambda x: (torch.tanh(x) * 2.0).float()),
    "promotion": Entry(summed, lambda x, y: torch.add(x, y.to(x.dtype), alpha=2.0), ("B N", "B N")),
    "sums in bfloat16": Entry(
        lambda x: torch.sum(x, -1) * 2.0,
        lambda x: (torch.cumsum(x.to(torch.bfloat16), -1)[..., -1] * 2.0).to(x.dtype), ("B N",),
    ),
    "the order of a cast": Entry(
        lambda x: torch.exp(x.to(torch.float32)) * 2.0, lambda x: (torch.exp(x) * 2.0).float(),
        (Sample(x=T("N", dtype=torch.bfloat16)),),
    ),
    "float16 overflows": Entry(
        lambda x: torch.sqrt(torch.abs(x)) * 2.0, lambda x: torch.sqrt(torch.abs(x) * 4.0)
    ),
    "integers overflow": Entry(
        lambda x: torch.abs(x) + 1, lambda x: (torch.abs(x).to(torch.int32) + 1).long(),
        (Sample(x=T("N", dtype=torch.int64)),),
    ),
    "indices above what samples have": Entry(
        lambda x: torch.abs(x) + 1, lambda x: torch.clamp(x, 0, 3) + 1,
        (Sample(x=T("N", dtype=torch.int64, below="4")),), "other than from 0",
    ),
    "integers through float64": Entry(
        lambda x: x * 3 + 1, lambda x: (x.double() * 3 + 1).long(), (Sample(x=T("N", dtype=torch.int64)),)
    ),
    "products of int32 that wrap": Entry(
        lambda x: (x * x) // 2, lambda x: (x.long() * x.long() // 2).int(), (Sample(x=T("N", dtype=torch.int32)),)
    ),
    "a quotient of negative integers": Entry(
        lambda x: torch.div(x, 3, rounding_mode="floor") + 1, lambda x: torch.div(x, 3, rounding_mode="trunc") + 1,
        (Sample(x=T("N", dtype=torch.int64)),),
    ),
    "a shift of negative integers": Entry(
        lambda x: torch.div(x, 4, rounding_mode="trunc") * 2, lambda x: (x >> 2) * 2,
        (Sample(x=T("N", dtype=torch.int32)),),
    ),
    "bytes of which only the lower half is right": Entry(
        lambda x: x.float() * 2.0, lambda x: (x & 127).float() * 2.0, (Sample(x=T("N", dtype=torch.uint8)),)
    ),
    "integers though no sample has them": Entry(
        lambda x: torch.relu(x) + torch.relu(x),
        lambda x: torch.relu(x) * (2 if x.is_floating_point() else 3), ("N",), "no sample has them",
    ),
    "complex": Entry(
        lambda x: torch.exp(x) * 2.0, lambda x: torch.exp(x.real) * 2.0 if x.is_complex() else torch.exp(x) * 2.0,
        ("N",), "no sample has them",
    ),
    # values
    "negative numbers": Entry(lambda x: torch.abs(x) * 2.0, lambda x: torch.relu(x) * 2.0),
    "zero": Entry(lambda x: torch.sign(x) * 2.0, lambda x: torch.where(x >= 0, 1.0, -1.0).to(x.dtype) * 2.0),
    "the sign of zero": Entry(
        lambda x: torch.relu(x) * -1.0, lambda x: torch.where(x > 0, -x, torch.zeros_like(x)), more={"numerics": EXACT}
    ),
    "inf": Entry(lambda x: torch.relu(x) * 2.0, lambda x: (torch.relu(x) * 2.0).clamp(max=3e38)),
    "NaN": Entry(scaled, lambda x: torch.where(x == x, torch.tanh(x) * 2.0, 0.0)),
    "inf to NaN where NaN is safe": Entry(
        lambda x: torch.relu(x) * 2.0, lambda x: torch.relu(x) * 2.0 + (x - x), more={"nan": "safe"}
    ),
    "a NaN that max drops": Entry(
        lambda x, y: torch.maximum(x, y) * 2.0, lambda x, y: torch.fmax(x, y) * 2.0, ("N", "N")
    ),
    "the sign of a zero that divides": Entry(
        lambda x: 1.0 / torch.relu(x), lambda x: 1.0 / torch.where(x > 0, x, x * 0.0)
    ),
    "denormals": Entry(
        lambda x: torch.abs(x) * 2.0,
        lambda x: torch.where(torch.abs(x) < torch.finfo(x.dtype).tiny, 0.0, torch.abs(x) * 2.0),
        more={"numerics": EXACT},
    ),
    "large numbers overflow": Entry(lambda x: torch.log1p(torch.exp(-torch.abs(x))) * 2.0,
                                    lambda x: (torch.log(torch.exp(x) + 1.0) - torch.relu(x)) * 2.0),
    "small numbers": Entry(lambda x: torch.log1p(x.abs()), lambda x: torch.log(1 + x.abs())),
    "small numbers less one": Entry(lambda x: torch.expm1(x) * 2.0, lambda x: (torch.exp(x) - 1.0) * 2.0),
    "a maximum that is not subtracted": Entry(
        lambda x: x.softmax(-1), lambda x: x.exp() / x.exp().sum(-1, keepdim=True), ("B N",)
    ),
    "variance by squares": Entry(
        lambda x: x.var(-1, correction=0), lambda x: (x * x).mean(-1) - x.mean(-1) ** 2, ("B N",)
    ),
    "all masked": Entry(
        lambda x: torch.logsumexp(x, -1) * 2.0,
        lambda x: (torch.log(torch.exp(x - x.amax(-1, keepdim=True)).sum(-1)) + x.amax(-1)) * 2.0,
        (Sample(x=T("B N", values="mask")),),
    ),
    "halves rounded up": Entry(lambda x: torch.round(x) * 2.0, lambda x: torch.floor(x + 0.5) * 2.0),
    "x / x": Entry(lambda x: x / x + 1.0, lambda x: torch.ones_like(x) + 1.0),
    "nothing to divide by": Entry(
        lambda x: x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12), lambda x: x / x.norm(dim=-1, keepdim=True),
        ("B N",),
    ),
    "ties": Entry(lambda x: x.argmax(-1) * 2, lambda x: (x.shape[-1] - 1 - x.flip(-1).argmax(-1)) * 2, ("B N",)),
    "data that is large": Entry(scaled, lambda x: OPS.hundreds(x), ("N",), "", LOWERED),
    "a masked row": Entry(
        lambda x, m: (x + m).softmax(-1), lambda x, m: torch.nan_to_num((x + m).softmax(-1)),
        (Sample(x=T("B N"), m=T("B N", values="mask")),),
    ),
    # memory
    "what an earlier call computed": Entry(scaled, lambda x: OPS.remembers(x), ("B N",), "", LOWERED),
    "wrong every third time": Entry(scaled, lambda x: OPS.third(x), ("B N",), "", LOWERED),
    "another dtype than it said": Entry(scaled, lambda x: OPS.other_dtype(x), ("B N",), "", LOWERED),
    "strides": Entry(scaled, lambda x: OPS.flat(x), ("B N",), "", LOWERED),
    "views that do not begin where memory does": Entry(scaled, lambda x: OPS.no_offset(x), ("B N",), "", LOWERED),
    "the strides of another operand": Entry(summed, lambda x, y: OPS.other_strides(x, y), ("B N", "B N"), "", LOWERED),
    "two results in one memory": Entry(
        lambda x: (torch.exp(x), torch.exp(x.flip(0).flip(0))), lambda x: (lambda y: (y, y[:]))(torch.exp(x)), ("N",)
    ),
    "a write to an operand": Entry(scaled, lambda x: OPS.overwrites(x), ("N",), "", LOWERED),
    "a write in place": Entry(scaled, lambda x: torch.tanh_(x) * 2.0, ("N",)),
    # gradients
    "a gradient dropped": Entry(scaled, lambda x: (torch.tanh(x) * 2.0).detach()),
    "one gradient of two": Entry(summed, lambda x, y: x + (y * 2.0).detach(), ("B N", "B N")),
    "a gradient twice": Entry(scaled, lambda x: (lambda y: y + (y - y.detach()))(torch.tanh(x) * 2.0)),
    "no derivative": Entry(scaled, lambda x: OPS.no_backward(x)),
    "another backward": Entry(scaled, Clipped.apply),
    "a backward by hand": Entry(scaled, lambda x: TanhScaled.apply(x)),
    "a gradient where the result is nought": Entry(
        lambda x, y: torch.relu(x * y), lambda x, y: torch.relu(x.detach() * y), ("N", "N")
    ),
    "a backward that takes gradients to be contiguous": Entry(scaled, lambda x: IN_ORDER(x), ("B N",)),
    "a backward that takes all results to be used": Entry(pair, lambda x: BOTH_USED(x), ("N",)),
    "wrong where no gradients are wanted": Entry(
        scaled, lambda x: torch.tanh(x) * (2.0 if torch.is_grad_enabled() else 2.1)
    ),
    # several results
    "the second result 0.1% off": Entry(pair, lambda x: (torch.tanh(x), torch.exp(x) * 1.001), ("N",)),
    "results swapped": Entry(pair, lambda x: (torch.exp(x), torch.tanh(x)), ("N",)),
    # what is around
    "wrong under autocast": Entry(
        scaled, lambda x: torch.tanh(x) * (2.1 if torch.is_autocast_enabled("cpu") else 2.0), ("N",), "autocast"
    ),
    "wrong in inference mode": Entry(
        scaled, lambda x: torch.tanh(x) * (2.1 if torch.is_inference_mode_enabled() else 2.0), ("N",), "inference mode"
    ),
    "one tensor as two operands": Entry(
        summed, lambda x, y: torch.add(x, y, alpha=2.1 if x is y else 2.0), ("N", "N"), "one tensor given as two"
    ),
    "wrong for another default dtype": Entry(
        scaled, lambda x: torch.tanh(x) * (2.0 if torch.get_default_dtype() == torch.float32 else 2.1), ("N",),
        "settings of the process",
    ),
    # random numbers
    "uniform numbers for normal ones": Entry(
        lambda x: x + torch.randn_like(x), lambda x: x + (torch.rand_like(x) - 0.5) * 12**0.5,
        (Sample(x=T("S N"), sizes={"S": 8, "N": 8}),), "", {"numerics": Numerics(random="distribution")},
    ),
    "a spread that is a fifth larger": Entry(
        lambda x: x + torch.randn_like(x), lambda x: x + torch.randn_like(x) * 1.2,
        (Sample(x=T("S N"), sizes={"S": 8, "N": 8}),), "", {"numerics": Numerics(random="distribution")},
    ),
    "another keep rate": Entry(
        lambda x: F.dropout(x * 2.0, 0.5, True), lambda x: x * 2.0 * (torch.rand_like(x) < 0.6) / 0.6,
        (Sample(x=T("S N"), sizes={"S": 8, "N": 8}),), "", {"numerics": Numerics(random="distribution")},
    ),
    "another random stream": Entry(
        lambda x: F.dropout(x * 2.0, 0.5, True), lambda x: x * 4.0 * (torch.rand_like(x) < 0.5),
        (Sample(x=T("S N")),), "", {"numerics": Numerics(random="stream")},
    ),
    "a draw too many": Entry(
        lambda x: F.dropout(x * 2.0, 0.5, True), lambda x: F.dropout(x * 2.0 + 0 * torch.rand_like(x), 0.5, True),
        ("N",), "", {"numerics": Numerics(random="stream")},
    ),
    "rows drawn as one": Entry(
        lambda x: F.dropout(x * 2.0, 0.5, True), lambda x: F.dropout(torch.ones_like(x[..., :1]), 0.5, True) * x * 2.0,
        (Sample(x=T("S N"), sizes={"S": 8, "N": 8}),), "",
        {"numerics": Numerics(random="distribution"), "dims": {"x": "S N"}},
    ),
    "rows with one noise": Entry(
        lambda x: x + torch.randn_like(x), lambda x: x + torch.randn_like(x[..., :1]),
        (Sample(x=T("S N"), sizes={"S": 8, "N": 8}),), "", {"numerics": Numerics(random="distribution")},
    ),
    "two results with one noise": Entry(
        lambda x: (x + torch.randn_like(x), x * 2.0 + torch.randn_like(x)),
        lambda x: (lambda noise: (x + noise, x * 2.0 + noise))(torch.randn_like(x)),
        (Sample(x=T("S N"), sizes={"S": 8, "N": 8}),), "", {"numerics": Numerics(random="distribution")},
    ),
    "none drawn": Entry(lambda x: F.dropout(x * 2.0, 0.5, True), lambda x: x * 2.0),
    # the rule
    "raises": Entry(scaled, lambda x: torch.tanh(x).reshape(-1, 3) * 2.0, ("B N",)),
    "raises for other ranks": Entry(scaled, lambda x: torch.tanh(x.t()).t() * 2.0, ("B N",)),
    "an alternative without sample": Entry(
        lambda x: torch.tanh(x) * 2.0, lambda x: torch.tanh(x) * 2.0, ("N",), "devices other than cpu"
    ),
    "second derivatives": Entry(scaled, scaled, ("N",), "second derivatives"),
}  # fmt: skip

RIGHT = {
    "an operator with a backward": Entry(scaled, lambda x: OPS.with_backward(x)),
    "a factor first": Entry(lambda x: torch.tanh(x) * 2.0, lambda x: 2.0 * torch.tanh(x), ("... N",)),
    "alpha": Entry(summed, right_sum, ("B N", "B N")),
    "one result for two, of which the program gets a copy": Entry(
        lambda x: (torch.exp(x), torch.exp(x.flip(0).flip(0))), lambda x: (lambda y: (y, y))(torch.exp(x)), ("N",)
    ),
    "gelu": Entry(lambda x: x * (torch.erf(x * 0.5**0.5) + 1.0) * 0.5, lambda x: F.gelu(x), more={"nan": "safe"}),
    "normal numbers made of uniform ones": Entry(
        lambda x: x + torch.randn_like(x),
        lambda x: x + torch.special.ndtri(torch.rand_like(x.double()).clamp(1e-9, 1 - 1e-9)).to(x.dtype),
        (Sample(x=T("S N"), sizes={"S": 8, "N": 8}),), "", {"numerics": Numerics(random="distribution")},
    ),
    "normal numbers in another order": Entry(
        lambda x: x + torch.randn_like(x), lambda x: x + torch.randn_like(x.flatten()).view(x.shape).flip(0),
        (Sample(x=T("S N"), sizes={"S": 8, "N": 8}),), "",
        {"numerics": Numerics(random="distribution"), "dims": {"x": "S N"}},
    ),
    "silu": Entry(lambda x: x * torch.sigmoid(x), lambda x: F.silu(x)),
    "norm": Entry(norm, lambda x: F.rms_norm(x, (x.shape[-1],), eps=1e-6), ("... N",), more={"dims": {"x": "... N"}}),
    "a norm whose gradients cancel": Entry(
        lambda x, b: (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + 1e-6) + b,
        lambda x, b: F.layer_norm(x.float(), (16,), None, None, 1e-6).to(x.dtype) + b,
        (Sample(x=T("B S 16"), b=T("16")),), more={"nan": "safe", "dims": {"x": "... 16", "b": "16"}},
    ),
    "addmm": Entry(lambda x, y, z: torch.relu(x @ y + z), lambda x, y, z: torch.relu(torch.addmm(z, x, y)),
                   (Sample(x=T("M K"), y=T("K N"), z=T("N")),), more={"dims": {"x": "M K", "y": "K N", "z": "N"}}),
}  # fmt: skip


def found(name: str, entry: Entry, examples: int = EXAMPLES) -> Any:
    parameters = entry.pattern.__code__.co_varnames[: entry.pattern.__code__.co_argcount]
    samples = entry.samples
    if isinstance(samples[0], str):
        samples = [Sample(**{p: T(dims) for p, dims in zip(parameters, samples, strict=True)})]
    rule = register_pattern(f"wrong: {name}", replacement=entry.replacement, samples=samples, **entry.more)
    return CounterexampleSearch(rule(entry.pattern), examples, 0, shrinks=False).run()


@one_row_in(4)
@pytest.mark.parametrize("name", one_in(3, WRONG))
def test_what_is_wrong_is_found_or_listed(name):
    entry = WRONG[name]
    result = found(name, entry, 3 if entry.missed else EXAMPLES)
    if entry.missed:
        assert result.ok and any(entry.missed in text for text in result.not_covered), str(result)
    else:
        assert not result.ok, str(result)
        assert not any("did not match" in f.problem for f in result.failures), str(result)


def test_one_size_of_one_dim_is_found_or_not_listed_as_covered():
    entry = Entry(lambda x: x.sum(-1), lambda x: x.sum(-1) + (x.shape[-1] == 17), ("B N",), more={"dims": {"x": "B N"}})
    assert not found("one size of one dim", entry, 50).ok
    (told,) = (text for text in found("one size of one dim, seldom", entry, 5).not_covered if "sizes other" in text)
    assert "17" not in told.split(" in each dim")[0]


@one_row_in(2)
@pytest.mark.parametrize("name", one_in(2, RIGHT))
def test_what_is_right_passes(name):
    result = found(name, RIGHT[name], examples(4, 8))
    assert result.ok, str(result)
