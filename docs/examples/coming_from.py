"""The rules of docs/coming-from.md."""

import torch

import regraft
from regraft import Sample, T


@regraft.register_pattern(
    "rms_norm_by_hand",
    replacement=lambda x, weight, eps: torch.nn.functional.rms_norm(x, weight.shape, weight, eps),
    dims={"x": "... N", "weight": "N"},
    numbers=["eps"],
    samples=[Sample(x=T("... N"), weight=T("N"), eps=1e-6)],
)
def rms_norm_by_hand(x, weight, eps):
    """x / sqrt(mean(x ** 2) + eps) * weight  ->  rms_norm"""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@torch.library.custom_op("coming_from::add_relu", mutates_args=())
def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y)


def backward(ctx, gradient):
    kept = gradient * (ctx.saved_tensors[0] > 0)
    return kept.sum_to_size(ctx.shapes[0]), kept.sum_to_size(ctx.shapes[1])


def setup(ctx, inputs, output):
    ctx.shapes = [x.shape for x in inputs]
    ctx.save_for_backward(output)


kernel.register_fake(lambda x, y: torch.empty_like(x + y))
kernel.register_autograd(backward, setup_context=setup)


@regraft.register_pattern(
    "add_relu",
    replacement=lambda x, y: torch.ops.coming_from.add_relu(x, y),
    samples=[Sample(x=T("... N"), y=T("... N"))],
)
def add_relu(x, y):
    """relu(x + y)  ->  an operator of another library"""
    return torch.relu(x + y)


for rule in (rms_norm_by_hand, add_relu):
    result = regraft.check(rule, examples=2)
    print(result)
    assert result.ok
