"""Few queries over a long cache in Triton: interpreted against eager and float64, and compiled for GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.thorough import one_row_in
from support.triton_attention import as_near_as_eager, found_in, run_split, with_dtype
from support.triton_kernels import compiled

from regraft.compiler.gpu import AMPERE, HOPPER
from regraft.compiler.templates.attention.grouped import grouped
from regraft.compiler.templates.attention.triton_split_keys import split_attention
from regraft.compiler.templates.attention.triton_tiles import SplitTile, split_tiles

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
LOWEST = torch.finfo(F32).min
KEYS = 70


def random(*sizes: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(dtype)


def qkv(heads: int = 8, shared: int = 2, queries: int = 1, dtype: torch.dtype = F32, d: int = 16) -> list[torch.Tensor]:
    """Queries in the layout of a projection, and a cache."""
    q = random(2, queries, heads, d, dtype=dtype).transpose(1, 2)
    return [q, random(2, shared, KEYS, d, dtype=dtype), random(2, shared, KEYS, d + 8, dtype=dtype)]


def repeated(x: torch.Tensor, heads: int) -> torch.Tensor:
    """As models write it: the heads of a cache expanded, and copied."""
    b, shared, keys, d = x.shape
    return x[:, :, None].expand(b, shared, heads // shared, keys, d).reshape(b, heads, keys, d)


def scored(f: Callable[..., torch.Tensor], turned: bool = True) -> Callable[..., torch.Tensor]:
    """Attention over a cache with `f` of scores and of what follows q, k and v."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
        weights = torch.softmax(f(torch.matmul(q, k.transpose(2, 3)), *more), -1, dtype=F32).to(q.dtype)
        result = torch.matmul(weights, v)
        return result.transpose(1, 2).contiguous() if turned else result

    return attention


def filled(s: torch.Tensor, position: torch.Tensor, fill: float = LOWEST) -> torch.Tensor:
    """Keys up to each query's position, by a mask that is added."""
    i = torch.arange(s.shape[-2])[:, None] + position
    return s * 0.25 + torch.where(torch.arange(s.shape[-1]) <= i, 0.0, fill).to(s.dtype)


