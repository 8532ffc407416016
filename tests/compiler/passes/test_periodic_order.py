"""Indices of constants that order all groups of a dim alike: groups are indexed by the order of one."""

from __future__ import annotations

import pytest
import torch
from support.lowering import trace

from regraft.compiler.lowering.core import TABLE_SPAN
from regraft.compiler.passes.fold_constant_tables import fold_constant_tables
from regraft.compiler.passes.periodic_order import order_within_groups

EVERY = torch.arange(32).view(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(-1).tolist()
ROWS = [1, 0, 3, 2, 5, 4, 7, 6]
CASES = {
    "columns": (lambda x: x[:, EVERY], 8),
    "in 32 bits": (lambda x: x[:, torch.tensor(EVERY, dtype=torch.int32)], 8),
    "rows": (lambda x: x[ROWS], 2),
    "one for all of a group": (lambda x: x[:, [i // 4 * 4 for i in range(32)]], 4),
    "in another order": (lambda x: x[:, EVERY[::-1]], 0),
    "the last group in another order": (lambda x: x[:, [*EVERY[:24], *range(24, 32)]], 0),
    "groups in another order": (lambda x: x[:, EVERY[8:] + EVERY[:8]], 0),
    "some": (lambda x: x[:, EVERY[:16]], 0),
    "transposed": (lambda x: x.t()[EVERY], 0),
    "two": (lambda x: x[ROWS, ROWS], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_groups_are_ordered(name: str) -> None:
    function, period = CASES[name]
    x = torch.randn(8, 32)
    traced = trace(function, x)
    fold_constant_tables(traced)
    assert order_within_groups(traced) == bool(period)
    traced.graph.lint()
    tables = [node for node in traced.graph.nodes if TABLE_SPAN in node.meta and node.users]
    assert not period or [node.meta["val"].numel() for node in tables] == [period]
    made = traced(x)
    made = made[0] if isinstance(made, (tuple, list)) else made
    assert torch.equal(made, function(x)) and made.stride() == function(x).stride()
