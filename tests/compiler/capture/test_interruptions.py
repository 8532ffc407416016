"""Recompilations and graph breaks are told in the report: what failed, where, what would avoid it."""

from __future__ import annotations

import pytest
import torch

import regraft


def told(function, calls, **options):
    torch.compiler.reset()
    compiled = torch.compile(function, backend="regraft", **options)
    with torch.no_grad(), regraft.coverage() as cov:
        for args in calls:
            torch.testing.assert_close(compiled(*args), function(*args))
    return cov


def branches(x):
    if x.sum() > 0:  # a branch on a tensor
        return x * 2
    return x + 1


def speaks(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


@pytest.mark.parametrize(("function", "avoid"), [(branches, "torch.where"), (speaks, "the program asks for it")])
def test_graph_breaks(function, avoid):
    cov = told(function, [(torch.ones(3),)])
    (found,) = [g.details["graph_break"] for g in cov.graphs if "graph_break" in g.details]
    assert avoid in found["avoid"] and f"in {function.__name__}" in found["at"] and found["why"]
    assert found["at"].startswith("capture/test_interruptions.py:") and "graph break" in str(cov)


@pytest.mark.parametrize(("calls", "why", "avoid"), [
    ([(torch.ones(3), 2), (torch.ones(3), 3)], "k == 2", "pass it as a tensor"),
    ([(torch.ones(3), 2), (torch.ones(4), 2)], "size mismatch at index 0", "dynamic=True"),
    ([(torch.ones(3), 2), (torch.ones(3, dtype=torch.float64), 2)], "dtype", "one dtype"),
])  # fmt: skip
def test_recompilations(calls, why, avoid):
    cov = told(lambda x, k: x * k, calls)
    first, second = cov.graphs
    assert "recompiled" not in first.details and why in second.details["recompiled"]["why"]
    assert avoid in second.details["recompiled"]["avoid"] and "compiled again" in str(cov)


def test_one_graph_compiled_once_has_nothing_to_tell():
    cov = told(lambda x: x * 2, [(torch.ones(3),)] * 2)
    assert not {"recompiled", "graph_break"} & set(cov.graphs[0].details) and "Compiled again" not in str(cov)
