"""Every pointwise operation in every dtype it has, on special values, against eager; and compiled for GPUs."""

import pytest

pytest.importorskip("triton")

import torch
from support.thorough import one_row_in
from support.triton_kernels import compile_for, compiles, interpret, kernel_source, run_interpreted

from regraft.compiler.ir.ops import OPS
from regraft.compiler.ir.value import Const, Load, Op

from ..cpp.test_operations import DTYPES, FAST, case, flat_buffer, loop_kernel, names_for, operands


@one_row_in(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operations_are_eagers(dtype):
    wrong = {}
    for name in names_for(dtype):
        kernel, inputs, expected = case(name, dtype)
        precision = {torch.float32: 1e-6, torch.float64: 1e-14}.get(expected.dtype, 0)
        if name in ("lgamma", "digamma", "erfinv", "pow"):
            precision *= 8
        tolerance = {"rtol": precision, "atol": 1e-38 if precision else 0}
        if name in FAST:
            tolerance = {"rtol": 1e-5, "atol": 1e-7}
        if name in ("normal_cdf", "normal_pdf"):  # in the tails eager is less precise; see test_library
            tolerance = {"rtol": precision, "atol": precision / 10}
        try:
            torch.testing.assert_close(run_interpreted(kernel, inputs)["out"], expected, equal_nan=True, **tolerance)
        except Exception as error:
            wrong[name] = str(error)
    assert not wrong, "\n".join(f"{name}: {text[-1500:]}" for name, text in wrong.items())


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool], ids=str)
def test_operations_compile(dtype):
    """All of a dtype in one module: a kernel each."""
    for name in names_for(dtype):
        assert compiles(kernel_source(case(name, dtype)[0])), name


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8], ids=str)
def test_operations_of_a_number_compile(dtype):
    """One operand is a constant, which has the shape of one element."""
    for name in names_for(dtype):
        columns = operands(name, dtype)
        for constant in range(len(columns) if len(columns) > 1 else 0):
            assert compile_for(kernel_source(_with_a_number(name, columns, constant)), 90), (name, constant)


def _with_a_number(name, columns, constant):
    size, kind = len(columns[0]), OPS[name].reference(*columns).dtype
    buffers = [flat_buffer(f"x{k}", size, column.dtype) for k, column in enumerate(columns)]
    number = Const(columns[constant][3].item(), columns[constant].dtype)

    def value(i):
        loads = [Load(buffer.name, (i,), buffer.dtype) for buffer in buffers]
        return Op(name, (*loads[:constant], number, *loads[constant + 1 :]), kind)

    read = [buffer for k, buffer in enumerate(buffers) if k != constant]
    return loop_kernel(f"{name}_{constant}", size, read, flat_buffer("out", size, kind), value)


def test_signs_of_zero_are_kept():
    for name in ("neg", "abs", "mul", "round", "trunc", "ceil", "maximum", "copysign", "tanh", "erf", "sign"):
        kernel, inputs, expected = case(name, torch.float32)
        ours, keep = run_interpreted(kernel, inputs)["out"], ~expected.isnan()
        assert torch.equal(ours.signbit()[keep], expected.signbit()[keep]), name


def test_casts_are_eagers():
    for source in DTYPES:
        for to in DTYPES:
            x = torch.tensor([0, 1, 2, 3, 5, 64, 100, 120, 127] * 3).to(source)
            if source.is_floating_point:
                x = torch.cat([x + 0.7, -x[:5]]) if to not in (torch.uint8,) else x + 0.7
            kernel = loop_kernel(
                "cast", len(x), [flat_buffer("x", len(x), source)], flat_buffer("out", len(x), to),
                lambda i, source=source, to=to: Op("cast", (Load("x", (i,), source),), to),
            )  # fmt: skip
            assert torch.equal(run_interpreted(kernel, {"x": x})["out"], x.to(to)), (source, to)


def test_random_bits_are_philox():
    size = 37
    seed, offset = torch.full((size,), 1234567890123), torch.arange(size) * 987654321987
    inputs = [flat_buffer(name, size, torch.int64) for name in ("seed", "offset")]
    for word in range(4):
        name = f"philox{word}"
        kernel = loop_kernel(
            name, size, inputs, flat_buffer("out", size, torch.int64),
            lambda i, name=name: Op(name, tuple(Load(b.name, (i,), torch.int64) for b in inputs), torch.int64),
        )  # fmt: skip
        given = {"seed": seed, "offset": offset, "out": torch.zeros(size, dtype=torch.int64)}
        source = interpret(kernel, given, {})
        assert torch.equal(given["out"], OPS[name].reference(seed, offset)), name
        assert compiles(source)
