"""Batched products with a vector against eager; what stays the library's."""

import pytest
import torch
from support.lowering import agree, trace

from regraft.compiler.lowering import lower

R = torch.randn
HALF = {"rtol": 2e-2, "atol": 2e-2}
VECTORS = {
    "columns": ((5, 7, 33), (5, 33, 1)),
    "rows": ((5, 1, 33), (5, 33, 7)),
    "both": ((5, 1, 33), (5, 33, 1)),
    "outer": ((5, 7, 1), (5, 1, 9)),
    "one element": ((5, 1, 1), (5, 1, 1)),
}
LIBRARY = {
    "matrices": ((5, 7, 33), (5, 33, 9)),
    "one matrix": ((1, 7, 33), (1, 33, 1)),
    "no depth": ((5, 7, 0), (5, 0, 1)),
    "long rows added up": ((2, 1, 600), (2, 600, 600)),
}


def kept(function, *inputs):
    return [call.operator for call in lower(trace(function, *inputs), strict=True).kept]


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name):
    x, y = (R(sizes) for sizes in VECTORS[name])
    agree(torch.bmm, x, y)
    agree(torch.bmm, x, y, dynamic=name != "rows")  # how long rows are decides
    agree(lambda x, y: torch.bmm(x, y.transpose(1, 2).contiguous().transpose(1, 2)) * 2, x, y)
    assert not kept(torch.bmm, x, y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["columns", "rows", "both"])
def test_vectors_of_other_dtypes(name, dtype):
    agree(torch.bmm, *(R(sizes).to(dtype) for sizes in VECTORS[name]), **({} if dtype == torch.float64 else HALF))


@pytest.mark.parametrize("name", LIBRARY)
def test_what_stays_a_call(name):
    assert kept(torch.bmm, *(R(sizes) for sizes in LIBRARY[name]))


def test_whole_numbers_stay_a_call():
    assert kept(torch.bmm, torch.ones(5, 7, 3, dtype=torch.int64), torch.ones(5, 3, 1, dtype=torch.int64))
