"""Every reducer along and across contiguous memory, in lengths around those of vectors, against the interpreter."""

import functools
import math

import pytest
import torch
from support.kernels import flat_buffer, kernel, run_compiled_all
from support.thorough import one_row_in

from regraft.compiler.codegen import cpp
from regraft.compiler.ir.folds import component_dtypes
from regraft.compiler.ir.index.index import Size, Var
from regraft.compiler.ir.interpreter import run_kernel
from regraft.compiler.ir.kernel import Assign, Fold, Loop, Update
from regraft.compiler.ir.program import Reduction, Store
from regraft.compiler.ir.value import Const, Load, Number, Result

F32, I64 = torch.float32, torch.int64
TARGETS = list(
    dict.fromkeys([cpp.host_target().name, "avx2" if cpp.host_target().vector_bytes else "scalar", "scalar"])
)
SHAPES = [(1, 1), (3, 0), (17, 16), (3, 67), (1, 130)]
CASES = [
    ("sum", F32), ("sum", I64), ("prod", F32), ("max", F32), ("max", torch.uint8), ("min", I64), ("min", torch.float64),
    ("any", torch.bool), ("all", torch.bool), ("xor", torch.int32), ("argmax", F32), ("argmin", I64), ("welford", F32),
    ("softmax", F32), ("logaddexp", F32), ("logaddexp", torch.float64), ("welford_states", F32),
    ("softmax_states", F32),
]  # fmt: skip


def fold_kernel(reducer, dtype, rows, columns, along, dynamic=False):
    """``for i < rows: fold over j < columns``; x is contiguous along j, or else along i."""
    i, j = Var("i", rows), Var("j", columns)
    at = i.index() * columns + j.index() if along else j.index() * rows + i.index()
    x = flat_buffer("x", rows * columns, dtype)
    values = operands(reducer, Load("x", (at,), dtype), Number(j.index(), I64))
    reduction = Reduction("r", reducer, values)
    outs = [flat_buffer(f"out{k}", rows, d) for k, d in enumerate(component_dtypes(reducer, dtype))]
    stores = [Assign(Store(o.name, (i.index(),), Result("r", k, o.dtype))) for k, o in enumerate(outs)]
    body = (Fold((reduction,), (Loop(j, (Update(reduction),)),)), *stores)
    sizes = [s for s in (rows, columns) if dynamic]
    return kernel("fold", [x], outs, [Loop(i, body, True)], sizes=[s.terms[0][0][0] for s in sizes])


def operands(reducer, x, position):
    """What one element contributes; of states, those over one element."""
    zero, one = (Const(number, x.dtype) for number in (0.0, 1.0))
    more = {"argmax": [position], "argmin": [position], "welford_states": [zero, one], "softmax_states": [one]}
    return (x, *more.get(reducer, ()))


def elements(dtype, size, special=()):
    generator = torch.Generator().manual_seed(size)
    if dtype == torch.bool:
        return torch.rand(size, generator=generator) > 0.3
    if not dtype.is_floating_point:
        return torch.randint(0, 20, (size,), generator=generator).to(dtype)
    x = torch.randn(size, generator=generator, dtype=dtype)
    for k, number in enumerate(special):
        x[k :: 7 + k] = number
    return x


def close(ours, expected, dtype):
    precision = 1e-5 if dtype == F32 else 1e-12
    for name, tensor in expected.items():
        torch.testing.assert_close(
            ours[name], tensor, equal_nan=True, rtol=precision, atol=precision, msg=lambda m, name=name: f"{name}: {m}"
        )


@functools.cache
def compiled(target):
    kernels, inputs = [], []
    for reducer, dtype in CASES:
        for rows, columns in SHAPES if target == TARGETS[0] else SHAPES[2:4]:
            for along in (True, False):
                kernels.append(fold_kernel(reducer, dtype, rows, columns, along))
                inputs.append({"x": elements(dtype, rows * columns)})
    return list(zip(kernels, inputs, run_compiled_all(kernels, inputs, cpp.target(target)), strict=True))


