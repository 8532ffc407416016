"""What is known, and what must not be: numbers as dtypes hold them, sizes that vary, values that are given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.facts import agree, captured, fact, facts
from support.rewriting import compiled
from support.thorough import one_row_in

from regraft.rewrites.facts import Conditional, Positions, Table, Uniform
from regraft.rewrites.facts.evaluate import MAX_BYTES

Tensor = torch.Tensor
X = torch.randn(3, 5)
INT64 = torch.iinfo(torch.int64)

UNIFORM: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
    "uint8 wraps": (lambda x: torch.full([3], 300).to(torch.uint8), 44),
    "int64 wraps": (lambda x: torch.full([3], INT64.max) + 1, INT64.min),
    "int8 wraps": (lambda x: torch.full([3], 100, dtype=torch.int8) * 2, -56),
    "float16 overflows": (lambda x: torch.full([3], 1e30).to(torch.float16), math.inf),
    "float32 rounds": (lambda x: torch.full([3], 0.1) + 0.2, torch.tensor(0.1).add(0.2).item()),
    "bfloat16 rounds": (lambda x: torch.full([3], 1.0, dtype=torch.bfloat16) + 1e-3, 1.0),
    "lowest in half is -inf": (lambda x: torch.full([3], torch.finfo(torch.float32).min).half(), -math.inf),
    "bool plus bool": (lambda x: torch.ones(3, dtype=torch.bool) + torch.ones(3, dtype=torch.bool), True),
    "bool times int": (lambda x: torch.ones(3, dtype=torch.bool) * 3, 3),
    "bool to float": (lambda x: torch.ones(3, dtype=torch.bool).float(), 1.0),
    "half to bool": (lambda x: torch.full([3], 0.5).to(torch.bool), True),
    "-0.0 keeps its sign": (lambda x: torch.full([3], -0.0) * 1, -0.0),
    "0.0 added to -0.0": (lambda x: torch.full([3], -0.0) + 0.0, 0.0),
    "inf - inf": (lambda x: torch.full([3], math.inf) - math.inf, math.nan),
    "nan == nan": (lambda x: torch.full([3], math.nan) == math.nan, False),
    "0-d": (lambda x: torch.ones([]) * 2, 2.0),
    "empty": (lambda x: torch.ones(0, 3) * 2, 2.0),
    "0-d promotes less": (lambda x: torch.ones(3, dtype=torch.float16) + torch.full([], 1e-3), None),
    "and False": (lambda x: (x > 0) & torch.zeros(5, dtype=torch.bool), False),
    "or True": (lambda x: (x > 0).logical_or(torch.ones(5, dtype=torch.bool)), True),
    "where one or the same": (lambda x: torch.where(x > 0, 2.0, torch.full([], 2.0)), 2.0),
    "where True": (lambda x: torch.where(torch.ones(5, dtype=torch.bool), 1.0, x), 1.0),
    "filled": (lambda x: x.clone().fill_(3.0), 3.0),
    "sizes": (lambda x: torch.arange(x.shape[1]) < x.shape[1], True),
    "sizes of two": (lambda x: torch.arange(x.shape[1]) < x.shape[1] + x.shape[0], True),
    "all": (lambda x: (torch.arange(x.shape[1]) >= 0).all(), True),
    "diff": (lambda x: torch.arange(x.shape[1]).diff(), 1),
    "cat": (lambda x: torch.cat([x.new_ones(2), x.new_ones(3)]), 1.0),
}


@one_row_in(2)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", UNIFORM)
def test_one_number(name: str, dynamic: bool) -> None:
    function, number = UNIFORM[name]
    found = fact(function, X, dynamic=dynamic)
    assert isinstance(found, Uniform) and found.exact
    number = function(X).flatten()[0].item() if number is None else number
    assert str(found.number) == str(number)
    module = captured(function, X, dynamic=dynamic)
    agree(module, facts(module), [X])


UNKNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "an input": lambda x: x,
    "an input times zero": lambda x: x * 0,  # NaN and inf stay
    "an input minus itself": lambda x: x - x,
    "nan as integer": lambda x: torch.full([3], math.nan).long() + x.long().sum() * 0,
    "random": lambda x: torch.rand(3).floor(),
    "uninitialised": lambda x: torch.empty(3) * 0,
    "complex": lambda x: torch.ones(3, dtype=torch.complex64) * 1,
    "written later": lambda x: torch.zeros(5).add_(x[0]),
    "written in part": lambda x: torch.zeros(5).index_put_((torch.tensor([1]),), x[0, 0]),
    "read outside": lambda x: torch.ones(4)[torch.arange(x.shape[1])] if x.shape[0] == 9 else x,
    "dropout": lambda x: torch.dropout(torch.ones(3), 0.5, True),
}


@one_row_in(2)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", UNKNOWN)
def test_not_known(name: str, dynamic: bool) -> None:
    assert not isinstance(fact(UNKNOWN[name], X, dynamic=dynamic), (Uniform, Positions, Conditional, Table))


NOT_UNIFORM: dict[str, Callable[[Tensor], Tensor]] = {
    "arange < size - 1": lambda x: torch.arange(x.shape[1]) < x.shape[1] - 1,
    "arange <= rows": lambda x: torch.arange(x.shape[1]) <= x.shape[0],
    "arange > 0": lambda x: torch.arange(x.shape[1]) > 0,
    "two numbers": lambda x: torch.cat([torch.ones(4), torch.zeros(1)]),
    "two zeros": lambda x: torch.cat([torch.zeros(2), torch.zeros(2).neg()]),
    "literal": lambda x: torch.tensor([1, 1, 1, 0]),
    "narrow": lambda x: torch.arange(x.shape[1], dtype=torch.uint8) >= -1,  # -1 wraps around
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", NOT_UNIFORM)
def test_not_one_number(name: str, dynamic: bool) -> None:
    found = fact(NOT_UNIFORM[name], X, dynamic=dynamic)
    if name == "narrow" and not dynamic:
        assert isinstance(found, (Uniform, Table))  # eager has computed it
    else:
        assert not isinstance(found, Uniform)
    module = captured(NOT_UNIFORM[name], X, dynamic=dynamic)
    agree(module, facts(module), [X])


def test_the_sign_of_a_zero_is_not_promised() -> None:
    """Eager gives 0.0 in some lanes and -0.0 in others."""
    found = fact(lambda x: torch.minimum(torch.zeros(x.shape[1]), torch.full([], -0.0)), X, dynamic=True)
    assert isinstance(found, Uniform) and found.number == 0 and not found.exact


def test_what_is_too_large_is_not_computed() -> None:
    elements = MAX_BYTES // 4
    assert isinstance(fact(lambda x: torch.arange(elements).float(), X), type(None))
    assert isinstance(fact(lambda x: torch.arange(elements // 2).float(), X), Table)


def test_sums_that_might_wrap_around_are_not_known() -> None:
    assert fact(lambda x: torch.arange(x.shape[1]) * (1 << 40), X, dynamic=True) is None
    assert fact(lambda x: torch.arange(x.shape[1], dtype=torch.int32), X, dynamic=True) is None
    assert isinstance(fact(lambda x: torch.arange(x.shape[1]) * 1000, X, dynamic=True), Positions)


def test_a_number_of_the_users_may_be_large() -> None:
    def function(x: Tensor, n: int) -> Tensor:
        return torch.where(torch.full([3], n) * 4 > 0, x, -x)

    run, _ = compiled(function, dynamic=True)
    x = torch.randn(3)
    with torch.no_grad():
        for n in (5, 7, 1 << 62, (1 << 61) + 3):
            torch.testing.assert_close(run(x, n), function(x, n))


def test_a_branch_that_is_never_taken_gets_a_gradient_of_zeros() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.where(torch.ones(5, dtype=torch.bool), x, w).sum()

    run, _ = compiled(function)
    x, w = (torch.randn(5, requires_grad=True) for _ in range(2))
    run(x, w).backward()
    assert w.grad is not None and not w.grad.any()
