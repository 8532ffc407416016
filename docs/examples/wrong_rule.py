"""A rule that is off by 1% does not pass its check: the smallest counterexample is shown."""

from pathlib import Path

import torch

import regraft
from regraft import Sample, T


@regraft.register_pattern(
    "add_scaled_wrongly",
    replacement=lambda x, y: torch.add(x, y, alpha=2.02),
    samples=[Sample(x=T("B N"), y=T("B N"))],
)
def add_scaled_wrongly(x, y):
    """x + 2 * y  ->  add(x, y, alpha=2.02)"""
    return x + y * 2.0


result = regraft.check(add_scaled_wrongly)
print(result)
assert not result.ok
Path("counterexample.py").write_text(result.failures[0].script)
