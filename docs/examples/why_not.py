"""Why did a rule not match? How far it got, what it expected, what it found, and the line to look at."""

import torch

import regraft


def attention(q, k, v):
    weights = torch.softmax(q @ k.mT / 8, dim=-1)
    return weights @ v, weights  # the weights are wanted too, so they must be computed anyway


q = k = v = torch.randn(1, 4, 32, 64)
explanation = regraft.explain("sdpa", attention, q, k, v)
print(explanation)
assert not explanation.matches
assert explanation.near_misses[0].code == "inner-value-escapes"
