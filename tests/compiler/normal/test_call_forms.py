"""Calls that mean the same have one normal form: names of one operator, arguments at their defaults, definitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.normal import form, module_of, normalized, traced
from support.opinfo import op_db
from support.own_source import pattern_of, quiet
from support.thorough import examples
from torch import nn

X, Y, IMAGE = torch.randn(4, 8), torch.randn(4, 8), torch.randn(2, 4, 8, 8)
VECTOR, OTHER = torch.randn(5), torch.randn(5)
WINDOW, INDEX, COUNTS = torch.randn(6, 4, 3, 5), torch.randint(0, 8, (4, 3)), torch.randint(-9, 9, (4, 8))

PAIRS: dict[str, tuple[Any, Any, tuple[torch.Tensor, ...]]] = {
    "pool by module": (lambda x: F.max_pool2d(x, 2), lambda x: nn.MaxPool2d(2)(x), (IMAGE,)),
    "pool with a stride": (lambda x: F.avg_pool2d(x, 2), lambda x: F.avg_pool2d(x, (2, 2), [2, 2], 0), (IMAGE,)),
    "pool of rows": (lambda x: F.max_pool1d(x, 2), lambda x: F.max_pool1d(x, 2, 2, 0, 1), (X,)),
    "zeros around": (lambda x: F.pad(x, (1, 1)), lambda x: nn.ConstantPad1d(1, 0.0)(x), (X,)),
    "deviation": (lambda x: x.std(-1), lambda x: torch.std(x, -1, unbiased=True), (X,)),
    "deviation by correction": (lambda x: x.std(-1, True, True), lambda x: x.std(-1, correction=1, keepdim=True), (X,)),
    "variance": (lambda x: x.var(-1), lambda x: x.var(-1, correction=1), (X,)),
    "same padding": (
        lambda x, w: F.conv2d(x, w, padding=(1, 2)), lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, WINDOW)
    ),
    "no padding": (lambda x, w: F.conv2d(x, w), lambda x, w: F.conv2d(x, w, padding="valid"), (IMAGE, WINDOW)),
    "integer division": (lambda i: i // 2, lambda i: torch.div(i, 2, rounding_mode="floor"), (COUNTS,)),
    "floor division": (lambda x, y: x // y, lambda x, y: torch.div(x, y, rounding_mode="floor"), (X, Y)),
    "shifted": (lambda i: (i << 2) | 1, lambda i: i.bitwise_left_shift(2).bitwise_or(1), (COUNTS,)),
    "larger": (lambda x, y: torch.maximum(x, y), lambda x, y: torch.max(x, y), (X, Y)),
    "square": (lambda x: x * x, lambda x: x**2, (X,)),
    "side by side": (lambda x, y: torch.hstack([x, y]), lambda x, y: torch.cat([x, y], 1), (X, Y)),
    "vectors side by side": (lambda a, b: torch.hstack([a, b]), lambda a, b: torch.cat([a, b]), (VECTOR, OTHER)),
    "above each other": (lambda x, y: torch.vstack([x, y]), lambda x, y: torch.cat([x, y]), (X, Y)),
    "left to right": (lambda x: torch.fliplr(x), lambda x: x.flip(1), (X,)),
    "outer": (lambda a, b: torch.outer(a, b), lambda a, b: a[:, None] * b[None, :], (VECTOR, OTHER)),
    "taken": (lambda x, i: x.gather(1, i), lambda x, i: torch.take_along_dim(x, i, 1), (X, INDEX)),
    "in order": (lambda x: x.sort(1)[0], lambda x: x.gather(1, x.argsort(1)), (X,)),
    "in descending order": (
        lambda x: x.sort(-1, True)[0], lambda x: torch.take_along_dim(x, x.sort(-1, True)[1], 1), (X,)
    ),
    "vector in order": (lambda x: x.sort()[0], lambda x: x[x.argsort()], (VECTOR,)),
    "dot": (lambda a, b: a @ b, lambda a, b: torch.dot(a, b), (VECTOR, OTHER)),
    "inner": (lambda a, b: a @ b, lambda a, b: torch.inner(a, b), (VECTOR, OTHER)),
    "glu": (lambda x: F.glu(x, -1), lambda x: (lambda a, b: a * b.sigmoid())(*x.chunk(2, -1)), (X,)),
    "pooled to one": (lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), lambda x: x.mean((-1, -2)), (IMAGE,)),
    "without the dim": (lambda x: x.sum(-1, keepdim=True).squeeze(-1), lambda x: x.sum(-1), (X,)),
    "sum of all": (lambda x: x.flatten().sum(), lambda x: x.sum(), (X,)),
    "mean of all, turned": (lambda x: x.T.mean(), lambda x: x.mean(), (X,)),
    "equal sizes": (lambda x, y: torch.add(*torch.broadcast_tensors(x, y)), lambda x, y: x + y, (X, Y)),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_two_spellings_are_one(name):
    first, second, inputs = PAIRS[name]
    assert form(first, *inputs) == form(second, *inputs)


@pytest.mark.parametrize("name", PAIRS)
def test_values_stay(name):
    for program in PAIRS[name][:2]:
        inputs = PAIRS[name][2]
        module = module_of(normalized(traced(program, *inputs)))
        torch.testing.assert_close(module(*inputs), program(*inputs))


UNLIKE = {
    "another stride": (lambda x: F.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2, 1), (IMAGE,)),
    "another padding": (lambda x: F.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2, padding=1), (IMAGE,)),
    "counted otherwise": (
        lambda x: F.avg_pool2d(x, 3, 3, 1), lambda x: F.avg_pool2d(x, 3, 3, 1, count_include_pad=False), (IMAGE,)
    ),
    "ones around": (lambda x: F.pad(x, (1, 1)), lambda x: F.pad(x, (1, 1), value=1.0), (X,)),
    "edges around": (lambda x: F.pad(x, (1, 1)), lambda x: F.pad(x, (1, 1), "reflect"), (X,)),
    "another correction": (lambda x: x.std(-1), lambda x: x.std(-1, correction=2), (X,)),
    "towards zero": (lambda i: i // 2, lambda i: torch.div(i, 2, rounding_mode="trunc"), (COUNTS,)),
    "two parts": (lambda x: F.adaptive_avg_pool2d(x, 2), lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    "gate first": (lambda x: F.glu(x, -1), lambda x: (lambda a, b: b * a.sigmoid())(*x.chunk(2, -1)), (X,)),
    "digits": (lambda x: x.round(), lambda x: x.round(decimals=1), (X,)),
    "digits by another name": (lambda x: x.round(), lambda x: torch.special.round(x, decimals=1), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNLIKE)
def test_other_meanings_stay_apart(name):
    first, second, inputs = UNLIKE[name]
    assert form(first, *inputs) != form(second, *inputs)


_OTHERWISE = {
    "special.softmax": "named by `softmax_name`, of the last dim",
    "swapdims": "of one dim",
    "swapaxes": "of one dim",
}


def aliases() -> Iterator[tuple[str, Any, Any]]:
    """Each operator of torch's database, and another name of it."""
    for info in op_db:
        for alias in info.aliases:
            if alias.name.removeprefix("torch.") not in _OTHERWISE:
                yield alias.name, info, alias
        if info.operator_variant is not None:
            yield f"{info.name} as an operator", info, info.operator_variant


def test_other_names_of_operators_have_one_form():
    most, compared, differ = examples(2, 6), 0, []
    for name, info, other in aliases():
        dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
        with quiet():
            samples = [s for s, _ in zip(info.sample_inputs("cpu", dtype), range(most), strict=False)]
        for sample in samples:
            with quiet():
                try:
                    programs = [pattern_of(f, (sample.input, *sample.args), sample.kwargs) for f in (info.op, other)]
                    for program, tensors in programs:
                        program(*[t.clone() for t in tensors])
                except (TypeError, RuntimeError, AttributeError):  # no tensors, or not in this spelling
                    continue
            a, b = (form(program, *tensors) for program, tensors in programs)
            compared += 1
            differ += [name] if a.replace("dtype=", "") != b.replace("dtype=", "") else []
    assert compared > 33 * most
    assert not differ
