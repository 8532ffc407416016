"""Values of 16 bits are float32 inside of a kernel; where they meet wider operands, they are as eager has them.

x.clamp(w, w + 1)       x float32, w bfloat16: w + 1 is rounded, as if it were in memory
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.lowering import trace
from support.symbols import check
from support.thorough import one_row_in, takes_turns

from regraft.compiler.ir.accesses import values
from regraft.compiler.ir.value import Op
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, GPU, schedule

# Of something wide and the result of a computation in 16 bits.
MEETINGS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, h: x + h,
    "of two": lambda x, h: torch.addcmul(x + h, x, h),
    "sub": lambda x, h: torch.sub(h, x, alpha=2),
    "mul": lambda x, h: x * h,
    "div": lambda x, h: h / x,
    "pow": lambda x, h: x.abs() ** h,
    "base": lambda x, h: h.abs() ** x,
    "atan2": torch.atan2,
    "maximum": torch.maximum,
    "clamp": lambda x, h: x.clamp(h - h, h),
    "where": lambda x, h: torch.where(x > 0, x, h),
    "fill": lambda x, h: x.masked_fill(x > 0, h[0, 0]),
    "addcmul": lambda x, h: torch.addcmul(x, h, x),
    "addcdiv": lambda x, h: torch.addcdiv(x, x, h),
    "fmod": torch.fmod,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "in place": lambda x, h: (x * 1).mul_(h),
    "cat": lambda x, h: torch.cat([x, h]),
    "stack": lambda x, h: torch.stack([x, h]),
    "mse": lambda x, h: F.mse_loss(x, h, reduction="none"),
    "l1": lambda x, h: F.l1_loss(x, h, reduction="none"),
    "compared": lambda x, h: x < h,
}


@one_row_in(2)
@takes_turns("wide")
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("device", ["cpu", "interpreter"])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_wider_operands(half: torch.dtype, device: str, wide: torch.dtype) -> None:
    def every(x, h):
        """Each with a computation of its own, which nobody stores."""
        return [f(x, h * (1.7 + k)) for k, f in enumerate(MEETINGS.values())]

    torch.manual_seed(0)
    given = torch.randn(4, 6).to(wide), torch.randn(4, 6).to(half)
    check(every, [given], device, dynamic=False, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    ("function", "roundings"),
    [(lambda x, h: x + h, 0), (lambda x, h: x + h @ h.mT, 0), (lambda x, h: x + h * h, 1)],
    ids=["given", "of a call", "computed"],
)
def test_what_memory_holds_is_not_rounded_again(function, roundings, target):
    program = lower(trace(function, torch.randn(4, 4), torch.randn(4, 4).bfloat16()), strict=True).program
    found = {v for k in schedule(program, target=target).kernels for v in values(k.body) if isinstance(v, Op)}
    assert sum(v.name == "round_bfloat16" for v in found) == roundings
