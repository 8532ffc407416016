"""A model compiled ahead of time: one file, loaded again; `aot/run_artifact.cpp` runs such files without Python."""

import torch

import regraft

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).eval()
batch = torch.export.Dim("batch", min=1, max=64)

regraft.aot_compile(model, (torch.randn(2, 16),), "model.rgx", dynamic_shapes=({0: batch},))

compiled = regraft.load("model.rgx")
x = torch.randn(7, 16)
torch.testing.assert_close(compiled(x), model(x).detach())

try:
    compiled(torch.randn(7, 15))
except ValueError as error:
    print(error)  # input 'input': dim 1 is 15; it must be 16
