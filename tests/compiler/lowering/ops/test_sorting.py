"""Sorts of short rows: order, ties, NaN and infinities against eager's stable sort, in one kernel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lowering import agree, run, trace
from support.tensors import FLOATS, WHOLE, tensor_and_dim
from support.thorough import examples, one_row_in, takes_turns
from support.triton_kernels import compiles, interpreted_agrees, kernel_source

from regraft.compiler.lowering import lower
from regraft.compiler.lowering.ops import sorting
from regraft.compiler.schedule import GPU, schedule

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """As on devices whose library takes longer, too."""
    monkeypatch.setattr(sorting, "_LIBRARY", frozenset())


def in_order(x, dim=-1, descending=False):
    return torch.sort(x, dim=dim, descending=descending, stable=True)


@settings(max_examples=examples(10, 25), deadline=None)
@given(given_=tensor_and_dim((*FLOATS, *WHOLE)), descending=st.booleans(), few=st.booleans())
def test_values_and_places(given_, descending, few):
    x, dim = given_
    if x.dim() == 0 or x.shape[dim] < 2:
        return
    x = x.round() if few and x.dtype.is_floating_point else x
    agree(lambda x: tuple(in_order(x, dim, descending)), x, exact=True)


@one_row_in(2)
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize(
    "row",
    [
        [1.0, 2.0, 2.0, 2.0, 1.0, 2.0],
        [NAN, INF, NAN, -INF, 0.0, -0.0],
        [-INF, -INF, -INF, NAN, -INF, 1.0],
        [INF, NAN, INF, INF, NAN, INF],
        [-0.0, 0.0, -0.0, 0.0, -1.0, 0.0],
        [NAN] * 6,
    ],
)
def test_ties_and_numbers_that_are_none(row, descending):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.tensor([row, row[::-1]], dtype=dtype)
        agree(lambda x: tuple(in_order(x, -1, descending)), x, exact=True)
        agree(lambda x: tuple(in_order(x, 0, descending)), x.t().contiguous(), exact=True)
        module, expected = trace(lambda x: in_order(x, -1, descending)[0], x), in_order(x, -1, descending)[0]
        made = run(module, lower(module, strict=True), [x])
        assert torch.equal(made.nan_to_num(1).signbit(), expected.nan_to_num(1).signbit())


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int16, torch.bool])
@pytest.mark.parametrize("descending", [True, False])
def test_the_ends_of_whole_numbers(dtype, descending):
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    x = torch.tensor([[low, high, low, high, low]], dtype=dtype)
    agree(lambda x: tuple(in_order(x, -1, descending)), x, exact=True)


@takes_turns("sizes")
@pytest.mark.parametrize("function", [torch.sort, torch.argsort, torch.msort], ids=lambda f: f.__name__)
@pytest.mark.parametrize("sizes", [(3, 64), (2, 100), (5, 257)])
def test_rows_in_one_kernel(function, sizes):
    x = torch.randn(sizes)
    (source,) = interpreted_agrees(function, x, exact=True)
    assert len(source.launches) == 1 and compiles(source)


def test_columns_in_one_kernel():
    (source,) = interpreted_agrees(lambda x: in_order(x.abs(), 0), torch.randn(70, 9).round(), exact=True)
    assert compiles(source)


def kernels(function, *inputs):
    steps = schedule(lower(trace(function, *inputs), strict=True).program, target=GPU).steps
    return [kernel_source(step) for step in steps]


def test_pairs_are_compared_in_tiles_whose_elements_are_loaded_once():
    (source,) = kernels(torch.argsort, torch.randn(128, 256))
    (launch,) = source.launches
    assert (launch.programs, launch.warps) == (512, 4)
    assert source.text.count("tl.load") == 2 and "[64, 32]" in source.text
    assert "tl.arange(0, 32)[None, :]\n" in source.text


@pytest.mark.parametrize(("rows", "tile", "warps"), [(64, 32, 2), (256, 64, 4), (1024, 64, 4)])
def test_lanes_of_pairs_have_a_column_each_and_go_through_rows(rows, tile, warps):
    """What a row needs, lanes have once; what a column needs, they would need for each pair."""
    (source,) = kernels(torch.argsort, torch.randn(rows, 256))
    assert f"tl.full([{tile}, 32], 0" in source.text and source.launches[0].warps == warps
    assert compiles(source)


EXTREMES = {
    torch.float32: [
        0.0,
        -0.0,
        float("inf"),
        float("-inf"),
        float("nan"),
        -float("nan"),
        1e-45,
        -1e-45,
        3.4e38,
        -3.4e38,
    ],
    torch.float16: [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 6e-8, -6e-8, 65504.0, -65504.0],
    torch.bfloat16: [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 2e-38, -2e-38, 3.3e38, -3.3e38],
    torch.float64: [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 5e-324, -1.0],
    torch.int64: [2**63 - 1, -(2**63), 0, -1],
    torch.int32: [2**31 - 1, -(2**31), 0, -1],
    torch.int16: [2**15 - 1, -(2**15), 0, -1],
    torch.int8: [127, -128, 0, -1],
    torch.uint8: [255, 0, 128],
    torch.bool: [True, False],
}


@takes_turns("descending")
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", EXTREMES, ids=str)
def test_least_and_greatest_of_each_dtype_come_first_and_last(dtype, descending):
    """Elements and their positions are compared as one integer, where one has room for both."""
    torch.manual_seed(0)
    few = torch.tensor(EXTREMES[dtype], dtype=dtype)
    x = few[torch.randint(len(few), (3, 70))]
    interpreted_agrees(lambda x: tuple(in_order(x, -1, descending)), x, exact=True)


def test_ranks_compare_once():
    x = torch.randn(5, 20)
    interpreted_agrees(lambda x: x.argsort(-1).argsort(-1), x, exact=True)
    agree(lambda x: x.argsort(-1).argsort(-1, descending=True), x, exact=True)
    agree(lambda x: torch.argsort(x.argsort(1), dim=0, stable=True), x, exact=True)
    found = kernels(lambda x: x.argsort(-1).argsort(-1), torch.randn(128, 256))
    assert sum("join_sum" in source.text for source in found) == 1 and len(found) <= 2


def test_rows_of_one_are_in_order():
    x = torch.randn(3, 1, 4)
    assert not lower(trace(lambda x: torch.sort(x, 1), x)).kept
    agree(lambda x: tuple(in_order(x, 1)), x, exact=True)
    agree(lambda x: torch.gather(x, 1, x.argsort(1)), x, exact=True)


@pytest.mark.parametrize("sizes", [(3, 1025), (512, 512), (), (3, 0)], ids=["long", "many", "number", "none"])
def test_what_a_library_does_faster_stays_a_call(sizes):
    assert lower(trace(torch.sort, torch.randn(sizes))).kept


def test_unknown_sizes_stay_a_call():
    assert lower(trace(torch.sort, torch.randn(3, 5), dynamic=True)).kept


def test_cpus_have_their_library(monkeypatch):
    monkeypatch.undo()
    assert [kept.code for kept in lower(trace(torch.sort, torch.randn(3, 8))).kept] == ["algorithm"]
