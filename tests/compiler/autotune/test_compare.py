"""The loose comparison of results: what passes as rounding and what does not."""

from __future__ import annotations

import pytest
import torch

from regraft.compiler.autotune import compare
from regraft.compiler.autotune.compare import HALF_TOLERANCE, TOLERANCE, ResultPart, disagreement, relative_error

REFERENCE = torch.linspace(-2, 2, 101)
INF, NAN = float("inf"), float("nan")


def test_equal_results_agree():
    assert disagreement([REFERENCE, 3, None], [REFERENCE.clone(), 3, None]) == ""


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float32, TOLERANCE),
        (torch.float64, TOLERANCE),
        (torch.complex64, TOLERANCE),
        (torch.bfloat16, HALF_TOLERANCE),
    ],
)
def test_errors_within_tolerance_pass_and_beyond_do_not(dtype, tolerance):
    expected = REFERENCE.to(dtype)
    assert disagreement([(REFERENCE + tolerance).to(dtype)], [expected]) == ""
    assert "relative error" in disagreement([(REFERENCE + 4 * tolerance).to(dtype)], [expected])


def test_where_one_result_has_16_bits_the_others_come_from_such_numbers():
    near, far = REFERENCE + 2 * TOLERANCE * 2, REFERENCE + 0.5
    half = REFERENCE.bfloat16()
    assert "relative error" in disagreement([near], [REFERENCE])
    assert disagreement([near, half], [REFERENCE, half]) == ""
    assert "relative error" in disagreement([far, half], [REFERENCE, half])


def test_one_wrong_element_is_enough():
    wrong = REFERENCE.clone()
    wrong[50] += 0.5
    assert "relative error" in disagreement([wrong], [REFERENCE])


def test_gradients_that_are_only_rounding_agree():
    noise, other = torch.randn(10) * 1e-6, torch.randn(10) * 1e-6
    assert disagreement([REFERENCE, noise], [REFERENCE, other]) == ""
    assert disagreement([noise], [other]) != ""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (REFERENCE[:-1], "shape"),
        (REFERENCE.double(), "dtype"),
        (REFERENCE.to("meta"), "device"),
        (3, "instead of a tensor"),
        (None, "None instead of a tensor"),
    ],
)
def test_metadata_is_compared(found, said):
    assert said in disagreement([found], [REFERENCE])
    assert said in disagreement([found], [REFERENCE], values=False)


def test_number_of_results_is_compared():
    assert disagreement([REFERENCE], [REFERENCE, REFERENCE]) == "1 result instead of 2"


def test_values_may_be_left_out():
    assert disagreement([REFERENCE + 1], [REFERENCE], values=False) == ""


@pytest.mark.parametrize(
    ("found", "expected", "said"),
    [
        ([1.0, NAN], [1.0, NAN], ""),
        ([1.0, 0.0], [1.0, NAN], "NaN"),
        ([NAN, 1.0], [1.0, NAN], "NaN"),
        ([1.0, -INF], [1.0, -INF], ""),
        ([1.0, INF], [1.0, -INF], "infinities"),
        ([1.0, 5.0], [1.0, INF], "infinities"),
        ([1.0, INF], [1.0, 5.0], "infinities"),
        ([NAN, NAN], [NAN, NAN], ""),
        ([0.0, 0.0], [0.0, 0.0], ""),
        ([0.0, 0.1], [0.0, 0.0], "relative error"),
        ([], [], ""),
    ],
)
def test_non_finite_and_zero_values(found, expected, said):
    why = disagreement([torch.tensor(found)], [torch.tensor(expected)])
    assert said in why and bool(said) == bool(why)


def test_integers_must_be_equal():
    assert disagreement([torch.tensor([1, 2])], [torch.tensor([1, 2])]) == ""
    assert "integer" in disagreement([torch.tensor([1, 3])], [torch.tensor([1, 2])])
    assert "integer" in disagreement([torch.tensor([True])], [torch.tensor([False])])


@pytest.mark.parametrize("shape", [(3, 5, 7), (40,), (1, 50), (6, 2), ()], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_results_are_compared_in_small_views(shape, transposed, monkeypatch):
    monkeypatch.setattr(compare, "_PIECE", 8)
    x = torch.randn(shape).permute([*reversed(range(len(shape)))]) if transposed else torch.randn(shape)
    pieces = list(compare._pieces(x))
    assert max(piece.numel() for piece in pieces) <= 8 and sum(piece.numel() for piece in pieces) == x.numel()
    assert all(piece.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for piece in pieces)
    assert disagreement([x.clone()], [x]) == ""
    wrong = x.clone()
    wrong[tuple(n - 1 for n in x.shape)] += 1
    assert disagreement([wrong], [x])


@pytest.mark.parametrize("shape", [(4096, 257), (16, 64, 1031), (1 << 20,), (3, 1 << 18)])
def test_large_results_are_compared_by_rows(shape, monkeypatch):
    """Each kind of tile is met: the first, the last, which is partial, and all places of one."""
    monkeypatch.setattr(compare, "_LARGE", 1 << 18)
    x = torch.randn(shape)
    wanted = ResultPart.of(x)
    assert isinstance(wanted, ResultPart) and wanted.rows.nbytes <= 3 << 18
    assert (
        disagreement([ResultPart.of(x.clone())], [wanted]) == "" and relative_error([ResultPart.of(x)], [wanted]) == 0
    )
    last = x.clone()
    last.select(max(range(x.dim()), key=x.shape.__getitem__), -1).add_(50)
    assert "relative error" in disagreement([ResultPart.of(last)], [wanted])
    assert relative_error([ResultPart.of(x * 1.5)], [wanted]) == pytest.approx(0.5)
    assert disagreement([ResultPart.of(torch.cat([x, x[:1]]))], [wanted]).startswith("shape")
    assert disagreement([x[:1]], [wanted])


def test_rows_of_samples_lie_at_all_places_of_a_tile(monkeypatch):
    monkeypatch.setattr(compare, "_LARGE", 1 << 18)
    x = torch.arange(8192.0)[:, None].expand(-1, 64)
    assert set((ResultPart.of(x).rows[:, 0] % 64).tolist()) == set(range(64))
