"""Short rows run with lanes along their neighbours: any length, also of part of a block, and any dtype."""

import pytest
import torch
import torch.nn.functional as F
from support.kernels import compiled_agrees, one_unit
from support.lowering import trace
from support.thorough import THOROUGH, one_row_in, takes_turns

from regraft.compiler.codegen import cpp
from regraft.compiler.codegen.cpp import target
from regraft.compiler.codegen.cpp.kernel_text import kernel_text
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, schedule

LENGTHS = [2, 4, 5, 9, 15, 16, 18, 31, 33, 50]


def written(function, *inputs, name="avx512"):
    program = lower(trace(function, *inputs), strict=True).program
    return "\n".join(kernel_text(k, target(name)) for k in schedule(program, target=CPU).kernels)


def in_rows(text):
    """Whether lanes lie across rows, which are read or written as transposed blocks or as whole vectors."""
    return "_rows" in text or "_turns" in text


def numbers(rows, length, dtype=torch.float32):
    # The same in each run: the norm of two numbers that happen to be alike is as far from eager's as these round.
    x = torch.randn(rows, length, generator=torch.Generator().manual_seed(length)) * 3
    x[1, 0], x[2, -1], x[3] = torch.inf, torch.nan, -torch.inf
    return x.to(dtype)


@one_row_in(2)
@takes_turns("rows")
@pytest.mark.parametrize("rows", [64, 133])
@pytest.mark.parametrize("length", LENGTHS)
@one_unit()
def test_rows_of_any_length(length, rows):
    x, w = numbers(rows, length), torch.randn(length)
    compiled_agrees(lambda x: x.softmax(-1), x)
    compiled_agrees(lambda x, w: F.layer_norm(x, w.shape, w), x[4:], w)
    compiled_agrees(lambda x: (x.amax(-1), x.sum(-1), x.argmin(-1)), x)


@one_row_in(2)
@pytest.mark.parametrize("name", ["avx2", "generic", "scalar"])
@one_unit()
def test_other_instruction_sets(name):
    if cpp.host_target().vector_bytes < 32:
        pytest.skip("no vectors here")
    for length in (5, 11, 18):
        compiled_agrees(lambda x: (x.softmax(-1), x.argmax(-1)), numbers(70, length), target=target(name))


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@one_unit()
def test_other_dtypes(dtype):
    for length in (9, 18, 40):
        compiled_agrees(lambda x: x.softmax(-1), numbers(70, length, dtype), rtol=1e-2, atol=1e-2)
    compiled_agrees(lambda x: (x.sum(-1), x.amax(-1)), torch.randint(0, 99, (70, 11)))
    compiled_agrees(lambda x: x.any(-1), torch.rand(90, 19) > 0.9)


@one_unit()
def test_losses_of_few_classes():
    for classes in (3, 10, 50) if THOROUGH else (3, 50):
        x, y = torch.randn(200, classes), torch.randint(0, classes, (200,))
        compiled_agrees(F.cross_entropy, x, y)
        compiled_agrees(lambda x: (x.softmax(-1) * x.log_softmax(-1)).sum(-1), x)


@one_unit()
def test_rows_of_columns_and_parts_of_rows():
    x = torch.randn(6, 80, 40)
    compiled_agrees(lambda x: x[:, :, 3:24].softmax(-1), x)
    compiled_agrees(lambda x: (x.mean(-1), x.transpose(0, 1).contiguous().mean(-1)), x[..., :20])


def test_which_rows_are_transposed():
    turned = lambda length, rows=4096: in_rows(written(lambda x: x.softmax(-1), torch.randn(rows, length)))  # noqa: E731
    assert turned(10) and turned(18) and turned(32)
    assert not turned(512) and not turned(18, rows=16)
    assert not in_rows(written(lambda x: x.sum(-1), torch.randn(4096, 128)))


@pytest.mark.parametrize(
    ("function", "lengths"),
    [
        (lambda x: x.log_softmax(-1), {18: True, 64: True, 80: True, 128: False}),
        (lambda x: x.var(-1), {40: True, 128: False}),  # in float64
        (lambda x: x.argmax(-1), {48: True, 128: False}),
        (lambda x: x.amax(-1), {33: True, 64: False, 128: False}),
    ],
    ids=["log softmax", "variance", "place", "maximum"],
)
def test_how_long_rows_may_be(function, lengths):
    """Longer where joins wait for each other or functions follow, shorter where the only fold of a row is cheap."""
    assert {n: in_rows(written(function, torch.randn(4096, n))) for n in lengths} == lengths


