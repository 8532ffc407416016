"""What is contiguous along another loop than the one in lanes: transposed in registers, whatever the sizes."""

import pytest
import torch
from support.kernels import compiled_agrees

SIZES = [(16, 16), (48, 33), (35, 64), (70, 133), (5, 90)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def numbers(*sizes, dtype=torch.float32):
    x = torch.randn(*sizes) * 50
    x[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_transpositions(dtype):
    for sizes in SIZES:
        compiled_agrees(lambda x: x.t().contiguous(), numbers(*sizes, dtype=dtype), rtol=0, atol=0)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_transpositions_that_are_computed_with(sizes):
    x, row, column = numbers(*sizes), torch.randn(sizes[0]), torch.randn(sizes[1], 1)
    compiled_agrees(lambda x, r, c: (x.t() - r) * c, x, row, column)
    compiled_agrees(lambda x: x.t().to(torch.bfloat16, copy=True).contiguous(), x, rtol=0, atol=0)
