"""Small products against eager; what stays the library's."""

import pytest
import torch
import torch.nn.functional as F
from support.kernels import compiled_agrees
from support.lowering import agree, run_program, trace
from support.thorough import one_row_in, takes_turns
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


SMALL_MATRICES = [(2, 3, 5), (3, 4, 2), (7, 11, 13), (16, 16, 16), (1, 5, 8), (12, 16, 32)]  # rows, terms, columns


@one_row_in(2)
@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", SMALL_MATRICES, ids=str)
def test_batches_of_small_matrices(sizes, dtype):
    rows, depth, columns = sizes
    x, y = R(9, rows, depth).to(dtype), R(9, depth, columns).to(dtype)
    near = HALF if dtype == torch.bfloat16 else {}
    assert not kept(torch.bmm, x, y)
    compiled_agrees(torch.bmm, x, y, **near)
    compiled_agrees(lambda x, y: torch.bmm(x.tanh(), y) * 2, x, y, **{name: 5 * value for name, value in near.items()})
    transposed = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert not kept(torch.bmm, transposed, y)
    compiled_agrees(torch.bmm, transposed, y, **near)


@pytest.mark.parametrize(
    ("sizes", "dtype", "transposed"),
    [
        ((16, 16, 7), torch.float32, False),  # few columns
        ((16, 16, 16), torch.float32, True),  # which do not lie side by side
        ((33, 4, 16), torch.float32, False),
        ((16, 17, 16), torch.bfloat16, False),
        ((16, 33, 16), torch.float64, False),
    ],
)
def test_which_matrices_are_not_small(sizes, dtype, transposed):
    rows, depth, columns = sizes
    y = R(9, columns, depth).to(dtype).transpose(1, 2) if transposed else R(9, depth, columns).to(dtype)
    assert kept(torch.bmm, R(9, rows, depth).to(dtype), y)


@pytest.mark.parametrize(
    ("equation", "sizes", "own"),
    [
        ("bnik,kbnj->bnij", (16, 3, 5, 16), True),  # columns of the operand lie side by side
        ("bnik,bjnk->bnij", (3, 16, 5, 16), False),  # those of the copy do, of which a fold reads the operand
        ("bnik,bkjn->bnij", (3, 16, 16, 5), False),
    ],
)
def test_copies_are_read_through(equation, sizes, own):
    def function(x, y):
        return torch.einsum(equation, x, y).relu()

    given = R(3, 5, 16, 16), R(sizes)
    assert bool(kept(function, *given)) != own
    compiled_agrees(function, *given)


@pytest.mark.parametrize("name", LIBRARY)
def test_what_stays_a_call(name):
    assert kept(torch.bmm, *(R(sizes) for sizes in LIBRARY[name]))


def test_whole_numbers_stay_a_call():
    assert kept(torch.bmm, torch.ones(5, 7, 3, dtype=torch.int64), torch.ones(5, 3, 1, dtype=torch.int64))


# -- small products on GPUs -------------------------------------------------------------------------------------------

PRODUCTS = {
    "poses": (torch.bmm, R(70, 3, 3), R(70, 3, 3)),
    "filters": (lambda a, p: a @ p @ a.transpose(1, 2) + p, R(9, 4, 4) / 2, R(9, 4, 4) / 2),
    "outer": (torch.bmm, R(6, 17, 1), R(6, 1, 9)),
    "vectors": (torch.bmm, R(5, 9, 20), R(5, 20, 1)),
    "points": (torch.mm, R(70, 3), R(3, 3)),
    "layers": (lambda x, w, b: torch.tanh(F.linear(torch.tanh(F.linear(x, w, b)), w, b)), R(7, 20), R(20, 20), R(20)),
    "values that are not finite": (torch.mm, torch.tensor([[1.0, float("inf")], [float("nan"), 0.0]]), R(2, 3)),
    "one entry": (torch.mm, R(1, 1), R(1, 1)),
}


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_small_products_on_gpus(name, dtype, monkeypatch):
    function, *inputs = PRODUCTS[name]
    monkeypatch.setattr(products, "_is_small_on_gpu", lambda *_: True)
    given = [x.to(dtype) for x in inputs]
    assert not kept(function, *given)
    for source in interpreted_agrees(function, *given, **(HALF if given[0].itemsize == 2 else {})):
        assert dtype != torch.float32 or compiles(source)


