"""Attention with more to it than a mask: sinks, softcap, keys in parts, sums of products, weights wanted too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.attentions import INF, SCALE, B, D, H, S, T, additive, attend, keeps, normal, qkv
from support.rewriting import assert_agrees, compiled, rewritten, trained
from support.thorough import one_row_in, takes_turns

BOTH = pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
SIZES = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
N, GLOBAL, LOCAL = 3, 4, 7


def sink_column(sinks: Any, q: Any) -> Any:
    return sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)


def sink(q, k, v, sinks):
    scores = torch.cat([q @ k.transpose(2, 3) * SCALE, sink_column(sinks, q)], dim=-1)
    scores = scores - scores.max(dim=-1, keepdim=True).values
    return torch.softmax(scores, dim=-1, dtype=scores.dtype)[..., :-1].to(v.dtype) @ v


def sink_first(q, k, v, sinks):
    return torch.softmax(torch.cat([sink_column(sinks, q), q @ k.mT], 3), 3)[..., 1:] @ v


def sink_in_the_divisor(q, k, v, sinks, m):
    scores, sink = q @ k.mT * SCALE + m, sinks.view(1, -1, 1, 1)
    largest = torch.maximum(scores.amax(-1, keepdim=True), sink)
    e = torch.exp(scores - largest)
    return (e @ v) / (e.sum(-1, keepdim=True) + torch.exp(sink - largest))


def one_more(q, k, v):
    scores = q @ k.mT * SCALE
    largest = scores.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(scores - largest)
    return (e / (e.sum(-1, keepdim=True) + torch.exp(-largest))) @ v


def masked_sink(q, k, v, sinks, m):
    return torch.softmax(torch.cat([q @ k.mT + m, sink_column(sinks, q)], -1), -1)[..., :-1] @ v


def softcap(q, k, v):
    return attend(torch.tanh(q @ k.mT * SCALE / 5.0) * 5.0, v)


def masked_softcap(q, k, v, m):
    return torch.softmax(torch.tanh(q @ k.mT / 5.0) * 5.0 + m, -1, dtype=torch.float32).to(q.dtype) @ v


def bias_within_softcap(q, k, v, b):
    return attend(torch.tanh((q @ k.mT * SCALE + b) / 5.0) * 5.0, v)


def product_within_softcap(q, k, v, r, m):
    """As the sound encoders of Gemma have it: positions relative to the query are capped with the scores."""
    positions = torch.nn.functional.pad(q @ r.mT, (0, 1))[..., :T]
    scores = torch.tanh((q @ k.mT + positions) / 5.0) * 5.0
    return attend(scores.masked_fill(m < 0, -1e9), v)


def blocks_before_heads(q, k, v, b):
    """Scores of blocks by heads, of which `bmm` gets blocks first."""
    weights = torch.softmax(q @ k.mT * SCALE + b, -1)
    weights = weights.permute(0, 2, 1, 3, 4).reshape(-1, *weights.shape[-2:])
    out = torch.bmm(weights, v.permute(0, 2, 1, 3, 4).reshape(-1, *v.shape[-2:]))
    return out.reshape(v.shape[0], v.shape[2], v.shape[1], *out.shape[-2:]).transpose(1, 2)


def head_mask(q, k, v, h):
    return (torch.softmax(q @ k.mT * SCALE, -1) * h.view(1, -1, 1, 1)) @ v


def multiplied(q, k, v, b):
    return attend(q @ k.mT * SCALE * b + -1e4 * (1 - b), v)


def two_products(q, k, v, q2, k2):
    return attend(q @ k.mT / 3.0 + q2 @ k2.mT / 2.0, v)


def relative(q, k, v, r, m):
    return attend((q @ k.mT + q @ r.mT) * SCALE + m, v)


def blocks(q, gk, gv, lk, lv, m):
    """Blocks of queries look at global keys and at those of their block."""
    scores = torch.cat([torch.einsum("bhnkf,bhgf->bhnkg", q, gk), torch.einsum("bhnkf,bhnxf->bhnkx", q, lk)], -1)
    weights = torch.softmax(scores + m, -1)
    far = torch.einsum("bhnkg,bhgf->bhnkf", weights[..., : gk.shape[2]], gv)
    return far + torch.einsum("bhnkx,bhnxf->bhnkf", weights[..., gk.shape[2] :], lv)


def three_bands(q, a, b, c, m):
    """Each part is scaled, some are masked, before they meet."""
    parts = [q @ a.mT * SCALE, q @ b.mT * SCALE + m, q @ c.mT * SCALE]
    u, v, w = torch.softmax(torch.cat(parts, -1), -1).split([a.shape[-2], b.shape[-2], c.shape[-2]], -1)
    return w @ c + u @ a + v @ b


BLOCKS = (
    normal(B, H, N, S, D), normal(B, H, GLOBAL, D, seed=1), normal(B, H, GLOBAL, D, seed=2),
    normal(B, H, N, LOCAL, D, seed=3), normal(B, H, N, LOCAL, D, seed=4), normal(B, 1, N, 1, GLOBAL + LOCAL, seed=5),
)  # fmt: skip
BANDS = (*(normal(B, H, n, D, seed=n) for n in (S, 3, 4, 5)), normal(S, 4))
NARROW = (normal(B, H, S, 4), normal(B, H, T, 4))

IN_BLOCKS = (normal(B, H, 3, S, D), normal(B, H, 3, T, D), normal(B, H, 3, T, D))

# name -> function, inputs, a tag of the match ("" for what normal form makes plain)
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "sink": (sink, (*qkv(), normal(H)), "sink"),
    "sink in front": (sink_first, (*qkv(), normal(H)), "sink"),
    "sink and mask": (masked_sink, (*qkv(), normal(H), additive(keeps(S, T))), "sink"),
    "sink in the divisor": (sink_in_the_divisor, (*qkv(), normal(H), additive(keeps(S, T))), "sink"),
    "one more in the divisor": (one_more, qkv(), "sink"),
    "softcap": (softcap, qkv(), "softcap"),
    "softcap and mask": (masked_softcap, (*qkv(), additive(keeps(S, T))), "softcap"),
    "bias within the softcap": (bias_within_softcap, (*qkv(), normal(H, S, T)), "softcap:biased"),
    "product within the softcap": (
        product_within_softcap,
        (*qkv(), normal(B, H, T, D), additive(keeps(S, T))),
        "softcap:biased",
    ),
    "blocks before heads": (blocks_before_heads, (*IN_BLOCKS, normal(S, T)), ""),
    "head mask": (head_mask, (*qkv(), normal(H)), ""),
    "multiplied mask": (multiplied, (*qkv(), torch.ones(S, T).tril()), "mask:factor_bias"),
    "two products": (two_products, (*qkv(), *NARROW), ""),
    "content and position": (relative, (*qkv(), normal(B, H, T, D), additive(keeps(S, T))), ""),
    "blocks": (blocks, BLOCKS, ""),
    "three bands": (three_bands, BANDS, ""),
}


@one_row_in(2)
@takes_turns("dynamic")
@BOTH
@SIZES
@pytest.mark.parametrize("name", PROGRAMS)
def test_matches(name: str, training: bool, dynamic: bool) -> None:
    function, inputs, tag = PROGRAMS[name]
    given = trained(inputs, len(inputs)) if training else list(inputs)
    found = rewritten(function, given, dynamic=dynamic)
    assert found.count() == 1, found.record.near_misses
    assert not tag or tag in found.tags
    assert_agrees(function, found.run, given)


@one_row_in(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled(name: str) -> None:
    function, inputs, _ = PROGRAMS[name]
    run, coverage = compiled(function)
    with coverage:
        assert_agrees(function, run, list(inputs))
    assert coverage.count("attention") == 1, coverage.near_misses


@pytest.mark.parametrize("name", ["sink", "sink in front", "sink and mask", "head mask", "two products", "blocks"])
def test_fused(name: str) -> None:
    """In inference, one kernel and no product of its own."""
    function, inputs, _ = PROGRAMS[name]
    found = rewritten(function, inputs)
    assert found.kernels == ["flash"]
    assert "softmax" not in found.ops


@BOTH
def test_two_streams(training: bool) -> None:
    """Two attentions share both products: each gets one of its own, and nobody is in the other's way."""

    def attention(q, k, v, q2, k2, v2, m):
        a, b = q @ k.mT / 3.0, q2 @ k2.mT / 2.0
        return attend(a + b + m, v), attend(b + a + m, v2)

    inputs = (*qkv(), *NARROW, normal(B, H, T, 4, seed=1), additive(keeps(S, T)))
    given = trained(inputs, 6) if training else list(inputs)
    found = rewritten(attention, given)
    assert found.count() == 2, found.record.near_misses
    assert found.kernels == ["math" if training else "flash"] * 2  # what the mask hides is not known
    assert_agrees(attention, found.run, given)


