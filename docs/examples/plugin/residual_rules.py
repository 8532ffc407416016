"""A package of one rule: a sum and its RMS norm, in one operator with a backward of its own."""

import torch

import regraft
from regraft import Candidate, Reason, Sample, T, optional


@torch.library.custom_op("residual::add_norm", mutates_args=())
def fused(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None, eps: float) -> list[torch.Tensor]:
    """The norm and the sum; a kernel of one's own would stand here."""
    total = x + y
    normed = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
    return [normed if weight is None else normed * weight, total]


@fused.register_fake
def _(x, y, weight, eps):
    total = torch.empty_like(x + y)
    return [torch.empty_like(total), total]


def setup(ctx, inputs, output):
    _, _, weight, ctx.eps = inputs
    ctx.save_for_backward(output[1], *(() if weight is None else (weight,)))


def backward(ctx, gradients):
    total, *weight = ctx.saved_tensors
    of_norm, of_total = gradients
    scaled = of_norm * weight[0] if weight else of_norm
    root = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + ctx.eps)
    normed = total * root
    of_sum = of_total + root * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    of_weight = (of_norm * normed).sum_to_size(weight[0].shape) if weight else None
    return of_sum, of_sum, of_weight, None


fused.register_autograd(backward, setup_context=setup)


def width(match, policy):
    """The size of the last dim; symbolic where sizes are."""
    return match.operands["x"].meta["val"].shape[-1]


def by_torch(x, y, weight, eps, *, width):
    total = x + y
    return torch.nn.functional.rms_norm(total, (width,), weight, eps), total


def by_operator(x, y, weight, eps, *, width):
    return tuple(torch.ops.residual.add_norm(x, y, weight, eps))


def one_shape(x, y):
    """The gradient of an operand that is broadcast would have to be summed: the operator's backward does not."""
    a, b = x.meta["val"], y.meta["val"]
    if a.shape == b.shape and a.dtype == b.dtype:
        return None
    return Reason("operands-differ", "one operand is broadcast or cast", (x, y), str(a.shape), str(b.shape))


@regraft.register_pattern(
    "add_norm",
    family="normalization",
    replacement=[Candidate("operator", by_operator), Candidate("torch", by_torch)],
    dims={"x": "... N", "weight": "N"},
    numbers=["eps"],
    guards=[one_shape],
    derived={"width": width},
    samples=[
        Sample(x=T("... N"), y=T("... N"), weight=T("N"), eps=1e-6),
        Sample(x=T("... N"), y=T("... N"), eps=1e-6, tags={"weight": "no"}),
        Sample(x=T("B N"), y=T("B 1"), eps=1e-6, tags={"weight": "no"}, refused="operands-differ"),
    ],
)
def add_norm(x, y, weight, eps):
    """x + y, and rms_norm(x + y)  ->  one operator"""
    total = x + y
    normed = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
    return optional("weight", normed, lambda n: n * weight), total