def test_products_with_results_of_more_bits(monkeypatch):
    """Sums of 16-bit products that are asked for in float32 are not rounded."""
    monkeypatch.setattr(products, "_is_small_on_gpu", lambda *_: True)
    x, y = R(5, 3).bfloat16(), R(3, 4).bfloat16()
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = make_fx(lambda x, y: torch.ops.aten.mm.dtype(x, y, torch.float32))(
            *(torch.empty(v.shape, dtype=v.dtype, device="cuda") for v in (x, y))
        )
    lowered = lower(module)
    assert not lowered.kept
    names = [name for name, buffer in lowered.program.buffers.items() if buffer.kind == "input"]
    made = list(run_program(lowered.program, dict(zip(names, (x, y), strict=True))).values())[-1]
    assert made.dtype == torch.float32
    torch.testing.assert_close(made, x.float() @ y.float())


@pytest.mark.parametrize(
    ("function", "shapes", "dtype", "own"),
    [
        (torch.bmm, ((4096, 8, 8), (4096, 8, 8)), torch.bfloat16, True),
        (torch.bmm, ((4096, 16, 16), (4096, 16, 16)), torch.bfloat16, False),
        (torch.bmm, ((64, 512, 1), (64, 1, 512)), torch.bfloat16, True),
        (torch.bmm, ((24576, 64, 9), (24576, 9, 1)), torch.bfloat16, True),
        (torch.bmm, ((64, 512, 512), (64, 512, 1)), torch.bfloat16, False),
        (torch.bmm, ((64, 512, 512), (64, 512, 1)), torch.float32, True),
        (torch.bmm, ((64, 1, 512), (64, 512, 512)), torch.float32, False),  # terms lie apart
        (torch.bmm, ((0, 3, 3), (0, 3, 3)), torch.float32, False),
        (torch.mm, ((65536, 3), (3, 3)), torch.float32, True),
        (torch.mm, ((64, 64), (64, 64)), torch.bfloat16, True),
        (torch.mm, ((128, 784), (784, 10)), torch.float32, True),
        (torch.mm, ((1024, 1024), (1024, 1024)), torch.float32, False),
        (torch.mm, ((65536, 16), (16, 16)), torch.bfloat16, False),
        (torch.mm, ((64, 65536), (65536, 64)), torch.float32, False),
        (torch.mm, ((64, 65536), (65536, 1)), torch.bfloat16, True),
        (lambda x, y: x @ y.mT, ((4096, 4, 64), (4096, 4, 64)), torch.bfloat16, True),
        (torch.bmm, ((4096, 4, 64), (4096, 64, 4)), torch.bfloat16, False),  # terms lie apart
    ],
)
def test_which_products_are_folded(function, shapes, dtype, own):
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = make_fx(function)(*(torch.empty(sizes, dtype=dtype, device="cuda") for sizes in shapes))
    assert bool(lower(module).kept) != own


def test_layers_with_factors_stay_a_call():
    """The bias of a linear layer is added as it is; other sums are the library's."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        bias, x, w = (torch.empty(sizes, device="cuda") for sizes in ((4,), (8, 3), (3, 4)))
        whole = torch.empty(8, 4, device="cuda")
        for function, own in (
            (lambda b, x, w, m: torch.addmm(b, x, w), True),
            (lambda b, x, w, m: torch.addmm(b, x, w, beta=2), False),
            (lambda b, x, w, m: torch.addmm(b, x, w, alpha=0.5), False),
            (lambda b, x, w, m: torch.addmm(m, x, w), False),
        ):
            assert bool(lower(make_fx(function)(bias, x, w, whole)).kept) != own


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