def test_product_that_many_share_stays_a_bias() -> None:
    """Concatenated, it would be computed again for each."""

    def attention(q, k, v, q2, k2):
        shared = q2 @ k2.mT
        return [attend(q @ k.mT * s + shared, v) for s in (1.0, 2.0, 3.0)]

    inputs = (*qkv(), *NARROW)
    found = rewritten(attention, inputs)
    assert found.count() == 3
    assert "mask:bias" in found.tags
    assert_agrees(attention, found.run, inputs)


@pytest.mark.parametrize("fill", [-INF, torch.finfo(torch.float32).min], ids=["inf", "lowest"])
@BOTH
def test_row_without_keys_is_all_sink(fill: float, training: bool) -> None:
    """It is zero, not NaN: the sink takes the whole weight."""
    keep = keeps(S, T)
    keep[2] = False
    inputs = (*qkv(), normal(H), additive(keep, fill))
    given = trained(inputs, 4) if training else list(inputs)
    found = rewritten(masked_sink, given)
    assert found.count() == 1
    assert torch.equal(found.run(*inputs)[..., 2, :], torch.zeros(B, H, D))
    assert_agrees(masked_sink, found.run, given)


@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
def test_extreme_sinks(value: float) -> None:
    """Also in rows without keys, which are NaN where the sink has no weight either."""
    sinks, keep = normal(H), keeps(S, T)
    sinks[1], keep[2] = value, False
    inputs = (*qkv(), sinks, additive(keep))
    found = rewritten(masked_sink, inputs)
    assert found.kernels == ["flash"]
    assert_agrees(masked_sink, found.run, inputs)


