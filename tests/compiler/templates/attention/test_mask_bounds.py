"""What score functions say about hidden keys."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.value import Const, Load, Number, Op, Value
from regraft.compiler.templates.attention.description import SCORE
from regraft.compiler.templates.attention.mask_bounds import first_limit, horizon, inside, last_limit

ROW, KEY, HEAD = Var("i", 100), Var("j", 200), Var("g", 4)
LOWEST = Const(-math.inf, torch.float32)
MASK = Load("mask", (KEY.index(),), torch.bool)


def number(index: Any) -> Value:
    return Number(index, torch.int64)


def compare(name: str, a: Any, b: Any) -> Value:
    return Op(name, (number(a), number(b)), torch.bool)


def kept(condition: Value, score: Value = SCORE) -> Value:
    return Op("where", (condition, score, LOWEST), torch.float32)


def dropped(condition: Value, score: Value = SCORE) -> Value:
    return Op("where", (condition, LOWEST, score), torch.float32)


i, j, g = ROW.index(), KEY.index(), HEAD.index()
CAUSAL = compare("le", j, i)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (kept(CAUSAL), i + 1),
        (kept(compare("lt", j, i)), i),
        (kept(compare("ge", i + 3, j)), i + 4),
        (kept(compare("gt", 2 * i, j)), 2 * i),
        (kept(compare("le", j - i, 5)), i + 6),
        (kept(compare("ge", i - j, g)), i - g + 1),
        (kept(compare("lt", j, 7)), 7),
        (dropped(compare("gt", j, i)), i + 1),
        (dropped(Op("logical_not", (CAUSAL,), torch.bool)), i + 1),
        (kept(Op("logical_and", (MASK, CAUSAL), torch.bool)), i + 1),
        (kept(MASK, kept(CAUSAL)), i + 1),
        (dropped(MASK, dropped(compare("ge", j, i))), i),
    ],
)
def test_hidden_keys(score: Value, expected: Any) -> None:
    assert horizon(score, KEY, ROW) == expected


LOCAL = Op("logical_and", (CAUSAL, compare("gt", j, i - 8)), torch.bool)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (kept(compare("ge", j, i - 7)), i - 7),
        (kept(compare("lt", i, j)), i + 1),
        (kept(LOCAL), i - 7),
        (dropped(Op("logical_or", (compare("gt", j, i), compare("lt", j, i - 7)), torch.bool)), i - 7),
        (kept(CAUSAL), None),
        (kept(compare("ge", j, -i)), None),
    ],
)
def test_keys_hidden_at_the_beginning(score: Value, expected: Any) -> None:
    found = first_limit(score, KEY, ROW)
    assert (found.index if found else None) == expected


def test_scores_of_keys_that_a_limit_sees() -> None:
    for score in (kept(LOCAL), dropped(Op("logical_not", (LOCAL,), torch.bool)), dropped(compare("gt", j, i))):
        limit = last_limit(score, KEY, ROW)
        assert limit is not None
        assert limit.index == i + 1
        assert horizon(score, KEY, ROW) == i + 1
        assert last_limit(inside(score, limit), KEY, ROW) is None


@pytest.mark.parametrize(
    "score",
    [
        SCORE,
        kept(MASK),
        kept(compare("ge", j, i)),  # hides the past
        dropped(CAUSAL),
        kept(compare("le", j, -i)),  # shrinks with the rows
        kept(compare("le", 2 * j, i)),
        kept(compare("le", j // 2, i)),
        kept(compare("le", j, i % 8)),
        kept(Op("logical_or", (MASK, CAUSAL), torch.bool)),
        Op("where", (CAUSAL, SCORE, Const(-1e30, torch.float32)), torch.float32),
        Op("add", (SCORE, kept(CAUSAL, Const(0.0, torch.float32))), torch.float32),
    ],
)
def test_keys_that_count_or_may_count(score: Value) -> None:
    assert horizon(score, KEY, ROW) is None


def test_differences_that_may_wrap_are_not_trusted() -> None:
    def difference(dtype: torch.dtype) -> Value:
        made = Op("sub", (Number(j, dtype), Number(i, dtype)), dtype)
        return kept(Op("le", (made, Const(0, dtype)), torch.bool))

    assert horizon(difference(torch.int64), KEY, ROW) == i + 1
    assert horizon(difference(torch.int8), KEY, ROW) is None
