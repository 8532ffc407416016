"""Long rows add up as precisely as eager's: no accumulator takes more than a run of them."""

from __future__ import annotations

import pytest
import torch
from support.thorough import one_row_in

functional = torch.nn.functional


def normalized(x):
    return functional.layer_norm(x, x.shape[-1:])


def everything(x, places):
    """By name: what rows are folded into; and folds of scans and of gathered columns."""
    return {
        "sum": x.sum(-1),
        "mean": x.mean(-1),
        "var": x.var(-1),
        "norm": x.norm(dim=-1),
        "logsumexp": x.logsumexp(-1),
        "softmax": x.softmax(-1) * x.shape[-1],
        "cumsum": x.cumsum(-1),
        "layer_norm": normalized(x),
        "layer_norm of columns": normalized(x[:, places]),
        "layer_norm of sums so far": normalized(x.cumsum(-1)),
        "sum of sums so far": x.cumsum(-1).sum(-1),
        "batch_norm": functional.batch_norm(x.t().contiguous(), None, None, training=True),
    }


# A scan is not in lanes, and neither is what is folded with it: what one accumulator takes is longer.
UNITS = {"layer_norm of sums so far": 8}


def worse_than_eager(made, x, places):
    """Results that are off by more than twice what eager's are, and some units in the last place; both errors."""
    eager, exact = everything(x, places), everything(x.double(), places)
    unit = torch.finfo(x.dtype).eps
    found = {}
    for name, truth in exact.items():
        ours, theirs = ((result[name].double() - truth).abs().max() for result in (made, eager))
        if ours > 2 * theirs + UNITS.get(name, 1) * unit * truth.abs().max():
            found[name] = (ours, theirs)
    return found


@pytest.mark.parametrize(("columns", "dynamic"), [(20_000, True), (1_000_000, False)])
def test_long_rows_are_as_accurate_as_eagers(columns, dynamic):
    torch.manual_seed(0)
    torch.compiler.reset()
    x, places = torch.randn(2, columns) + 0.5, torch.randperm(columns)
    made = torch.compile(everything, backend="regraft", dynamic=dynamic)(x, places)
    assert worse_than_eager(made, x, places) == {}


def of_images(x):
    """By name: what the pixels of all images are folded into, one fold a channel, with few and many channels."""
    over = (0, 2, 3)
    return {
        "sum": x.sum(over),
        "mean": x.mean(over),
        "var": x.var(over),
        "squares": ((x - x.mean(over, keepdim=True)) ** 2).sum(over),
        "batch_norm": functional.batch_norm(x, None, None, training=True),
    }


@one_row_in(2)
@pytest.mark.parametrize(
    ("channels", "size", "mean", "dynamic"),
    [(8, 192, 0.0, True), (32, 192, 0.0, False), (3, 192, 0.0, False), (1, 1500, 0.5, False)],
)
def test_long_rows_of_nested_loops_are_as_accurate_as_eagers(channels, size, mean, dynamic):
    torch.manual_seed(0)
    torch.compiler.reset()
    x = torch.randn(2, channels, size, size) + mean
    made = torch.compile(of_images, backend="regraft", dynamic=dynamic)(x)
    eager, exact = of_images(x), of_images(x.double())
    off = {name: [(r[name] - exact[name]).norm().item() for r in (made, eager)] for name in exact}
    unit = {name: torch.finfo(x.dtype).eps * value.norm().item() for name, value in exact.items()}
    assert [name for name, (ours, theirs) in off.items() if ours > 2 * theirs + 0.8 * unit[name]] == []
