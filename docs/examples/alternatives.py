"""A rule with alternatives, a number, a guard and two replacements to choose from."""

import torch

import regraft
from regraft import Candidate, Reason, Sample, T, choose


def slope_below_one(slope):
    """Both spellings are a leaky relu only for slopes between 0 and 1: 0 * inf is NaN."""
    if isinstance(slope, float) and 0 < slope < 1:
        return None
    return Reason("slope-out-of-range", f"the slope is {slope}", expected="0 < slope < 1", found=str(slope))


def fused(x, slope):
    return torch.nn.functional.leaky_relu(x, slope)


@regraft.register_pattern(
    "leaky_relu_by_hand",
    family="activation",
    replacement=[
        Candidate("fused", fused),
        Candidate("split", lambda x, slope: x.clamp(min=0) + x.clamp(max=0) * slope),
    ],
    numbers=["slope"],
    guards=[slope_below_one],
    samples=[Sample(x=T("B N"), slope=0.1, tags={"spelling": s}) for s in ("maximum", "where")],
)
def leaky_relu_by_hand(x, slope):
    """max(x, slope * x), where(x > 0, x, slope * x)  ->  leaky_relu(x, slope)"""
    return choose(
        "spelling",
        maximum=lambda: torch.maximum(x, x * slope),
        where=lambda: torch.where(torch.gt(x, 0), x, x * slope),
    )


def program(x):
    return torch.maximum(0.2 * x, x) + torch.where(x > 0, x, x * 0.3) + torch.maximum(x, x * 3.0)


if __name__ == "__main__":
    compiled = torch.compile(program, backend="regraft", options={"rules": leaky_relu_by_hand, "profit": "always"})
    x = torch.randn(64, 64)
    with torch.no_grad(), regraft.coverage() as cov:
        torch.testing.assert_close(compiled(x), program(x))
    print(cov)
    assert cov.matches["leaky_relu_by_hand"] == 2
    print(regraft.explain(leaky_relu_by_hand, program, x))
    assert regraft.check(leaky_relu_by_hand).ok
