"""The steps of docs/tutorial.md before its rule is a package (plugin/residual_rules.py): each is run."""

import torch

import regraft
from regraft import Sample, T


class Block(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.up = torch.nn.Linear(width, width)

    def forward(self, x, y):
        total = x + y
        normed = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.up(normed * self.weight) + total


def norm_of_sum(x, y, weight):
    total = x + y
    return torch.nn.functional.rms_norm(total, total.shape[-1:], weight, 1e-6)


@regraft.register_pattern(
    "norm_of_sum",
    replacement=norm_of_sum,
    samples=[Sample(x=T("B N"), y=T("B N"), weight=T("N"))],
)
def first_try(x, y, weight):
    """rms_norm(x + y) * weight"""
    total = x + y
    return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


model, x, y = Block(), torch.randn(2, 8, 64), torch.randn(2, 8, 64)
explanation = regraft.explain(first_try, model, x, y)
print(explanation)
assert explanation.near_misses[0].code == "inner-value-escapes"


@regraft.register_pattern(
    "add_norm_first",
    replacement=lambda x, y, weight: (norm_of_sum(x, y, weight), x + y),
    samples=[Sample(x=T("B N"), y=T("B N"), weight=T("N"))],
)
def second_try(x, y, weight):
    """x + y, and rms_norm(x + y) * weight"""
    total = x + y
    return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, total


assert regraft.explain(second_try, model, x, y).matches

result = regraft.check(second_try, examples=6)
print(result)
assert not result.ok


@regraft.register_pattern(
    "add_norm_second",
    replacement=lambda x, y, weight: (norm_of_sum(x, y, weight), x + y),
    dims={"x": "... N", "y": "... N", "weight": "N"},
    samples=[Sample(x=T("... N"), y=T("... N"), weight=T("N"))],
)
def third_try(x, y, weight):
    """x + y, and rms_norm(x + y) * weight"""
    total = x + y
    return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, total


result = regraft.check(third_try, examples=4)
print(result)
print("\n".join(result.not_covered))