def window(s: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    i, j = torch.arange(s.shape[-2])[:, None] + position, torch.arange(s.shape[-1])
    return (s * 0.25).masked_fill((j > i) | (j <= i - 20), -math.inf)


def capped(s: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return filled(torch.tanh(s / 5) * 5, position, -math.inf)


def alibi(s: torch.Tensor, position: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    return filled(s, position, -math.inf) + slopes[:, None, None] * (torch.arange(s.shape[-1]) - position)


def plain(s: torch.Tensor) -> torch.Tensor:
    return s * 0.25


def added(s: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return s * 0.25 + mask


def kept(s: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, s * 0.25, -math.inf)


POSITION = torch.tensor(37)
PADDED = (torch.arange(KEYS) >= torch.tensor([0, 20])[:, None])[:, None, None] & (torch.arange(KEYS) < 40)
SLOPES = torch.linspace(0.1, 0.8, 8)


@one_row_in(2)
@pytest.mark.parametrize(
    ("f", "more"),
    [(plain, ()), (filled, (POSITION,)), (window, (POSITION,)), (capped, (POSITION,)), (alibi, (POSITION, SLOPES)),
     (kept, (PADDED,)), (added, (torch.zeros(PADDED.shape).masked_fill(~PADDED, LOWEST),)),
     (added, (random(2, 8, 1, KEYS),))],
    ids=["plain", "filled", "window", "softcap", "alibi", "padded", "added", "bias"],
)  # fmt: skip
def test_scores(f: Callable[..., Any], more: tuple[Any, ...]) -> None:
    inputs = [*qkv(), *more]
    as_near_as_eager(run_split(scored(f), inputs), scored(f), inputs)


@pytest.mark.parametrize("splits", [1, 4, 9])
def test_parts(splits: int) -> None:
    """Of one block of keys and more, and of none."""
    inputs = [*qkv(4, 1), POSITION]
    as_near_as_eager(run_split(scored(filled), inputs, splits), scored(filled), inputs)


@one_row_in(2)
@pytest.mark.parametrize(("heads", "shared", "rows"), [(4, 4, 1), (8, 1, 8), (6, 3, 2), (96, 1, 48)])
def test_heads_that_share_keys_are_rows(heads: int, shared: int, rows: int) -> None:
    inputs = [*qkv(heads, shared), POSITION]
    ran = as_near_as_eager(run_split(scored(filled), inputs), scored(filled), inputs)
    assert ran.attention.row.extent == rows
    assert math.prod(var.extent for var in ran.attention.lead) == 2 * heads // rows


@one_row_in(2)
@pytest.mark.parametrize(("shared", "turned", "rows"), [(1, True, 24), (1, False, 24), (2, False, 12), (2, True, 3)])
def test_several_queries_of_heads_that_share_keys(shared: int, turned: bool, rows: int) -> None:
    """As rows of one operand where they lie one step apart: by head, or by query."""
    attention = scored(filled, turned)
    inputs = [*qkv(8, shared, 3), POSITION]
    inputs[0] = inputs[0] if turned else inputs[0].contiguous()
    ran = as_near_as_eager(run_split(attention, inputs), attention, inputs)
    assert ran.attention.row.extent == rows


@pytest.mark.parametrize("f", [filled, window])
def test_bfloat16(f: Callable[..., Any]) -> None:
    inputs = [*qkv(dtype=BF16), POSITION]
    as_near_as_eager(run_split(scored(f), inputs), scored(f), inputs, slack=2.0)


def test_sinks() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        s = filled(torch.matmul(q, repeated(k, 8).transpose(2, 3)), POSITION.item())  # type: ignore[arg-type]
        s = torch.cat([s, sink.reshape(1, -1, 1, 1).expand(2, -1, 1, -1)], -1)
        return torch.matmul(torch.softmax(s, -1)[..., :-1], repeated(v, 8))

    sinks = torch.linspace(-2, 20, 8)
    sinks[2] = -math.inf
    inputs = [*qkv(), sinks]
    as_near_as_eager(run_split(attention, inputs), attention, inputs)


def test_what_begins_early_waits_first() -> None:
    inputs = [*qkv(), POSITION]
    ran = as_near_as_eager(run_split(scored(filled), inputs, early=True), scored(filled), inputs)
    assert [launch.early for launch in ran.source.launches] == [True, True]
    assert not any(launch.early for launch in split_attention(ran.attention, SplitTile(16, 16, 4, 2, 3)).launches)
    for made in compiled(ran.source, 90):
        ptx = made.asm["ptx"]
        begin, wait = ptx.index("griddepcontrol.launch_dependents"), ptx.index("griddepcontrol.wait")
        assert begin < wait < min(ptx.index("ld.global"), ptx.index("st.global"))


# -- what is not read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [LOWEST, -math.inf])
def test_what_is_not_filled_is_not_read(fill: float) -> None:
    f = scored(lambda s, position: filled(s, position, fill))
    inputs = [*qkv(), POSITION]
    expected = f(*inputs)
    inputs[1][:, :, 48:] = inputs[2][:, :, 48:] = math.nan  # whole blocks
    torch.testing.assert_close(run_split(f, inputs).result.reshape(expected.shape), expected)


@pytest.mark.parametrize("f", [kept, added])
def test_padding_is_not_read(f: Callable[..., Any]) -> None:
    """Neither before nor after what a mask keeps, a truth value a key or a number to add."""
    mask = PADDED if f is kept else torch.zeros(PADDED.shape).masked_fill(~PADDED, LOWEST)
    inputs = [*qkv(), mask]
    expected = scored(f)(*inputs)
    for x in inputs[1:3]:
        x[:, :, 48:] = x[1, :, :16] = math.nan
    torch.testing.assert_close(run_split(scored(f), inputs).result.reshape(expected.shape), expected)


@pytest.mark.parametrize(
    ("position", "fill"), [(0, LOWEST), (KEYS - 1, -math.inf), (KEYS + 5, LOWEST), (-1, LOWEST), (-1, -math.inf)]
)
def test_first_and_last_positions(position: int, fill: float) -> None:
    """Lowest numbers hide all keys alike if none is kept, and minus infinity gives NaN."""
    f = scored(lambda s, position: filled(s, position, fill))
    inputs = [*qkv(), torch.tensor(position)]
    assert f(*inputs).isnan().all() == (position < 0 and fill == -math.inf)
    as_near_as_eager(run_split(f, inputs), f, inputs)


def test_rows_without_keys_of_one_batch() -> None:
    mask = PADDED.clone()
    mask[1] = False
    for f, given in ((kept, mask), (added, torch.zeros(mask.shape).masked_fill(~mask, LOWEST))):
        inputs = [*qkv(), given]
        as_near_as_eager(run_split(scored(f), inputs), scored(f), inputs)


def test_infinite_and_undefined_queries() -> None:
    inputs = [*qkv(), POSITION]
    inputs[0][0, 0, 0, 3], inputs[0][1, 2, 0, 0] = math.inf, math.nan
    as_near_as_eager(run_split(scored(filled), inputs), scored(filled), inputs)


# -- machine code -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "depth", "gpu", "f"),
    [(BF16, 64, HOPPER, filled), (BF16, 128, AMPERE, kept), (F16, 80, HOPPER, kept), (F32, 64, AMPERE, filled),
     (BF16, 256, HOPPER, window)],
)  # fmt: skip
def test_compiles(dtype: torch.dtype, depth: int, gpu: Any, f: Callable[..., Any]) -> None:
    known = F32 if dtype == F16 else dtype
    heads = [torch.empty(1, n, size, depth, dtype=known) for n, size in ((32, 1), (8, 1000), (8, 1000))]
    more = torch.empty(1, 1, 1, 1000, dtype=torch.bool) if f is kept else POSITION
    attention = grouped(with_dtype(found_in(scored(f), [*heads, more])[0].attention, dtype))
    tile = split_tiles(attention, gpu)[0]
    assert (tile.queries, attention.row.extent, [var.extent for var in attention.lead]) == (16, 4, [1, 8])
    part, whole = compiled(split_attention(attention, tile), gpu.capability)
    assert part.metadata.shared <= gpu.shared_bytes
    assert whole.metadata.shared <= gpu.shared_bytes


def test_tiles_keep_processors_busy() -> None:
    q, k, v = (torch.empty(16, n, size, 64, dtype=BF16) for n, size in ((32, 1), (8, 2048), (8, 2048)))
    attention = found_in(scored(plain), [q, k, v])[0].attention
    few = replace(attention, lead=attention.lead[1:])
    assert split_tiles(grouped(attention), HOPPER)[0].splits == 2
    assert 24 <= split_tiles(grouped(few), HOPPER)[0].splits <= 40
    many = replace(attention, row=replace_extent(attention.row, 128))
    assert split_tiles(many, HOPPER) == []


def replace_extent(var: Any, extent: int) -> Any:
    return type(var)(var.name, extent)


def test_tiles_differ_in_what_is_measured() -> None:
    attention = grouped(found_in(scored(plain), qkv(d=64, dtype=BF16))[0].attention)
    assert split_tiles(attention, HOPPER) == []  # few keys: one program a head goes through them
    long = replace(attention, key=type(attention.key)("j", 4096))
    found = split_tiles(long, HOPPER)
    assert len(set(found)) == len(found) > 6
    assert all(isinstance(tile, SplitTile) for tile in found)
