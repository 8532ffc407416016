"""What takes turns in memory: read and written as whole vectors, lanes chosen and woven, whatever the sizes."""

import pytest
import torch
from support.kernels import avx512_text, compiled_agrees, numbers, one_unit
from support.thorough import one_row_in

from regraft.compiler.codegen.cpp.target import host_target

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
avx512 = pytest.mark.skipif(host_target().name != "avx512", reason="how lanes are chosen depends on the instructions")


def rotated(x, f):
    (a, b), (c, d) = x.unbind(-1), f.unbind(-1)
    return torch.stack([a * c - b * d, a * d + b * c], -1)


def put_together(*parts):
    return [torch.stack(parts[:count], -1) for count in range(2, 10)]


def turned(x):
    return torch.stack(x.unbind(-1)[::-1], -1)


@one_row_in(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_put_together(dtype):
    compiled_agrees(put_together, *[numbers(2, 53, dtype=dtype) for _ in range(9)], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES[:5:2], ids=str)
def test_taken_apart_and_put_together(dtype):
    x = [numbers(3, 37, count, dtype=dtype) for count in (2, 3, 4)]
    compiled_agrees(lambda *x: tuple(map(turned, x)), *x, rtol=0, atol=0)


def test_complex_products():
    x = [(torch.randn(4, *sizes), torch.randn(sizes)) for sizes in [(3, 32, 2), (2, 5, 2), (7, 50, 2)]]
    compiled_agrees(lambda *x: [rotated(a, b) for a, b in zip(x[::2], x[1::2], strict=True)], *sum(x, ()))


@one_unit()
def test_results_that_are_written_where_others_are_read():
    x = torch.randn(6, 40)
    compiled_agrees(lambda x: (torch.stack([x.sin(), x], -1), torch.stack([x, x * 2], -1).sum(-1)), x)
    compiled_agrees(lambda x: torch.stack([x[:, ::2], x[:, 1::2] + 1], -1).flatten(1).cumsum(-1), x)


def test_three_values_of_each_row_become_one_matrix():
    """Rotations from angles: nine numbers a row are too many to weave."""
    x = torch.randn(70)
    compiled_agrees(lambda x: torch.stack([x.cos(), -x.sin(), x.sin(), x.cos(), x, x * 2], -1), x)


@pytest.mark.parametrize(("count", "yes"), [(2, True), (3, True), (4, True), (7, True), (8, True), (9, False)])
def test_which_stores_are_woven(count, yes):
    parts = [torch.randn(4, 64) for _ in range(count)]
    assert ("weave(" in avx512_text(lambda *x: torch.stack(x, -1), *parts)) == yes


def test_turns_that_are_not_all_there():
    """The element between two that are written is another's."""
    made = avx512_text(
        lambda x: torch.nn.functional.pad(torch.stack([x, x * 2], -1), (0, 1)).contiguous(), torch.randn(4, 64)
    )
    assert "weave(" not in made or "scatter(" not in made


@avx512
def test_complex_products_have_no_scalar_loop():
    made = avx512_text(rotated, torch.randn(4, 8, 64, 2), torch.randn(8, 64, 2))
    assert made.count("weave(") == 1 and "scatter" not in made and "gather" not in made
