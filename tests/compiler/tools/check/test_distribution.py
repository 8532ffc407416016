"""Rules that draw other numbers than eager: the same distribution passes, any other does not."""

from __future__ import annotations

import pytest
import torch
from support.thorough import one_row_in
from torch.nn import functional as F

from regraft import Numerics, Sample, T, register_pattern
from regraft.compiler.tools.check import check
from regraft.compiler.tools.check.case import Case
from regraft.compiler.tools.check.compare import compare
from regraft.compiler.tools.check.drawn import DrawnExample
from regraft.compiler.tools.check.operands import Look

SAMPLE = Sample(x=T("S N"), sizes={"S": 8, "N": 8})


def dropped(x):
    return F.dropout(x * 1.5, 0.2, True)


def declare(name, replacement, random="distribution"):
    rule = register_pattern(name, replacement=replacement, samples=[SAMPLE], numerics=Numerics(random=random))
    return rule(dropped)


def by_hand(x):
    """Another random stream: uniform numbers compared."""
    return masked(x, 0.8, 1.25)


def masked(x, keep, scale):
    return torch.where(torch.rand_like(x) < keep, x * (1.5 * scale), 0.0)


class OtherMaskBackward(torch.autograd.Function):
    """The gradient goes through a mask of its own."""

    @staticmethod
    def forward(ctx, x):
        return by_hand(x)

    @staticmethod
    def backward(ctx, gradient):
        return by_hand(gradient)


def problem(rule, program) -> str:
    case = Case.of(
        rule, SAMPLE, DrawnExample(DrawnExample.plain(SAMPLE).sizes, looks={"x": Look(gradient=True)}, seed=7)
    )
    return str(compare(case, program) or "")


def test_another_stream_of_the_same_distribution_passes():
    assert check(declare("drop_alike", by_hand), examples=2).ok


def test_another_stream_fails_where_eagers_own_is_promised():
    result = check(declare("drop_stream", by_hand, random="stream"), examples=2)
    assert not result.ok


@one_row_in(2)
@pytest.mark.parametrize(
    ("name", "program", "found"),
    [
        ("keep rate", lambda x: masked(x, 0.77, 1 / 0.77), "is zero in"),
        ("no scale", lambda x: masked(x, 0.8, 1.0), "the mean of"),
        ("other mask", OtherMaskBackward.apply, "times gradient"),
        ("none", lambda x: x * 1.5, "is zero in"),
    ],
)
def test_another_distribution_fails(name, program, found):
    rule = declare("drop_reference", by_hand)
    assert problem(rule, by_hand) == ""
    assert found in problem(rule, program)
