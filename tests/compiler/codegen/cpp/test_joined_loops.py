"""Loops that fusion split for a neighbor, and that share none with it, are one loop again."""

from __future__ import annotations

import pytest
import torch
from support.kernels import compiled_agrees, one_unit
from support.lowering import trace
from support.thorough import one_row_in

from regraft.compiler.codegen.cpp.joined_loops import join_loops
from regraft.compiler.codegen.flatten import flatten
from regraft.compiler.ir.accesses import statements
from regraft.compiler.ir.kernel import Fold, Loop
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import schedule


def loops_of_folds(function, *inputs, join=join_loops):
    """The extents of the loops in each fold."""
    kernels = schedule(lower(trace(function, *inputs), strict=True).program).kernels
    folds = [s for k in kernels for s in statements(join(flatten(k)).body) if isinstance(s, Fold)]
    return [[s.var.extent for s in statements(fold.body) if isinstance(s, Loop)] for fold in folds]


def test_a_fold_beside_windows_has_one_loop():
    function, x = lambda x: (x.sum(1), x.unfold(1, 4, 2) * 2), torch.randn(8, 60)
    assert loops_of_folds(function, x, join=lambda k: k) == [[15, 4]], "else this tests nothing"
    assert loops_of_folds(function, x) == [[60]]


def test_loops_of_two_numbers_stay_two():
    x = torch.randn(8, 60, 20)
    assert loops_of_folds(lambda x: x[:, :50, :15].sum((1, 2)), x) == [[50, 15]]


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("size, step", [(2, 1), (3, 1), (3, 3), (4, 2), (5, 4), (8, 4), (7, 2), (16, 8)])
@one_unit()
def test_folds_beside_windows(size, step, dtype):
    x = (torch.randn(9, 84) * 9).to(dtype)
    compiled_agrees(lambda x: (x.amax(1), x.unfold(1, size, step) * 2), x)
    compiled_agrees(lambda x: (x.argmax(1), x.unfold(1, size, step) + x[:, :1, None]), x)
    compiled_agrees(lambda x: x.unfold(0, 4, 2) + 1, x)
