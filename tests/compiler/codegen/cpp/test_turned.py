"""What is contiguous along another loop than the one in lanes: transposed in registers, whatever the sizes."""

import re
from pathlib import Path

import pytest
import torch
from support.kernels import avx512_text, compiled_agrees
from support.thorough import one_row_in

from regraft.compiler.codegen.cpp.build import source_of
from regraft.compiler.codegen.cpp.compiler import compile_all
from regraft.compiler.codegen.cpp.target import host_target

SIZES = [(16, 16), (48, 33), (35, 64), (70, 133), (5, 90)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def numbers(*sizes, dtype=torch.float32):
    x = torch.randn(*sizes) * 50
    x[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return x.to(dtype)


@one_row_in(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_transpositions(dtype):
    for sizes in SIZES:
        compiled_agrees(lambda x: x.t().contiguous(), numbers(*sizes, dtype=dtype), rtol=0, atol=0)


@pytest.mark.skipif(host_target().name != "avx512", reason="shuffles are those of AVX-512")
def test_places_of_shuffles_are_constants():
    """Compilers must not make them for each tile, which takes longer than the shuffles: no code tests their bits."""
    text = avx512_text(lambda x: x.transpose(1, 2).contiguous(), torch.randn(4, 3136, 16))
    ((library, _),) = compile_all([source_of([text], host_target())])
    assert not re.search(rb"\xf6[\xc0-\xc7]\x08|\xa8\x08", Path(library._name).read_bytes())  # test $8, %cl


@one_row_in(2)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_transpositions_that_are_computed_with(sizes):
    x, row, column = numbers(*sizes), torch.randn(sizes[0]), torch.randn(sizes[1], 1)
    compiled_agrees(lambda x, r, c: (x.t() - r) * c, x, row, column)
    compiled_agrees(lambda x: x.t().to(torch.bfloat16, copy=True).contiguous(), x, rtol=0, atol=0)


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64], ids=str)
def test_scans_of_rows(dtype):
    for sizes in [(16, 16), (35, 70), (48, 33), (5, 90)]:
        x = numbers(*sizes).nan_to_num(1.0, 2.0, -2.0).to(dtype)
        compiled_agrees(lambda x: (x.cumsum(-1), (x * 2).cummax(-1)), x)
    compiled_agrees(lambda x: x.cumsum(-1), numbers(33, 64).bfloat16())


def test_rows_written_by_folds_across():
    """Columns are folded with lanes along rows, what is made of them goes to the other order."""
    for images in [(2, 48, 5, 7), (1, 16, 4, 4), (3, 33, 9, 9)]:
        x, w = torch.randn(images), torch.randn(images[1])
        norm = lambda x, w: torch.nn.functional.layer_norm(x.permute(0, 2, 3, 1), w.shape, w)  # noqa: E731
        compiled_agrees(norm, x, w)
        compiled_agrees(lambda x, w: norm(x, w).bfloat16(), x, w, rtol=2e-2, atol=2e-2)  # noqa: B023
        compiled_agrees(lambda x: x.permute(0, 2, 3, 1).softmax(-1) > 0.05, x)
