"""Sums begin with 0.0, as eager's do: of negative zeros alone they are 0.0, however many lanes have one."""

import pytest
import torch
from support.symbols import compiled
from support.thorough import one_row_in

FUNCTIONS = {
    "sum": lambda x: x.sum(0),
    "sum of rows": lambda x: x.sum(1),
    "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(1),
    "cumsum": lambda x: x.cumsum(0),
    "cumsum of rows": lambda x: x.cumsum(1),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 0),
    "cumprod": lambda x: x.cumprod(0),
    "prod": lambda x: x.prod(1),
    "max": lambda x: x.amax(1),
}


@one_row_in(2)
@pytest.mark.parametrize("device", ["cpu", "interpreter"])
@pytest.mark.parametrize("sizes", [(4, 8), (3, 5), (1, 16), (16, 1)], ids=str)
def test_sums_of_zeros(sizes: tuple[int, int], device: str) -> None:
    def every(x, n):
        return [f(x * n) for f in FUNCTIONS.values()]

    given = torch.full(sizes, -0.0), 3
    program = compiled(every, given, device, dynamic=False)
    assert program.kept == []
    for name, ours, eager in zip(FUNCTIONS, program.run(*given), every(*given), strict=True):
        assert torch.equal(ours, eager), name
        assert torch.equal(ours.signbit(), eager.signbit()), name
