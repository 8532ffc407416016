"""Batched products with a vector against eager; what stays the library's."""

import pytest
import torch
import torch.nn.functional as F
from support.lowering import agree, trace
from support.triton_kernels import compiles, interpreted_agrees
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.lowering import lower
from regraft.compiler.lowering.ops import products

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


# -- one matrix and a vector ------------------------------------------------------------------------------------------

SMALL = {
    "mv": (torch.mv, R(19, 33), R(33)),
    "mv of a transposed matrix": (lambda x, y: torch.mv(x.t(), y), R(33, 19), R(33)),
    "mv of 16 bits": (torch.mv, R(19, 33).bfloat16(), R(33).bfloat16()),
    "dot": (torch.dot, R(70), R(70)),
    "both, normalized": (lambda w, v: F.normalize(torch.mv(w, v), dim=0).dot(torch.mv(w, v)), R(19, 33), R(33)),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_matrices_on_gpus(name, monkeypatch):
    function, *inputs = SMALL[name]
    monkeypatch.setattr(products, "_is_fold", lambda *_: True)
    assert not kept(function, *inputs)
    for source in interpreted_agrees(function, *inputs, **(HALF if "16" in name else {"rtol": 1e-4, "atol": 1e-4})):
        assert compiles(source)


@pytest.mark.parametrize(
    ("device", "rows", "dtype", "own"),
    [
        ("cuda", 512, torch.float32, True),
        ("cuda", 512, torch.bfloat16, True),
        ("cuda", 5120, torch.float32, False),  # memory decides
        ("cuda", 512, torch.int64, False),
        ("cpu", 512, torch.float32, True),
        ("cpu", 5120, torch.float32, False),
        ("cpu", 5120, torch.bfloat16, True),  # libraries are slow
        ("cpu", 512, torch.int64, False),
    ],
)
def test_which_matrices_are_folded(device, rows, dtype, own):
    with FakeTensorMode(allow_non_fake_inputs=True):
        x, y = torch.empty(rows, 512, dtype=dtype, device=device), torch.empty(512, dtype=dtype, device=device)
        module = make_fx(torch.mv)(x, y)
    assert bool(lower(module).kept) != own


def test_a_spectral_norm_on_a_cpu_calls_no_library():
    def function(w, u):
        v = F.normalize(w.t() @ u, dim=0)
        return w / (F.normalize(w @ v, dim=0) @ (w @ v))

    assert not kept(function, R(40, 70).bfloat16(), R(40).bfloat16())
