"""Compile a model, and ask what happened: did it match, was it worth it, and why not?"""

import torch
from torch import nn

import regraft


class Attention(nn.Module):
    """Self-attention as people write it."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """x: (batch, sequence, width); mask: (sequence, sequence), True where a token may look."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


model = Attention().eval()
x, mask = torch.randn(2, 512, 256), torch.ones(512, 512, dtype=torch.bool).tril()

compiled = torch.compile(model, backend="regraft")

with torch.no_grad(), regraft.coverage() as cov:  # everything compiled inside the block
    y = compiled(x, mask)

print(cov)  # a table: rule, applied, declined, near misses by reason, time, gain
print(cov.count("attention"), "attentions replaced,", len(cov.declined), "legal matches not worth it here")
cov.write("coverage.html")  # or .json

torch.testing.assert_close(y, model(x, mask), rtol=1e-4, atol=1e-5)
