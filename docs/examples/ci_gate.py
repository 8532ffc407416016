"""Keep coverage from dropping: count every legal match, whatever this machine finds worth it, and compare reports."""

import torch

import regraft
from regraft.rewrites.diff import compare
from regraft.rewrites.report.document import Report


def attention(q, k, v):
    return torch.softmax(q @ k.mT * 0.125, dim=-1) @ v


def covered(function):
    compiled = torch.compile(function, backend="regraft", options={"profit": "always"})
    with torch.no_grad(), regraft.coverage("attention") as cov:
        compiled(*(torch.randn(1, 4, 32, 64) for _ in range(3)))
    return cov


yesterday = covered(attention)
assert yesterday.count("attention") == 1
yesterday.write("yesterday.json")

today = covered(lambda q, k, v: torch.softmax(q @ k.mT * 0.125, dim=-2) @ v)  # another dim: no attention at all
today.write("today.json")

# on the command line: regraft report --diff yesterday.json today.json
diff = compare(Report.read("yesterday.json"), Report.read("today.json"))
print(diff)
assert diff.exit_code == 1
