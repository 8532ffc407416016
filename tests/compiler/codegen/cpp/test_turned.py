"""What is contiguous along another loop than the one in lanes: transposed in registers, whatever the sizes."""

import re
from pathlib import Path

import pytest
import torch
from support.kernels import avx512_text, before_a_page, compiled_agrees, flat_buffer, one_unit, run_compiled
from support.thorough import one_row_in

from regraft.compiler.codegen.cpp import turned
from regraft.compiler.codegen.cpp.build import source_of
from regraft.compiler.codegen.cpp.compiler import compile_all
from regraft.compiler.codegen.cpp.kernel_text import kernel_text
from regraft.compiler.codegen.cpp.target import host_target, target
from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.interpreter import run_kernel
from regraft.compiler.ir.kernel import Assign, Kernel, Loop, Param
from regraft.compiler.ir.program import Store
from regraft.compiler.ir.value import Load, Op

F32 = torch.float32
SIZES = [(16, 16), (48, 33), (35, 64), (70, 133), (5, 90)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def numbers(*sizes, dtype=torch.float32):
    x = torch.randn(*sizes) * 50
    x[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return x.to(dtype)


@one_row_in(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@one_unit()
def test_transpositions(dtype):
    for sizes in SIZES:
        compiled_agrees(lambda x: x.t().contiguous(), numbers(*sizes, dtype=dtype), rtol=0, atol=0)


@pytest.mark.optimized
@pytest.mark.skipif(host_target().name != "avx512", reason="shuffles are those of AVX-512")
def test_places_of_shuffles_are_constants():
    """Compilers must not make them for each tile, which takes longer than the shuffles: no code tests their bits."""
    text = avx512_text(lambda x: x.transpose(1, 2).contiguous(), torch.randn(4, 3136, 16))
    ((library, _),) = compile_all([source_of([text], host_target())])
    assert not re.search(rb"\xf6[\xc0-\xc7]\x08|\xa8\x08", Path(library._name).read_bytes())  # test $8, %cl


@one_row_in(2)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@one_unit()
def test_transpositions_that_are_computed_with(sizes):
    x, row, column = numbers(*sizes), torch.randn(sizes[0]), torch.randn(sizes[1], 1)
    compiled_agrees(lambda x, r, c: (x.t() - r) * c, x, row, column)
    compiled_agrees(lambda x: x.t().to(torch.bfloat16, copy=True).contiguous(), x, rtol=0, atol=0)


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64], ids=str)
@one_unit()
def test_scans_of_rows(dtype):
    for sizes in [(16, 16), (35, 70), (48, 33), (5, 90)]:
        x = numbers(*sizes).nan_to_num(1.0, 2.0, -2.0).to(dtype)
        compiled_agrees(lambda x: (x.cumsum(-1), (x * 2).cummax(-1)), x)
    compiled_agrees(lambda x: x.cumsum(-1), numbers(33, 64).bfloat16())


@one_unit()
def test_rows_written_by_folds_across():
    """Columns are folded with lanes along rows, what is made of them goes to the other order."""
    for images in [(2, 48, 5, 7), (1, 16, 4, 4), (3, 33, 9, 9)]:
        x, w = torch.randn(images), torch.randn(images[1])
        norm = lambda x, w: torch.nn.functional.layer_norm(x.permute(0, 2, 3, 1), w.shape, w)  # noqa: E731
        compiled_agrees(norm, x, w)
        compiled_agrees(lambda x, w: norm(x, w).bfloat16(), x, w, rtol=2e-2, atol=2e-2)  # noqa: B023
        compiled_agrees(lambda x: x.permute(0, 2, 3, 1).softmax(-1) > 0.05, x)


@one_row_in(2)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int32], ids=str)
@one_unit()
def test_rows_of_a_few_elements(dtype):
    """Rows that follow one another are whole vectors, those that do not are transposed."""
    for width in range(3, 14):
        x, w = numbers(67, width, dtype=dtype).nan_to_num(1.0, 2.0, -2.0), numbers(2, width + 1, dtype=dtype)[1, 1:]
        compiled_agrees(lambda x, w: (x.flip(-1) == w, x.double().sum(-1)), x, w, rtol=0, atol=0)
        compiled_agrees(lambda x, w: (x.amax(-1), (x == w).to(x.dtype)), x[:, 1:], w[1:], rtol=0, atol=0)
        if dtype.is_floating_point:
            compiled_agrees(lambda x, w: (x.softmax(-1), x * w), x, w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_rows_of_a_few_elements_at_the_end_of_memory(dtype):
    def folds(*rows):
        return [fold for x in rows for fold in (x.amax(-1), x.argmin(-1))]

    with before_a_page(dtype, 48 * 12) as given, torch.no_grad():
        rows = [given[-48 * width :].view(48, width) for width in (5, 6, 7, 8, 9, 10, 12)]
        for ours, theirs in zip(torch.compile(folds, backend="regraft")(*rows), folds(*rows), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.skipif(host_target().name != "avx512", reason="how many lanes there are depends on the instructions")
def test_which_rows_are_taken_apart():
    norm = lambda x: torch.nn.functional.layer_norm(x, x.shape[1:])  # noqa: E731
    assert [n for n in range(2, 16) if "load_turns<" in avx512_text(norm, torch.randn(640, n))] == [*turned.IN_TURNS]
    assert "store_turns<7>" in avx512_text(norm, torch.randn(640, 7))
    assert "load_turns" not in avx512_text(norm, torch.randn(640, 8)[:, :7])


def steps(x, d, a, b, c):
    """A recurrence over states of 16 numbers, written out."""
    h, made = torch.zeros(x.shape[0], x.shape[2], a.shape[1]), []
    for t in range(x.shape[1]):
        h = h * torch.exp(d[:, t, :, None] * a) + (d[:, t] * x[:, t])[..., None] * b[:, t, None, :]
        made.append((h * c[:, t, None, :]).sum(-1))
    return torch.stack(made, 1)


def test_kernels_with_many_rows_transpose_by_functions():
    """Written out for each, ten steps take the compiler half a minute."""
    x, d, a = torch.randn(2, 10, 64), torch.rand(2, 10, 64), -torch.rand(64, 16)
    given = (x, d, a, torch.randn(2, 10, 16), torch.randn(2, 10, 16))
    compiled_agrees(steps, *given, rtol=1e-4, atol=1e-4)
    text = avx512_text(steps, *given)
    assert "load_rows_apart(" in text and "load_rows(" not in text and "unroll 16" not in text


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_functions_transpose_all_sizes(sizes, monkeypatch):
    monkeypatch.setattr(turned, "APART", 0)
    x, row, column = numbers(*sizes), torch.randn(sizes[0]), torch.randn(sizes[1], 1)
    compiled_agrees(lambda x, r, c: ((x.t() - r) * c, x.cumsum(-1), (x * r[:, None]).softmax(-1)), x, row, column)


@pytest.mark.parametrize("then", ["read", "written"])
def test_stores_that_meet_other_accesses_are_not_put_off(then):
    """What an iteration stores, the next one of the same row reads, or writes over: stores stay where they are."""
    rows, columns = 33, 40
    x, y = flat_buffer("x", rows * columns), flat_buffer("y", rows * (columns + 1))
    i, j = Var("i", rows), Var("j", columns)
    at, read = i.index() * (columns + 1) + j.index(), Load("x", (i.index() * columns + j.index(),), F32)
    if then == "read":  # sums of rows' beginnings, of which each is the one before and an element
        made = [Assign(Store("y", (at + 1,), Op("add", (Load("y", (at,), F32), read), F32)))]
    else:
        made = [Assign(Store("y", (at,), read)), Assign(Store("y", (at + 1,), Op("neg", (read,), F32)))]
    params = (Param(x, "read"), Param(y, "update"))
    loops = Kernel("put_off", params, (), (), (Loop(i, (Loop(j, tuple(made)),), True),))
    given = {"x": torch.randn(rows * columns), "y": torch.zeros(rows * (columns + 1))}
    expected, found = (run(loops, {n: t.clone() for n, t in given.items()}) for run in (run_kernel, run_compiled))
    torch.testing.assert_close(found["y"], expected["y"])


def test_small_bodies_are_not_copied():
    """Sixteen copies of a softmax's loops are no faster, and took g++ four times as long: 0.7 s."""
    text = avx512_text(lambda x: (x / 8).softmax(-1), torch.randn(4096, 64))
    assert text.count("load_rows(") == 2 and set(re.findall(r"unroll \d+", text)) == {"unroll 1"}


def test_bodies_that_scatter_much_are_not_copied():
    """Zeros around a part with symbolic sizes: sixteen copies of seven scattered stores took g++ 85 seconds."""
    rows, columns = 64, 48
    x, y = flat_buffer("x", rows * columns), flat_buffer("y", rows * 200)
    i, j = Var("i", rows), Var("j", columns)
    read = Load("x", (i.index() * columns + j.index(),), F32)
    made = [Assign(Store("y", (i.index() * 200 + j.index() + columns * k,), read)) for k in range(4)]
    loops = Kernel("around", (Param(x, "read"), Param(y, "write")), (), (), (Loop(i, (Loop(j, tuple(made)),), True),))
    text = kernel_text(loops, target("avx512"))
    block = text[text.index("load_rows(") :]
    assert "scatter(" in block and "#pragma GCC unroll 1\n" in block and "#pragma GCC unroll 16\n" not in block