@pytest.mark.parametrize("width", [3, D, 20])
def test_value_of_another_width(width: int) -> None:
    """The kernel wants one head size: what is narrower is filled up with zeros."""

    def attention(q, k, v, m):
        return attend((q @ k.mT * SCALE).masked_fill(~m, -INF), v)

    inputs = (*qkv()[:2], normal(B, H, T, width), keeps(S, T))
    for given in (list(inputs), trained(inputs)):
        found = rewritten(attention, given)
        assert found.kernels == ["flash"]
        assert_agrees(attention, found.run, given)


# -- weights that are wanted too


def returned(q, k, v, m):
    p = torch.softmax(q @ k.mT * SCALE + m, -1)
    return p @ v, p


def returned_in_float32(q, k, v, m):
    p = torch.softmax(q @ k.mT * SCALE + m, -1, dtype=torch.float32)
    return p.to(v.dtype) @ v, p


def returned_before_dropout(q, k, v, m):
    p = torch.softmax(q @ k.mT * SCALE + m, -1)
    return torch.dropout(p, 0.3, True) @ v, p


def returned_after_dropout(q, k, v, m):
    p = torch.dropout(torch.softmax(q @ k.mT * SCALE + m, -1), 0.3, True)
    return p @ v, p


def returned_before_value(q, k, v, m):
    p = torch.softmax(q @ k.mT * SCALE + m, -1)
    kept = p.mean(1)
    return p @ torch.tanh(v.transpose(1, 2).contiguous()).transpose(1, 2), kept


def returned_from_einsum(q, k, v, m):
    p = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * SCALE + m, -1)
    return torch.einsum("bhij,bhjd->bihd", p, v), p


def returned_in_other_dims(q, k, v, m):
    p = torch.softmax(q.flatten(0, 1) @ k.flatten(0, 1).mT + m, -1)
    return p @ v.flatten(0, 1), p.view(*q.shape[:3], -1).mean(1)


