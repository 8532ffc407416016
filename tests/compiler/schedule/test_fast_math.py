"""Fast functions: where they stand, where they must not, and how far they are off."""

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F
from support.triton_kernels import compile_for, interpreted_agrees, run_interpreted

from regraft.compiler.ir.value import Load, Op
from regraft.compiler.schedule.fast_math import fast_values, with_fast_functions

from ..codegen.cpp.test_operations import flat_buffer, loop_kernel
from .launches.test_plan import kernels

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
R = torch.randn


def text(function, *inputs, **tolerance):
    return "\n".join(source.text for source in interpreted_agrees(function, *inputs, **tolerance))


FAST = {
    "softmax": lambda x: x.softmax(-1),
    "softmax computed in float32": lambda x: x.float().softmax(-1).to(x.dtype),
    "silu": F.silu,
    "gate": lambda x: torch.sigmoid(x) * x,
    "quotient": lambda x: x / (x * x + 1),
}


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("name", FAST)
def test_what_is_rounded_to_16_bits_is_fast(name, dtype):
    made = text(FAST[name], R(33, 65).to(dtype), rtol=1e-2, atol=1e-2)
    assert "fast_" in made and "libdevice.exp(" not in made and "div_rn" not in made


@pytest.mark.parametrize("name", FAST)
def test_what_is_stored_in_32_is_not(name):
    assert "fast_" not in text(FAST[name], R(33, 65))
    assert FAST[name](R(2, 2).double()).dtype == torch.float64
    assert "fast_" not in text(FAST[name], R(33, 65).double())


PRECISE = {
    "kept beside it": lambda x: (x.exp(), x.float().exp()),
    "compared": lambda x: torch.where(x.float().exp() > 1.25, x, -x),
    "a whole number": lambda x: torch.floor(x.float() / 0.1).to(x.dtype),
    "what is left": lambda x: torch.remainder(x.float().exp(), 0.5).to(x.dtype),
    "an integer": lambda x: (x.float().exp() * 8).to(torch.int32),
    "where the largest is": lambda x: x.float().exp().argmax(1),
    "a sum": lambda x: x.float().exp().sum(1),
    "its logarithm": lambda x: x.float().logsumexp(1),
}


@pytest.mark.parametrize("name", PRECISE)
def test_what_decides_or_is_kept_is_precise(name):
    for x in (R(33, 65).bfloat16(), R(300, 40).bfloat16()):
        for kernel in kernels(PRECISE[name], x):
            assert with_fast_functions(kernel) is kernel


def test_only_what_is_rounded_is_fast():
    """Two results of one kernel: powers are summed in float32, and gates are rounded."""
    made = text(lambda x: (x.float().exp().sum(1), torch.sigmoid(x)), R(300, 40).bfloat16(), rtol=1e-2, atol=1e-2)
    assert "libdevice.exp(" in made and "fast_sigmoid" in made


def test_values_by_what_they_are_stored_as():
    x = Load("x", (0,), F32)
    power, gate = Op("exp", (x,), F32), Op("sigmoid", (Op("exp", (x,), F32),), F32)
    fast = Op("fast_exp", (x,), F32)
    assert fast_values([(power, BF16), (gate, F16)]) == [fast, Op("fast_sigmoid", (fast,), F32)]
    assert fast_values([(power, F32), (gate, BF16)]) == [power, Op("fast_sigmoid", (power,), F32)]


def test_kernels_without_such_functions_stay():
    (kernel,) = kernels(lambda x: x * 2 + 1, R(4, 5).bfloat16())
    assert with_fast_functions(kernel) is kernel


def test_results_are_as_close_as_eagers():
    """To float64: fast functions are lost in the rounding."""
    for function, x in ((FAST["softmax"], R(40, 700) * 6), (F.silu, R(40, 700) * 6), (torch.exp, R(40, 700) * 6)):
        (kernel,) = kernels(function, x.bfloat16())
        (given, made) = (p.buffer.name for p in kernel.params)
        ours = run_interpreted(kernel, {given: x.bfloat16(), made: torch.empty_like(x).bfloat16()})[made]
        exact = function(x.bfloat16().double())
        error, bound = ((y.double() - exact).abs() / exact.abs() for y in (ours, function(x.bfloat16())))
        assert error.max() <= bound.max() * 1.02 and error.mean() <= bound.mean() * 1.01


SPECIAL = [0.0, -0.0, 1.0, -1.0, 88.0, -88.0, 104.0, -104.0, 3e38, -3e38, float("inf"), -float("inf"), float("nan")]


@pytest.mark.parametrize("name", ["exp", "sigmoid", "reciprocal", "div"])
def test_special_values_are_eagers(name):
    x = torch.tensor(SPECIAL)
    pairs = torch.cartesian_prod(x, x) if name == "div" else x.unsqueeze(1)
    columns = [column.contiguous() for column in pairs.T]
    size, names = len(columns[0]), [f"x{k}" for k in range(len(columns))]
    kernel = loop_kernel(
        "made", size, [flat_buffer(n, size, F32) for n in names], flat_buffer("out", size, BF16),
        lambda i: Op(name, tuple(Load(n, (i,), F32) for n in names), F32),
    )  # fmt: skip
    given = dict(zip(names, columns, strict=True))
    ours = run_interpreted(kernel, given)["out"]
    expected = (torch.div if name == "div" else getattr(torch, name))(*columns).bfloat16()
    torch.testing.assert_close(ours, expected, rtol=2**-7, atol=1e-37, equal_nan=True)
    assert torch.equal(ours.signbit()[~expected.isnan()], expected.signbit()[~expected.isnan()])


def test_they_compile():
    from support.triton_kernels import kernel_source

    for function in FAST.values():
        for kernel in kernels(function, R(512, 4096).bfloat16()):
            source = kernel_source(kernel)
            assert "fast_" in source.text and all(compile_for(source, 90))
