"""A configuration template with values of its own on top, and what of it this machine can do."""

import torch

import regraft

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).eval()
x = torch.randn(8, 64)

options = {"template": "max_autotune", "freezing": True, "overrides": {"triton.cudagraphs": False}}
compiled = torch.compile(model, backend="regraft", options=options)

with torch.no_grad(), regraft.coverage() as cov:
    y = compiled(x)
    torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-5)

print(cov.graphs[0].details["configuration"])
assert cov.graphs[0].details["configuration"]["autotune.thorough"]
print(regraft.list_options()["triton.cudagraphs"].doc)