@one_row_in(2)
@takes_turns("dynamic")
@BOTH
@SIZES
@pytest.mark.parametrize(
    "function",
    [
        returned, returned_before_dropout, returned_after_dropout, returned_before_value, returned_from_einsum,
        returned_in_other_dims,
    ],
)  # fmt: skip
def test_weights_are_a_second_result(function: Any, training: bool, dynamic: bool) -> None:
    inputs = (*qkv(T, T), additive(keeps(T, T)))
    given = trained(inputs) if training else list(inputs)
    found = rewritten(function, given, dynamic=dynamic, rng="eager")
    assert found.count("sdpa_with_weights") == 1, found.record.near_misses
    torch.manual_seed(0)
    expected = function(*inputs)
    torch.manual_seed(0)
    torch.testing.assert_close(found.run(*inputs), expected)
    if function is returned:
        assert_agrees(function, found.run, given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_keep_their_dtype(dtype: torch.dtype) -> None:
    inputs = (*qkv(dtype=dtype), additive(keeps(S, T), dtype=dtype))
    found = rewritten(returned_in_float32, inputs)
    assert found.count("sdpa_with_weights") == 1, found.record.near_misses
    assert_agrees(returned_in_float32, found.run, inputs)


def test_weights_before_and_after_dropout_are_too_much() -> None:
    def attention(q, k, v):
        p = torch.softmax(q @ k.mT, -1)
        d = torch.dropout(p, 0.3, True)
        return d @ v, p, d

    found = rewritten(attention, qkv())
    assert found.count() == 0
    assert "inner-value-escapes" in found.codes


# -- what looks like it and is not


def other_query(q, p, k, r, v):
    w = torch.softmax(torch.cat([q @ k.mT, p @ r.mT], -1), -1)
    return w[..., :T] @ v + w[..., T:] @ v


def overlapping(q, k, v):
    w = torch.softmax(q @ k.mT, -1)
    return w[..., :6] @ v[..., :6, :] + w[..., 4:] @ v[..., 4:, :]


def part_left_out(q, k, v):
    w = torch.softmax(q @ k.mT, -1)
    return w[..., :4] @ v[..., :4, :] + w[..., 5:] @ v[..., 5:, :]


def another_column_dropped(q, k, v, sinks):
    return torch.softmax(torch.cat([q @ k.mT, sink_column(sinks, q)], -1), -1)[..., 1:] @ v


def other_scales(q, k, v):
    w = torch.softmax(torch.cat([q @ k.mT, q @ k.mT * 2.0], -1), -1)
    return w[..., :T] @ v + w[..., T:] @ v


LOOKALIKES = {
    "other query": (other_query, (qkv()[0], normal(B, H, S, D, seed=9), qkv()[1], qkv()[2], qkv()[2]), 0),
    "overlapping parts": (overlapping, qkv(), 0),
    "a part left out": (part_left_out, qkv(), 0),
    "another column dropped": (another_column_dropped, (*qkv(), normal(H)), 0),
    "other scales": (other_scales, qkv(), 0),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_lookalikes_stay_right(name: str) -> None:
    function, inputs, count = LOOKALIKES[name]
    found = rewritten(function, inputs)
    assert found.count() == count, found.record.applied
    assert_agrees(function, found.run, inputs)


# -- what looks like it, and is none


def wider_bias_within_softcap(q, k, v, b):
    """The bias gives scores another row of heads than queries and keys have."""
    return attend(torch.tanh((q[:, :, :1] @ k.mT + b) / 5.0) * 5.0, v)


def keys_before_blocks(q, k, v, b, factors):
    """Weights of which rows and blocks change places, not blocks and heads; `factors` are of values, one a row."""
    weights = torch.softmax(q @ k.mT * SCALE + b, -1).permute(0, 1, 3, 2, 4)
    values = v[:, :, :1] * factors
    return weights.reshape(-1, *weights.shape[-2:]) @ values.expand(-1, -1, S, -1, -1).reshape(-1, T, D)


@pytest.mark.parametrize(
    ("function", "inputs", "count"),
    [
        (wider_bias_within_softcap, (*qkv(), normal(H, S, T)), 0),
        (keys_before_blocks, (*IN_BLOCKS, normal(S, T), normal(S, 1, 1)), 0),
        (keys_before_blocks, (*IN_BLOCKS, normal(S, T), normal(1, 1, 1)), 1),
    ],
    ids=["wider bias", "rows and blocks", "rows and blocks that share values"],
)
def test_near_misses(function: Any, inputs: Any, count: int) -> None:
    found = rewritten(function, inputs)
    assert found.count() == count
    assert_agrees(function, found.run, list(inputs))
