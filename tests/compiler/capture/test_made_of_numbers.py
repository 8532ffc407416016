"""Tensors of numbers that change from call to call: what the dtype does not hold is infinite, as in eager."""

import numpy as np
import pytest
import torch
from support.thorough import one_row_in

import regraft

MAKERS = {
    "one": lambda x, n: x * torch.tensor(n), "list": lambda x, n: x[:2] * torch.tensor([n, 1.0]),
    "half": lambda x, n: x + torch.tensor(n, dtype=torch.float16), "wide": lambda x, n: torch.tensor(n).double() * x,
    "rows": lambda x, n: torch.tensor([[n], [2]], dtype=torch.bfloat16) + x,
    "double": lambda x, n: x * torch.tensor(n, dtype=torch.float64), "whole": lambda x, n: torch.tensor(n).sqrt(),
    "as tensor": lambda x, n: torch.as_tensor([n, 2]) * x[:2], "as array": lambda x, n: x + torch.asarray(n),
    "type": lambda x, n: torch.FloatTensor([n]) + x,
}  # fmt: skip


@one_row_in(2)
@pytest.mark.parametrize("name", MAKERS)
def test_as_eager(name):
    torch.compiler.reset()
    call, x = MAKERS[name], torch.linspace(-2, 3, 6)
    compiled = torch.compile(call, backend="regraft")
    with regraft.coverage() as found:
        for n in (1.5, 0.1, 7e4, 1e39, -1e300, float("inf"), 2.5):
            torch.testing.assert_close(compiled(x, n), call(x, n), rtol=0, atol=0, equal_nan=True)
    assert not found.faults


WHOLE = {
    "tensor": torch.tensor, "as tensor": torch.as_tensor, "as array": torch.asarray,
    "list": lambda n: torch.as_tensor([n, 1.0]), "type": lambda n: torch.DoubleTensor([n]),
    "array": lambda n: torch.from_numpy(np.array([[n, 1], [2, n]])),
    "floats": lambda n: torch.from_numpy(np.array([n, 0.5])),
    "most": lambda n: torch.from_numpy(np.maximum(np.arange(3), n)), "full": lambda n: torch.from_numpy(np.full(3, n)),
    "sum": lambda n: torch.from_numpy(np.sum([n, 2]) + np.arange(2)),
    "number": lambda n: torch.from_numpy(np.int64(n) + np.arange(2)),
}  # fmt: skip


@one_row_in(2)
@pytest.mark.parametrize("name", WHOLE)
def test_integers_of_more_than_32_bits(name):
    torch.compiler.reset()
    compiled = torch.compile(lambda n: WHOLE[name](n) + 1, backend="regraft", options={"strict": True})
    for n in (3, 4, 2**33, -(2**40), 5):
        torch.testing.assert_close(compiled(n), WHOLE[name](n) + 1, rtol=0, atol=0)
