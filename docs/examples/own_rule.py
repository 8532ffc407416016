"""A rule of one's own: declared, proven, and used in one `torch.compile` call."""

import torch

import regraft
from regraft import Sample, T


@regraft.register_pattern(
    "add_scaled",
    replacement=lambda x, y: torch.add(x, y, alpha=2.0),
    samples=[Sample(x=T("B N"), y=T("B N"))],  # the property test is derived from these
    profitable=True,  # one kernel instead of two: nothing need be measured
)
def add_scaled(x, y):
    """x + 2 * y  ->  add(x, y, alpha=2)"""
    return x + y * 2.0


result = regraft.check(add_scaled)  # shapes, dtypes, strides, NaN, gradients: against eager, in float64
print(result)
assert result.ok


def program(x, y):
    return torch.relu(x + 2 * y)


compiled = torch.compile(program, backend="regraft", options={"rules": ("default", add_scaled)})
with regraft.coverage() as cov:
    compiled(torch.randn(4, 8), torch.randn(4, 8))
assert cov.matches["add_scaled"] == 1
