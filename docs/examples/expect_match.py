"""A test of one's own model: it fails, and says why, when a rule stops matching."""

import torch

import regraft


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) * 8**-0.5, dim=-1)
        return (weights @ v).transpose(1, 2).flatten(-2)


def test_attention_is_fused():
    regraft.expect_match("sdpa", Block(), torch.randn(2, 10, 32), count=1)  # else it fails, with the near miss


test_attention_is_fused()