@one_row_in(2)
@pytest.mark.parametrize("target", TARGETS)
def test_reducers_are_the_interpreters(target):
    for made, x, ours in compiled(target):
        dtype = made.params[0].buffer.dtype
        close(ours, run_kernel(made, {"x": x["x"].clone()}), dtype)


@one_row_in(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "special", [(math.nan,), (-math.inf,), (math.inf,), (math.nan, math.inf, -math.inf), (-0.0, 0.0)]
)
def test_special_values_are_the_interpreters(target, special):
    kernels, inputs = [], []
    for reducer, dtype in CASES:
        if dtype == F32:
            for along in (True, False):
                kernels.append(fold_kernel(reducer, dtype, 5, 43, along))
                inputs.append({"x": elements(dtype, 5 * 43, special)})
    for made, x, ours in zip(kernels, inputs, run_compiled_all(kernels, inputs, cpp.target(target)), strict=True):
        close(ours, run_kernel(made, {"x": x["x"].clone()}), F32)


def test_rows_of_minus_infinity():
    for reducer in ("max", "argmax", "softmax", "logaddexp"):
        made = fold_kernel(reducer, F32, 3, 37, True)
        x = {"x": torch.full((111,), -math.inf)}
        (ours,) = run_compiled_all([made], [x])
        close(ours, run_kernel(made, x), F32)


@pytest.mark.parametrize("along", [True, False])
def test_symbolic_sizes(along):
    rows, columns = Size("rows", 0, None).index(), Size("columns", 0, None).index()
    made = fold_kernel("sum", F32, rows, columns, along, dynamic=True)
    for shape in SHAPES:
        sizes = dict(zip(("rows", "columns"), shape, strict=True))
        x = {"x": elements(F32, shape[0] * shape[1])}
        (ours,) = run_compiled_all([made], [x], sizes=sizes)
        close(ours, run_kernel(made, x, sizes), F32)


def whole(size, reducer="sum", dtype=F32):
    j = Var("j", size)
    values = (Load("x", (j.index(),), dtype), Number(j.index(), I64))[: 2 if reducer.startswith("arg") else 1]
    reduction = Reduction("r", reducer, values)
    outs = [flat_buffer(f"out{k}", 1, d) for k, d in enumerate(component_dtypes(reducer, dtype))]
    stores = [Assign(Store(o.name, (0,), Result("r", k, o.dtype))) for k, o in enumerate(outs)]
    return kernel(
        "whole", [flat_buffer("x", size, dtype)], outs, [Fold((reduction,), (Loop(j, (Update(reduction),)),)), *stores]
    )


def test_folds_over_everything_do_not_depend_on_the_number_of_threads():
    size, threads = 300_011, torch.get_num_threads()
    kernels = [whole(size, reducer) for reducer in ("sum", "max", "argmax", "welford", "softmax")]
    x = torch.randn(size)
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(run_compiled_all(kernels, [{"x": x}] * len(kernels)))
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*results, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    total, top, position, spread = (r["out1" if k == 2 else "out0"] for k, r in enumerate(results[0][:4]))
    torch.testing.assert_close(total[0], x.double().sum().float(), rtol=1e-5, atol=1e-3)
    assert top == x.max()
    assert position == x.argmax()
    torch.testing.assert_close(spread[0], x.mean(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("along", [True, False])
def test_long_sums_are_as_accurate_as_eagers(along):
    rows, columns = (3, 100_003) if along else (33, 10_007)
    x = torch.rand(rows * columns) + 1
    (ours,) = run_compiled_all([fold_kernel("sum", F32, rows, columns, along)], [{"x": x}])
    matrix = x.reshape(rows, columns) if along else x.reshape(columns, rows).t()
    exact = matrix.double().sum(1)
    error = ((ours["out0"].double() - exact) / exact).abs().max()
    assert error <= max(2e-6, ((matrix.sum(1).double() - exact) / exact).abs().max())
