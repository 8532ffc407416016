"""The time of a model, kernel by kernel."""

import torch

import regraft

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256))
x = torch.randn(32, 64)

with torch.no_grad():  # without it: forward and backward
    report = regraft.kernels(model, x)
print(report)
report.write("kernels.html")
report.write("kernels.json")

assert any(row.kind == "generated" for row in report.rows)
assert report.kernel_seconds > 0
