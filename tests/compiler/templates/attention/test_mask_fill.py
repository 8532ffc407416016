"""Masks of the lowest number as masks of minus infinity: where that is the same, and where it is not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.value import Const, Load, Number, Op, Value
from regraft.compiler.templates.attention.description import SCORE
from regraft.compiler.templates.attention.mask_fill import surely_hidden

F32 = torch.float32
ROW, KEY, HEAD = Var("i", 8), Var("j", 8), Var("g", 2)
QUERY, AT_KEY = (Number(var.index(), torch.int64) for var in (ROW, KEY))
KEEP = Load("keep", (KEY.index(),), torch.bool)
BIAS = Load("bias", (KEY.index(),), F32)
LOW = torch.finfo(torch.float32).min


def number(x: float) -> Value:
    return Const(x, F32)


def op(name: str, *args: Value, dtype: torch.dtype = F32) -> Value:
    return Op(name, args, dtype)


def where(condition: Value, a: Any, b: Any) -> Value:
    a, b = (x if isinstance(x, Value) else number(x) for x in (a, b))
    return op("where", condition, a, b)


CAUSAL = op("le", AT_KEY, QUERY, dtype=torch.bool)
SCALED = op("mul", SCORE, number(0.125))
SLOPES = op("pow", number(0.5), op("cast", Number(HEAD.index() + 1, torch.int64)))
ALIBI = op("mul", op("cast", AT_KEY), SLOPES)
CAPPED = op("mul", op("tanh", SCALED), number(50.0))


def found(score: Value) -> Value:
    return surely_hidden(score, ROW, KEY)


@pytest.mark.parametrize("kept", [SCORE, SCALED, CAPPED, op("add", SCALED, ALIBI)])
def test_causal_masks(kept: Value) -> None:
    expected = where(CAUSAL, kept, -math.inf)
    assert found(op("add", kept, where(CAUSAL, 0.0, LOW))) is expected
    assert found(op("add", where(CAUSAL, 0.0, float(torch.finfo(torch.bfloat16).min)), kept)) is expected
    assert found(where(CAUSAL, kept, LOW)) is expected


def test_the_mask_may_be_within_a_sum() -> None:
    score = op("add", SCALED, op("add", ALIBI, where(CAUSAL, 0.0, LOW)))
    assert found(score) is where(CAUSAL, op("add", SCALED, ALIBI), -math.inf)


def test_several_masks() -> None:
    window = op("gt", AT_KEY, op("sub", QUERY, Const(3, torch.int64), dtype=torch.int64), dtype=torch.bool)
    both = found(op("add", where(CAUSAL, SCALED, LOW), where(window, 0.0, LOW)))
    assert both is where(op("logical_and", CAUSAL, window, dtype=torch.bool), SCALED, -math.inf)


def test_hidden_where_the_condition_holds() -> None:
    later = op("gt", AT_KEY, QUERY, dtype=torch.bool)
    assert found(where(later, LOW, SCALED)) is where(op("logical_not", later, dtype=torch.bool), SCALED, -math.inf)


@pytest.mark.parametrize(
    "score",
    [
        op("add", SCALED, where(CAUSAL, 0.0, -65504.0)),  # float16's lowest: scores may come near it
        op("add", SCALED, where(CAUSAL, 0.0, -1e9)),
        op("add", SCALED, where(KEEP, 0.0, LOW)),
        op("add", SCALED, where(op("logical_and", CAUSAL, KEEP, dtype=torch.bool), 0.0, LOW)),
        op("add", op("add", SCALED, BIAS), where(CAUSAL, 0.0, LOW)),  # which may be the lowest number, too
        op("add", op("add", SCALED, where(KEEP, 0.0, LOW)), where(CAUSAL, 0.0, LOW)),
        op("add", SCALED, where(op("lt", AT_KEY, QUERY, dtype=torch.bool), 0.0, LOW)),  # query 0 keeps no key
        op("add", op("exp", SCORE), where(CAUSAL, 0.0, LOW)),
        op("add", op("mul", SCORE, number(1e20)), where(CAUSAL, 0.0, LOW)),
        op("add", op("mul", SCORE, number(math.nan)), where(CAUSAL, 0.0, LOW)),
        op("add", SCALED, op("div", op("cast", AT_KEY), op("cast", QUERY))),
        op("add", SCALED, where(CAUSAL, 0.0, math.inf)),
        SCALED,
    ],
)
def test_what_may_differ_stays(score: Value) -> None:
    assert found(score) is score


def test_rows_that_keep_keys_from_the_end_only() -> None:
    row, key = Var("i", 4), Var("j", 8)
    i, j = (Number(var.index(), torch.int64) for var in (row, key))
    last = op("le", j, op("add", i, Const(4, torch.int64), dtype=torch.int64), dtype=torch.bool)
    late = op("ge", j, op("add", i, Const(4, torch.int64), dtype=torch.int64), dtype=torch.bool)
    for kept in (last, late):
        assert surely_hidden(where(kept, SCALED, LOW), row, key) is where(kept, SCALED, -math.inf)