@one_unit()
def test_folds_in_folds_have_lanes_along_memory():
    """What the outer fold adds up is folded further in: lanes go along what lies side by side."""
    squares = lambda x: (x.sum(1).square() - x.square().sum(1)).sum(-1)  # noqa: E731
    for sizes in [(40, 26, 16), (33, 5, 24), (7, 3, 5), (1, 9, 70)]:
        compiled_agrees(squares, torch.randn(sizes) / 8, rtol=1e-4, atol=1e-4)
    assert "strided" not in written(squares, torch.randn(1024, 26, 16))


@one_row_in(2)
@pytest.mark.parametrize("name", ["avx512", "avx2", "scalar"])
@one_unit()
def test_places_that_are_read_again(name):
    """They are found in 32 bits, and are 64 bits wide to all that read them."""
    if cpp.host_target().vector_bytes < target(name).vector_bytes:
        pytest.skip("no such vectors here")
    for x in (torch.randn(4, 70).t(), torch.randn(70, 10), torch.randn(4, 33).t()):
        compiled_agrees(lambda x: ((i := x.argmax(-1)), (i >= 0).all(), i.sum(), i * 3), x, target=target(name))
        compiled_agrees(lambda x: ((i := x.min(-1).indices), (i < 2).any(), i.amax()), x, target=target(name))


@pytest.mark.parametrize("rows, length, across", [(2000, 100, True), (20000, 100, False), (20000, 20, True)])
def test_rows_of_large_memory_are_read_as_they_lie(rows, length, across):
    """Unless they are so short that a block of them is a few lines of the cache."""
    text = written(lambda x: x.softmax(-1), torch.empty(rows, length))
    assert in_rows(text) == across


def test_many_blocks_of_rows_pay_for_functions_alone():
    """With more than four, they are transposed by functions."""
    x = torch.empty(2000, 27)
    assert not in_rows(written(lambda x: (x.relu(), F.layer_norm(x, x.shape[-1:])), x))
    assert in_rows(written(lambda x: F.layer_norm(x, x.shape[-1:]), x))


def differences(x):
    for _ in range(3):
        x = (x[:, 1:] - 0.5 * x[:, :-1]) / (1 + x[:, 1:].abs())
    return x


def splines(x, knots):
    x = x[..., None]
    basis = ((x >= knots[:-1]) & (x < knots[1:])).float()
    for k in range(1, 4):
        left, right = knots[: -k - 1], knots[k + 1 :]
        basis = (x - left) / (knots[k:-1] - left) * basis[..., :-1] + (right - x) / (right - knots[1:-k]) * basis[
            ..., 1:
        ]
    return basis


def bezier(x):
    t = x[:, :1]
    while x.shape[1] > 1:
        x = (1 - t) * x[:, :-1] + t * x[:, 1:]
    return x[:, 0]


def flips(x):
    y = torch.tanh(x[:, 1:] * x[:, :-1])
    z = y - y.flip(-1) * 0.5
    return z * torch.sigmoid(z.flip(-1) + z)


def sums(x):
    for step in (1, 2, 4, 8):
        x = torch.cat([x[:, :step], x[:, step:] + 0.9 * x[:, :-step]], 1)
    return x


def moving(x):
    for _ in range(2):
        x = torch.sigmoid(sum(weight * x[:, k : x.shape[1] - 4 + k] for k, weight in enumerate((-3, 12, 17, 12, -3))))
    return x


@one_row_in(2)
@pytest.mark.parametrize("length", [9, 12, 17, 24, 40])
@one_unit()
def test_rows_that_are_read_beside_what_was_stored(length):
    x = torch.randn(133, length, generator=torch.Generator().manual_seed(length)) / 2
    for function in (differences, bezier, flips, sums, moving):
        compiled_agrees(function, x, rtol=1e-4, atol=1e-5)
    compiled_agrees(splines, x[:, 3].contiguous(), torch.linspace(-2, 2, length), rtol=1e-4, atol=1e-5)
    compiled_agrees(lambda x: (differences(x), differences(x).amax(-1)), x.double())


@pytest.mark.parametrize(
    ("function", "lengths"),
    [
        (differences, {11: True, 24: True, 66: True, 260: False}),
        (splines, {9: True, 12: True, 20: True}),
        (flips, {12: True, 200: False}),
        (moving, {17: True, 260: False}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_how_long_rows_may_be_that_are_read_beside_what_was_stored(function, lengths):
    """Where vectors lie across two that were just stored, lanes go across rows: for longer rows that costs more."""

    def across(length):
        inputs = [torch.empty(4096), torch.empty(length)] if function is splines else [torch.empty(4096, length)]
        return in_rows(written(function, *inputs))

    assert {n: across(n) for n in lengths} == lengths


def test_rows_that_are_read_as_they_were_stored_have_lanes_along_them():
    x, y = torch.empty(4096, 48), torch.empty(4096, 1)
    assert not in_rows(written(lambda x, y: (x + y) * torch.arange(48.0), x, y))
