"""The end of docs/tutorial.md: the rule in a training step with symbolic sizes, as a rule and as a plugin."""

import sys
from importlib.metadata import entry_points
from pathlib import Path

import torch

import regraft

sys.path.insert(0, str(Path(__file__).parent / "plugin"))
from residual_rules import add_norm


class Block(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x, y):
        total = x + y
        normed = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normed * self.weight + total


model, x, y = Block(), torch.randn(2, 8, 64, requires_grad=True), torch.randn(2, 8, 64)
compiled = torch.compile(model, backend="regraft", dynamic=True, options={"rules": (add_norm, "default")})
found = regraft.expect_match(add_norm, model, x, y, count=1)
print(found)

with regraft.coverage() as cov:
    out = compiled(x, y)
out.sum().backward()
torch.testing.assert_close(out, model(x, y))
assert len(cov.applied) + len(cov.declined) > 0  # which of the two is measured

if "residual" in entry_points(group="regraft.rules").names:  # the package of plugin/ is installed
    compiled = torch.compile(model, backend="regraft", options={"rules": ("residual", "default")})
    compiled(x, y)
