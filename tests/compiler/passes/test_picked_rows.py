"""Rows that are picked from small tables for products: their places are checked once, and are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.packed_words import DEPTH, along_depth
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.picked_rows import check_picked_rows

X, TABLE, WEIGHT = torch.randn(2, 32), torch.randn(4, 24), torch.randn(32, 24)
GROUP = torch.arange(32) // 8
PICKED: dict[str, tuple[Callable[..., Any], int]] = {
    "index": (lambda x, w, t, at: x @ (w * t[at]), 1),
    "twice": (lambda x, w, t, at: x @ (w * t[at] + t.exp()[at]), 2),
    "index_select": (lambda x, w, t, at: x @ (w * t.index_select(0, at)), 1),
    "no product": (lambda x, w, t, at: w * t[at] + x[0, 0], 0),
    "read twice": (lambda x, w, t, at: (x @ (p := t[at])) + p.sum(), 0),
    "known places": (lambda x, w, t, at: x @ (w * t[torch.arange(32) // 8]) + at[0], 0),
    "columns": (lambda x, w, t, at: x @ t.t()[:, at].t(), 0),
}


def checked(function: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[torch.fx.GraphModule, int]:
    made = make_fx(function, tracing_mode="fake")(*inputs)
    count = check_picked_rows(made)
    made.graph.lint()
    return made, count


@pytest.mark.parametrize("name", PICKED)
def test_what_is_checked(name: str) -> None:
    function, count = PICKED[name]
    inputs = [X, WEIGHT, TABLE, GROUP]
    made, found = checked(function, inputs)
    checks = [node for node in made.graph.nodes if node.target == torch.ops.aten.clamp.default]
    assert (found, len(checks)) == (count, min(count, 1))
    torch.testing.assert_close(made(*inputs), function(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize("place", [-1, -4, 4, -5])
def test_places_are_eagers(place: int) -> None:
    """Negative ones count from the end, others raise."""
    function, _ = PICKED["index"]
    inputs = [X, WEIGHT, TABLE, GROUP.where(GROUP != 2, place)]
    made, _ = checked(function, inputs)
    if -4 <= place < 4:
        torch.testing.assert_close(made(*inputs), function(*inputs), rtol=0, atol=0)
    else:
        with pytest.raises(IndexError):
            made(*inputs)


@pytest.mark.parametrize("place", [-1, 9])
def test_compiled_places_are_eagers(place: int) -> None:
    """The product's kernel picks rows by places that another kernel has checked."""
    function, given = along_depth(4, torch.float32)
    inputs = [torch.randn(1, DEPTH), *given[:-1], given[-1].where(given[-1] != 2, place)]
    compiled = torch.compile(function, backend="regraft", options={"strict": True, "profit": "always"})
    torch._dynamo.reset()
    with torch.no_grad():
        if place < 0:
            torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)
        else:
            with pytest.raises(IndexError, match="out of bounds"):
                compiled(*inputs)
