"""Tensors that are written part after part: as what joins the parts, exactly, or as they were."""

from __future__ import annotations

import pytest
import torch
from support.rewriting import compiled
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.written_in_parts import join_written_parts


def filled(base, *writes):
    """A function of `x` that makes a tensor and writes to it."""

    def function(x):
        made = base(x)
        for place, value in writes:
            made[place] = value(x)
        return made

    return function


EVEN, ODD, ALL = slice(None, None, 2), slice(1, None, 2), slice(None)
EMPTY = lambda x: torch.empty(x.shape[0], 2 * x.shape[1])  # noqa: E731
LOW, HIGH, WHOLE = (lambda x: x.sin()), (lambda x: x.cos()), (lambda x: x.repeat(1, 2))
JOINED = {
    "interleaved": filled(EMPTY, ((ALL, EVEN), LOW), ((ALL, ODD), HIGH)),
    "odd ones first": filled(EMPTY, ((ALL, ODD), LOW), ((ALL, EVEN), HIGH)),
    "over zeros": filled(lambda x: x.new_zeros(x.shape[0], 2 * x.shape[1]), ((..., EVEN), LOW), ((..., ODD), HIGH)),
    "rows": filled(lambda x: torch.zeros(2 * x.shape[0], x.shape[1]), (EVEN, LOW), (ODD, HIGH)),
    "halves": filled(lambda x: torch.empty(4, 12), ((ALL, slice(0, 6)), LOW), ((ALL, slice(6, 12)), HIGH)),
    "unequal": filled(lambda x: torch.ones(4, 8), ((ALL, slice(2, 8)), LOW), ((ALL, slice(2)), lambda x: x[:, 1:3])),
    "places": filled(lambda x: torch.empty(4, 6, 2), ((..., 0), LOW), ((..., 1), HIGH)),
    "the last place first": filled(lambda x: torch.empty(2, 4, 6), (-1, LOW), (0, HIGH)),
    "other types": filled(
        lambda x: torch.empty(4, 12, dtype=torch.int32), ((ALL, EVEN), lambda x: x * 9), ((ALL, ODD), HIGH)
    ),
    "broadcast": filled(EMPTY, ((..., EVEN), lambda x: x[:1]), ((..., ODD), lambda x: x.sum())),
    "like another": filled(lambda x: torch.zeros_like(WHOLE(x)), ((..., EVEN), LOW), ((..., ODD), HIGH)),
}  # fmt: skip
THRICE = slice(None, None, 3)
LEFT = {
    "a part": filled(lambda x: torch.zeros(4, 12), ((ALL, EVEN), LOW)),
    "not to the end": filled(
        lambda x: torch.zeros(4, 16), ((ALL, slice(0, 12, 2)), LOW), ((ALL, slice(1, 12, 2)), HIGH)
    ),
    "twice": filled(lambda x: torch.zeros(4, 12), ((ALL, EVEN), LOW), ((ALL, EVEN), HIGH)),
    "two of three": filled(lambda x: torch.zeros(4, 18), ((ALL, THRICE), LOW), ((ALL, slice(1, None, 3)), HIGH)),
    "overlapping": filled(lambda x: torch.empty(4, 8), ((ALL, slice(0, 6)), LOW), ((ALL, slice(2, 8)), HIGH)),
    "read in between": lambda x: read_in_between(x),
    "over the input": filled(lambda x: x.clone().repeat(1, 2), ((ALL, EVEN), LOW), ((ALL, ODD), HIGH)),
    "channels last": filled(
        lambda x: torch.empty(1, 4, 2, 2, memory_format=torch.channels_last),
        ((ALL, EVEN), lambda x: x[0, 0]), ((ALL, ODD), lambda x: x[0, 1]),
    ),
    "from another device": filled(
        lambda x: torch.empty(4, 2, device="meta"), ((ALL, 0), lambda x: x[:, 0]), ((ALL, 1), lambda x: x.sum())
    ),
    "an odd size": filled(lambda x: torch.zeros(4, 11), ((ALL, EVEN), LOW), ((ALL, ODD), lambda x: x[:, :5])),
}  # fmt: skip


def read_in_between(x):
    made = EMPTY(x)
    made[:, ::2] = x.sin()
    made[:, 1::2] = made[:, ::2] * 2
    return made


def functional(function, x, mode="fake"):
    """Its graph as it is after autograd: each write makes a tensor."""
    module = make_fx(torch.func.functionalize(function, remove="mutations"), tracing_mode=mode)(x)
    module.graph.eliminate_dead_code()
    return module


@pytest.mark.parametrize("name", [*JOINED, *LEFT])
def test_parts(name: str) -> None:
    function, x = (JOINED | LEFT)[name], torch.randn(4, 6)
    module = functional(function, x)
    expected = function(x)
    assert join_written_parts(module) == (name in JOINED)
    module.graph.lint()
    result = module(x)
    assert result.stride() == expected.stride() and result.dtype == expected.dtype
    if not expected.is_meta:
        torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["over zeros", "rows", "like another"])
def test_sizes_that_vary(name: str) -> None:
    module = functional(JOINED[name], torch.randn(4, 6), "symbolic")
    assert join_written_parts(module) == 1
    x = torch.randn(3, 5)
    torch.testing.assert_close(module(x), JOINED[name](x), rtol=0, atol=0)


def test_compiled_with_gradients() -> None:
    run, cov = compiled(JOINED["interleaved"])
    x = torch.randn(4, 6, requires_grad=True)
    with cov:
        ours = run(x)
    assert cov.graphs[0].changes("written_in_parts")
    theirs = JOINED["interleaved"](x)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(theirs)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, weight) for y in (ours, theirs)))
