"""Few queries over a long cache on a CPU: against eager and float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.thorough import one_row_in

from regraft.compiler.templates import TemplateKernel
from regraft.compiler.templates.common.cpp_call import lanes

from ..fusing import assert_as_good_as_eager, fuse

F32, BF16 = torch.float32, torch.bfloat16
LOWEST = torch.finfo(F32).min
KEYS = 1100


def random(*sizes: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(dtype)


def qkv(heads: int = 8, shared: int = 2, keys: int = KEYS, dtype: torch.dtype = F32, d: int = 32) -> list[torch.Tensor]:
    q = random(2, 1, heads, d, dtype=dtype).transpose(1, 2)
    return [q, random(2, shared, keys, d, dtype=dtype), random(2, shared, keys, d + 16, dtype=dtype)]


def repeated(x: torch.Tensor, heads: int) -> torch.Tensor:
    b, shared, keys, d = x.shape
    return x[:, :, None].expand(b, shared, heads // shared, keys, d).reshape(b, heads, keys, d)


def scored(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Attention over a cache with `f` of scores and of what follows q, k and v."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
        weights = torch.softmax(f(torch.matmul(q, k.transpose(2, 3)), *more), -1)
        return torch.matmul(weights, v).transpose(1, 2).contiguous()

    return attention


def plain(s: torch.Tensor) -> torch.Tensor:
    return s * 0.25


def filled(s: torch.Tensor, position: torch.Tensor, fill: float = LOWEST) -> torch.Tensor:
    return s * 0.25 + torch.where(torch.arange(s.shape[-1]) <= position, 0.0, fill).to(s.dtype)


def window(s: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    j = torch.arange(s.shape[-1])
    return (s * 0.25).masked_fill((j > position) | (j <= position - 300), -math.inf)


def alibi(s: torch.Tensor, position: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    return filled(s, position, -math.inf) + slopes[:, None, None] * (torch.arange(s.shape[-1]) - position)


def capped(s: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return filled(torch.tanh(s / 5) * 5, position, -math.inf)


def kept(s: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, s * 0.25, -math.inf)


def added(s: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return s * 0.25 + mask


POSITION = torch.tensor(700)
PADDED = (torch.arange(KEYS) >= torch.tensor([0, 33])[:, None])[:, None, None] & (torch.arange(KEYS) < 801)
ADDED = torch.zeros(PADDED.shape).masked_fill(~PADDED, LOWEST)


def is_of_few_queries(function: Callable[..., Any], inputs: list[torch.Tensor]) -> bool:
    nodes = fuse(function, inputs).graph_module.graph.nodes
    (kernel,) = (node.target for node in nodes if isinstance(node.target, TemplateKernel))
    return "attention::weigh" in kernel.source


@one_row_in(2)
@pytest.mark.parametrize(
    ("f", "more"),
    [(plain, ()), (filled, (POSITION,)), (window, (POSITION,)), (capped, (POSITION,)),
     (alibi, (POSITION, torch.linspace(0.01, 0.05, 8))), (kept, (PADDED,)), (added, (random(2, 8, 1, KEYS),))],
    ids=["plain", "filled", "window", "softcap", "alibi", "padded", "bias"],
)  # fmt: skip
def test_scores(f: Callable[..., Any], more: tuple[Any, ...]) -> None:
    inputs = [*qkv(), *more]
    assert_as_good_as_eager(scored(f), inputs)
    assert is_of_few_queries(scored(f), inputs)


@one_row_in(2)
@pytest.mark.parametrize(
    ("heads", "shared", "keys", "dtype"),
    [(3, 3, 70, BF16), (8, 1, 1100, F32), (12, 1, 600, BF16), (16, 16, 257, F32), (2, 2, 5000, F32)],
)
def test_sizes(heads: int, shared: int, keys: int, dtype: torch.dtype) -> None:
    inputs = [*qkv(heads, shared, keys, dtype), torch.tensor(keys - 40)]
    assert_as_good_as_eager(scored(filled), inputs, slack=2.0 if dtype == BF16 else 4.0)
    assert is_of_few_queries(scored(filled), inputs)


def test_columns_that_are_no_whole_vectors_are_packed() -> None:
    inputs = qkv(d=lanes() + 1)
    assert_as_good_as_eager(scored(plain), inputs)
    assert not is_of_few_queries(scored(plain), inputs)


def test_sinks() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        s = torch.matmul(q, repeated(k, 8).transpose(2, 3)) * 0.25
        s = torch.cat([s, sink.reshape(1, -1, 1, 1).expand(2, -1, 1, -1)], -1)
        return torch.matmul(torch.softmax(s, -1)[..., :-1], repeated(v, 8))

    sinks = torch.linspace(-2, 20, 8)
    sinks[2] = -math.inf
    assert_as_good_as_eager(attention, [*qkv(), sinks])


@one_row_in(2)
@pytest.mark.parametrize(("f", "more"), [(filled, POSITION), (window, POSITION), (kept, PADDED), (added, ADDED)])
def test_what_the_mask_hides_is_not_read(f: Callable[..., Any], more: torch.Tensor) -> None:
    inputs = [*qkv(), more]
    expected = scored(f)(*inputs)
    for x in inputs[1:3]:
        x[:, :, 832:] = math.nan
        if f in (kept, added):
            x[1, :, :16] = math.nan
    fused = fuse(scored(f), inputs).graph_module(*inputs)
    torch.testing.assert_close(fused, expected)


@one_row_in(2)
@pytest.mark.parametrize("position", [0, KEYS - 1, KEYS + 5, -1])
@pytest.mark.parametrize("fill", [LOWEST, -math.inf])
def test_first_and_last_positions(position: int, fill: float) -> None:
    """Lowest numbers hide all keys alike if none is kept, and minus infinity gives NaN."""
    assert_as_good_as_eager(scored(lambda s, at: filled(s, at, fill)), [*qkv(), torch.tensor(position)])


def test_infinite_and_undefined_queries() -> None:
    inputs = [*qkv(), POSITION]
    inputs[0][0, 0, 0, 3], inputs[0][1, 2, 0, 0] = math.inf, math.nan
    assert_as_good_as_eager(scored(filled), inputs)


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_do_not_depend_on_threads(threads: int) -> None:
    inputs = [*qkv(2, 1, 5000), torch.tensor(4000)]
    module, before = fuse(scored(filled), inputs).graph_module, torch.get_num_threads()
    expected = module(*inputs)
    torch.set_num_threads(threads)
    try:
        assert torch.equal(module(*inputs), expected)
    finally:
        torch.set_num_threads(before)
