"""Long scans in parts: when, how, and that they compute the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.schedules import SMALL_GPU, Builder, assert_same, op
from support.thorough import one_row_in
from support.triton_kernels import compiles, interpreted_agrees

from regraft.compiler.ir.index.index import Size
from regraft.compiler.ir.program import Reduction, Store
from regraft.compiler.ir.reducers import REDUCERS
from regraft.compiler.ir.value import Number, Result
from regraft.compiler.lowering.core import whole
from regraft.compiler.lowering.ops import scans
from regraft.compiler.schedule import CPU, GPU, split_reductions, split_scans

F32, F64, I64 = torch.float32, torch.float64, torch.int64
SCANNED = [
    ("sum", F64), ("sum", I64), ("prod", F64), ("max", F32), ("min", I64), ("argmax", F32), ("argmin", I64),
    ("softmax", F64),
]  # fmt: skip


def scanned(b, reducer, dtype, sizes, length, across=False):
    """All components of a scan; memory is contiguous along it, or `across`."""
    x, low = b.given("x", (length, *sizes) if across else (*sizes, length), dtype=dtype), b.node("y").low
    loops, (var,) = low.loops(sizes), low.loops((length,), "r")
    outer, r = tuple(v.index() for v in loops), var.index()
    at = (r, *outer) if across else (*outer, r)
    values = (x.at(at), Number(-r, I64)) if reducer.startswith("arg") else (x.at(at),)
    fold = Reduction(low.name("fold", "fold"), reducer, values)
    kinds = [I64 if kind == "int64" else dtype for kind in REDUCERS[reducer].components]
    made = [low.buffer(x.sizes, kind) for kind in kinds]
    stores = [Store(m.name, at, Result(fold.name, k, m.dtype)) for k, m in enumerate(made)]
    low.define(loops, stores, (var,), (fold,), True)
    return [whole(m) for m in made]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(split_scans, "_SHORTEST", 8)
    monkeypatch.setattr(split_scans, "_FEWEST", 4)


def split(program, target=SMALL_GPU):
    return split_reductions(program, target)


@one_row_in(3)
@pytest.mark.parametrize(("reducer", "dtype"), SCANNED, ids=[f"{r}-{d}" for r, d in SCANNED])
@pytest.mark.parametrize("across", [False, True], ids=["along", "across"])
@pytest.mark.parametrize(("sizes", "length"), [((), 64), ((), 65), ((3,), 132)])
def test_parts_are_the_scan(reducer, dtype, across, sizes, length):
    b = Builder()
    program = b.program(*scanned(b, reducer, dtype, sizes, length, across))
    assert len(split(program).items) == 3
    assert_same(program, target=SMALL_GPU)


def test_what_is_made_of_results_stays_the_same():
    b = Builder()
    (y,) = scanned(b, "sum", F64, (), 65)
    z = b.map("z", (65,), lambda i: op("mul", y.at(i), y.at(i)), F64)
    assert_same(b.program(y, z), target=SMALL_GPU)


@pytest.mark.parametrize(
    ("sizes", "length", "target"),
    [((64,), 1 << 16, GPU), ((), 1 << 11, GPU), ((), 65537, GPU), ((), 1 << 20, CPU)],
    ids=["many rows", "short", "no parts of equal length", "a CPU"],
)
def test_others_stay(monkeypatch, sizes, length, target):
    monkeypatch.undo()
    b = Builder()
    assert len(split(b.program(*scanned(b, "sum", F64, sizes, length)), target).items) == 1


def test_unknown_lengths_stay():
    b = Builder()
    n = Size("n", 0, None).index()
    assert len(split(b.program(*scanned(b, "sum", F64, (), n))).items) == 1


def test_long_scans_fill_a_gpu():
    b = Builder()
    first, before, scan = split(b.program(*scanned(b, "sum", F64, (4,), 1 << 20)), GPU).items
    assert [v.extent for v in (*first.loops, *first.reduced)] == [128, 4, 1 << 13]
    assert [v.extent for v in (*before.loops, *before.reduced)] == [128, 4, 128]
    assert scan.scan and [v.extent for v in (*scan.loops, *scan.reduced)] == [128, 4, 1 << 13]


@pytest.mark.parametrize("function", [torch.cumsum, torch.logcumsumexp, lambda x, d: x.cummax(d)])
def test_two_kernels_scan_a_long_row(monkeypatch, function):
    monkeypatch.setattr(scans, "_WIDE", frozenset())
    x = torch.randn(2, 200) * 5
    sources = interpreted_agrees(lambda x: function(x, 1), x, target=replace(GPU, programs=64), rtol=1e-4, atol=1e-4)
    assert len(sources) == 2 and all(map(compiles, sources))
