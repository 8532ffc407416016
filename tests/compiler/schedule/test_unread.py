"""What nobody reads of a definition is neither stored nor folded; what is read stays as it is."""

from __future__ import annotations

import pytest
import torch
from support.kernels import compiled_agrees, one_unit
from support.lowering import trace

from regraft.compiler.lowering import lower
from regraft.compiler.schedule import schedule

ROWS = torch.tensor([[1.0, torch.nan, 3.0], [-torch.inf, -0.0, 0.0], [2.0, 2.0, 1.0], [torch.inf, 5.0, -1.0]])
INTEGERS = torch.randint(-9, 9, (4, 3))
INDICES = torch.tensor([[3, 1, 2]])


def reducers(function, *inputs):
    items = schedule(lower(trace(function, *inputs), strict=True).program).program.items
    return [r.reducer for item in items for r in getattr(item, "reductions", ())]


def test_places_that_nobody_reads_are_not_folded():
    assert reducers(lambda x: x.max(1)[0], INTEGERS) == ["max"]
    assert reducers(lambda x: x.min(0, keepdim=True)[0] * 2, INTEGERS) == ["min"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x - x.max(1, keepdim=True)[0]).exp(),
        lambda x: (x.half() - x.half().max(1, keepdim=True)[0]).float().exp(),
        lambda x: x.max(1)[0] > 0,
        lambda x: torch.where(x > 0, x.min(), 2.0 - x.max(1, keepdim=True)[0]).cos(),
        lambda x: x.abs().max(1)[0] / 127 + 1e-6,
        lambda x: (x.half().abs() + 1e-3).max(1)[0],
        lambda x: (x * x).sqrt().max(1)[0].reciprocal(),
    ],
)
def test_zeros_whose_sign_nobody_sees_need_no_place(function):
    assert "argmax" not in reducers(function, ROWS)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.max(1)[0],
        lambda x: 1 / x.max(1)[0],
        lambda x: x.neg().max(1)[0] * 2,
        lambda x: x.max(1)[0].signbit() | (x.max(1)[0] > 0),
        lambda x: torch.atan2(x.max(1, keepdim=True)[0], x).exp(),
        lambda x: (1 / (x.max(1, keepdim=True)[0] + x)).exp(),
        lambda x: x.relu().max(1)[0],
        lambda x: (x.abs() * -1).max(1)[0],
        lambda x: x.max(1)[0].to(torch.float64),
    ],
)
def test_zeros_whose_sign_may_show_need_their_place(function):
    assert "argmax" in reducers(function, ROWS)


@one_unit()
def test_of_zeros_the_first_is_given():
    zeros = torch.where(torch.rand(7, 50) > 0.5, 0.0, -0.0)
    for x in (zeros, zeros.T, zeros.double(), zeros.half()):
        for dim in (0, 1):
            compiled_agrees(lambda x, dim=dim: (1 / x.max(dim)[0], 1 / x.min(dim)[0]), x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.max(1),
        lambda x: x.argmax(1),
        lambda x: x.max(1)[1] + 1,
        lambda x: torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.0),
        lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    ],
)
def test_places_that_are_read_stay(function):
    assert "argmax" in reducers(function, ROWS.nan_to_num())


def test_indices_that_must_be_in_range_are_still_looked_at():
    """The place alone depends on the second index, and is not read."""

    def function(x, i, j):
        picked = torch.zeros(2, 3).index_select(0, j)
        return x.index_select(1, i[0]).max(1)[0] + 0 * picked.sum()

    torch.compiler.reset()
    with pytest.raises(IndexError):
        torch.compile(function, backend="regraft")(ROWS, INDICES - 1, torch.tensor([7]))


@one_unit()
def test_values_are_those_of_eager():
    for x in (ROWS, ROWS.double(), ROWS.bfloat16(), torch.randint(-9, 9, (4, 5)), torch.rand(4, 5) > 0.5):
        for dim in (0, 1):
            compiled_agrees(lambda x, dim=dim: (x.max(dim)[0], x.min(dim)[0]), x)
    compiled_agrees(lambda x: (x.max(1)[0], x.argmax(1), x.min(1)[1]), ROWS)
