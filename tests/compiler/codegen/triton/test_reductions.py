"""Every reducer along and across contiguous memory, at once and in blocks, against the interpreter of the IR."""

import math

import pytest

pytest.importorskip("triton")

import torch
from support.thorough import one_row_in, takes_turns
from support.triton_kernels import compiles, kernel_source, run_interpreted

from regraft.compiler.ir.index.index import Size
from regraft.compiler.ir.interpreter import run_kernel
from regraft.compiler.schedule.launches import column_blocks, row_blocks

from ..cpp.test_reductions import CASES, SHAPES, close, elements, fold_kernel, whole

F32 = torch.float32
BOTH = pytest.mark.parametrize("along", [True, False], ids=["along", "across"])
ONE = pytest.mark.parametrize(("reducer", "dtype"), CASES, ids=[f"{r}-{d}" for r, d in CASES])


@pytest.fixture(params=["at once", "in blocks"])
def blocks(request, monkeypatch):
    """Rows that registers hold, and rows that come in blocks of 16."""
    if request.param == "in blocks":
        for name in ("_PERSISTENT", "SCANNED", "_LOADED", "_MOMENT_ROW"):
            monkeypatch.setattr(row_blocks, name, 8)
        for name in ("_LOOPED", "_LOOPED_MOMENTS", "_LOOPED_SCAN", "_LOOPED_LOADS"):
            monkeypatch.setattr(row_blocks, name, 16)
        monkeypatch.setattr(column_blocks, "_LONELY", 8)


@one_row_in(2)
@takes_turns("blocks")
@BOTH
@ONE
def test_reducers_are_the_interpreters(blocks, reducer, dtype, along):
    for rows, columns in SHAPES:
        made = fold_kernel(reducer, dtype, rows, columns, along)
        x = {"x": elements(dtype, rows * columns)}
        close(run_interpreted(made, {"x": x["x"].clone()}), run_kernel(made, x), dtype)


@one_row_in(2)
@takes_turns("blocks")
@BOTH
@pytest.mark.parametrize(
    "special", [(math.nan,), (-math.inf,), (math.inf,), (math.nan, math.inf, -math.inf), (-0.0, 0.0)]
)
def test_special_values_are_the_interpreters(blocks, special, along):
    for reducer, dtype in CASES:
        if dtype == F32:
            made = fold_kernel(reducer, dtype, 5, 43, along)
            x = elements(dtype, 5 * 43, special)
            close(run_interpreted(made, {"x": x.clone()}), run_kernel(made, {"x": x}), F32)


@one_row_in(2)
@takes_turns("blocks")
@BOTH
@ONE
def test_reducers_compile(blocks, reducer, dtype, along):
    assert compiles(kernel_source(fold_kernel(reducer, dtype, 33, 67, along)))


def test_rows_of_minus_infinity(blocks):
    for reducer in ("max", "argmax", "softmax", "logaddexp"):
        made = fold_kernel(reducer, F32, 3, 37, True)
        x = torch.full((111,), -math.inf)
        close(run_interpreted(made, {"x": x}), run_kernel(made, {"x": x}), F32)


@BOTH
def test_symbolic_sizes(along):
    rows, columns = Size("rows", 0, None).index(), Size("columns", 0, None).index()
    made = fold_kernel("sum", F32, rows, columns, along, dynamic=True)
    for shape in SHAPES:
        sizes = dict(zip(("rows", "columns"), shape, strict=True))
        x = {"x": elements(F32, shape[0] * shape[1])}
        close(run_interpreted(made, x, sizes), run_kernel(made, x, sizes), F32)
    assert compiles(kernel_source(made))


def test_folds_over_everything():
    for reducer in ("sum", "max", "argmax", "welford", "softmax"):
        made, x = whole(3001, reducer), {"x": elements(F32, 3001)}
        close(run_interpreted(made, x), run_kernel(made, x), F32)


@BOTH
@pytest.mark.parametrize("size", [77, 8192, 9000, None], ids=["part", "full", "blocks", "symbolic"])
def test_moments_of_elements_know_how_many_there_are(size, along):
    """A sum of counts depends on no load, and Triton 3.6 has every thread make such a sum from all lanes."""
    rows, columns = (19, size) if size else (Size("rows", 0, None).index(), Size("columns", 0, None).index())
    made = fold_kernel("welford", F32, rows, columns, along, dynamic=size is None)
    source = kernel_source(made)
    assert "= fold_counted_welford(" in source.text
    assert " fold_welford(" not in source.text
    if size is None:
        for columns in (0, 1, 77):
            x, sizes = {"x": elements(F32, 3 * columns)}, {"rows": 3, "columns": columns}
            close(run_interpreted(made, x, sizes), run_kernel(made, x, sizes), F32)


def test_moments_of_states_count():
    assert "= fold_welford(" in kernel_source(fold_kernel("welford_states", F32, 19, 77, False)).text
