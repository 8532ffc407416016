"""The attention rule: types, sizes, layouts, policies and numerics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.attentions import SCALE, B, D, H, S, T, additive, attend, keeps, normal, plain, qkv
from support.rewriting import assert_agrees, compiled, outcome, rewritten, trained
from support.thorough import one_row_in, takes_turns

BOTH = pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


def softmax_upcast(q, k, v):
    return F.softmax(q @ k.mT * SCALE, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def scores_upcast(q, k, v):
    return ((q @ k.mT).float() * SCALE).softmax(-1).to(v.dtype) @ v


def operands_upcast(q, k, v):
    return (q.float() @ k.float().transpose(-2, -1) * SCALE).softmax(-1).to(q.dtype) @ v


def key_upcast_after_transpose(q, k, v):
    return (q.float() @ k.transpose(-2, -1).float() / math.sqrt(D)).softmax(-1).type_as(v) @ v


def all_upcast(q, k, v):
    return (torch.softmax(q.float() @ k.float().mT * SCALE, -1) @ v.float()).to(q.dtype)


UPCASTS = (plain, softmax_upcast, scores_upcast, operands_upcast, key_upcast_after_transpose, all_upcast)


@one_row_in(2)
@takes_turns("dtype")
@HALF
@BOTH
@pytest.mark.parametrize("function", UPCASTS, ids=lambda f: f.__name__)
def test_half_precision(function: Any, dtype: torch.dtype, training: bool) -> None:
    inputs = qkv(dtype=dtype)
    given = trained(inputs) if training else list(inputs)
    found = rewritten(function, given)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, given)


@takes_turns("dtype")
@HALF
@pytest.mark.parametrize("function", UPCASTS[1:], ids=lambda f: f.__name__)
def test_half_precision_masked(function: Any, dtype: torch.dtype) -> None:
    """With a float32 mask, as models make it from a boolean one."""
    low = torch.finfo(dtype).min

    def attention(q, k, v, keep):
        mask = (1.0 - keep.to(q.dtype)) * low
        return F.softmax((q @ k.mT) * SCALE + mask, dim=-1, dtype=torch.float32).to(q.dtype) @ v

    inputs = (*qkv(dtype=dtype), keeps(B, 1, 1, T))
    found = rewritten(attention, inputs)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(attention, found.run, inputs)


@HALF
def test_float32_mask_on_half_scores(dtype: torch.dtype) -> None:
    """The sum is float32, so is the softmax."""

    def attention(q, k, v, mask):
        return torch.softmax(q @ k.mT * SCALE + mask, -1).to(v.dtype) @ v

    inputs = (*qkv(dtype=dtype), additive(keeps(S, T)))
    found = rewritten(attention, inputs)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(attention, found.run, inputs)


def test_mixed_types() -> None:
    """query and key in bfloat16, value in float32."""

    def attention(q, k, v):
        return (q @ k.mT * SCALE).softmax(-1).to(v.dtype) @ v

    q, k, v = qkv()
    inputs = (q.bfloat16(), k.bfloat16(), v)
    found = rewritten(attention, inputs)
    assert_agrees(attention, found.run, inputs)


def test_double() -> None:
    inputs = qkv(dtype=torch.float64)
    found = rewritten(plain, inputs)
    assert found.count() == 1
    torch.testing.assert_close(found.run(*inputs), plain(*inputs))


@takes_turns("dynamic")
@BOTH
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_autocast(training: bool, dynamic: bool) -> None:
    def attention(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), -1) @ v

    given = trained(qkv()) if training else list(qkv())
    run, coverage = compiled(attention, dynamic=dynamic)
    with coverage:
        ours = outcome(run, given)
    assert coverage.count("attention") == 1, coverage.near_misses
    for a, b in zip(ours, outcome(attention, given), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=5e-2, atol=2e-2)


def scaled_sum(q, k, v, b, keep):
    return ((q @ k.mT + b) / 4).masked_fill(~keep, torch.finfo(b.dtype).min).softmax(-1).masked_fill(~keep, 0.0) @ v


def scaled_choice(q, k, v, b, keep):
    return ((q @ k.mT + b) * 0.3).masked_fill(~keep, -math.inf).softmax(-1) @ v


@one_row_in(2)
@BOTH
@pytest.mark.parametrize("attention", [scaled_sum, scaled_choice])
def test_autocast_of_scores_with_a_float32_bias(attention: Any, training: bool) -> None:
    """The bias promotes the scores, which are bfloat16; the scale comes after it."""
    given = [*qkv(), normal(B, H, S, T), keeps(S, T)]
    given = [*trained(tuple(given[:4])), given[4]] if training else given
    run, coverage = compiled(attention)
    with coverage, torch.autocast("cpu", dtype=torch.bfloat16):
        ours, eager = run(*given), attention(*given)
    assert coverage.count("attention") == 1, coverage.near_misses
    torch.testing.assert_close(ours, eager, rtol=5e-2, atol=2e-2)


def test_autocast_around() -> None:
    run, coverage = compiled(plain)
    with coverage, torch.autocast("cpu", dtype=torch.bfloat16):
        ours, eager = run(*qkv()), plain(*qkv())
    assert coverage.count("attention") == 1, coverage.near_misses
    assert ours.dtype == eager.dtype == torch.bfloat16
    torch.testing.assert_close(ours, eager, rtol=5e-2, atol=2e-2)


@takes_turns("training")
@BOTH
@pytest.mark.parametrize(
    "sizes",
    [(0, H, S, T, D), (B, 0, S, T, D), (B, H, 0, T, D), (B, H, S, 0, D), (B, H, S, T, 0), (0, 0, 0, 0, 0)],
    ids=["batch", "heads", "rows", "columns", "size", "all"],
)
def test_empty(sizes: tuple[int, ...], training: bool) -> None:
    """The kernel divides by sizes: an empty one must never reach it."""
    b, h, s, t, d = sizes
    inputs = (torch.randn(b, h, s, d), torch.randn(b, h, t, d), torch.randn(b, h, t, d))

    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-2, -1) * 0.3, -1) @ v

    given = trained(inputs) if training else list(inputs)
    found = rewritten(attention, given)
    assert_agrees(attention, found.run, given)


@pytest.mark.parametrize("place", [0, 2], ids=["batch", "rows"])
def test_empty_at_run_time(place: int) -> None:
    """Compiled for any size, then called with none."""

    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-2, -1) * 0.3, -1) @ v

    run, coverage = compiled(attention, dynamic=True)
    inputs = qkv(S, S)
    with coverage:
        assert_agrees(attention, run, inputs)
        empty = tuple(x.narrow(place, 0, 0) for x in inputs)
        torch.testing.assert_close(run(*empty), attention(*empty))
    assert coverage.count("attention") >= 1


@one_row_in(2)
@BOTH
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, T), (S, 1), (1, 2)])
def test_small(rows: int, columns: int, training: bool) -> None:
    given = trained(qkv(rows, columns)) if training else list(qkv(rows, columns))
    for dynamic in (False, True):
        found = rewritten(plain, given, dynamic=dynamic)
        assert found.count() == 1, found.record.near_misses
        assert_agrees(plain, found.run, given)


LAYOUTS = {
    "heads second, as projected": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "size before rows": lambda x: x.mT.contiguous().mT,
    "every other": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    "sliced from qkv": lambda x: torch.cat([x, x, x], -1)[..., D : 2 * D],
    "one for all heads": lambda x: x[:, :1].expand(x.shape),
    "one for the batch": lambda x: x[:1].expand(x.shape),
    "offset": lambda x: torch.cat([x[:1], x])[1:],
}


@takes_turns("training")
@BOTH
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, training: bool) -> None:
    inputs = [LAYOUTS[name](x) for x in qkv()]
    given = [x.detach().requires_grad_() for x in inputs] if training else inputs
    found = rewritten(plain, given)
    assert found.count() == 1
    assert_agrees(plain, found.run, given)


@one_row_in(2)
@pytest.mark.parametrize("name", LAYOUTS)
def test_result_keeps_its_layout(name: str) -> None:
    """What a user sees has eager's strides."""
    inputs = [LAYOUTS[name](x) for x in qkv()]

    def attention(q, k, v):
        out = plain(q, k, v)
        return out, out.transpose(1, 2)

    run, coverage = compiled(attention)
    with coverage:
        ours = run(*inputs)
    assert coverage.count("attention") == 1
    for a, b in zip(ours, attention(*inputs), strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b)


def test_view_after_is_still_allowed() -> None:
    """Code that views the result relies on its layout."""

    def attention(q, k, v):
        return plain(q, k, v).view(B * H, S, D) + plain(q, k, v).transpose(1, 2).reshape(B, S, H * D).sum()

    found = rewritten(attention, qkv())
    assert found.count() >= 1
    assert_agrees(attention, found.run, qkv())


@BOTH
@pytest.mark.parametrize(("size", "slack"), [(4.0, 4.0), (30.0, 100.0)], ids=["large", "larger"])
def test_large_scores(size: float, slack: float, training: bool) -> None:
    """Saturated softmax: the error stays within a few times eager's own.

    Kernels keep the logarithm of each row's sum for the backward pass. Among scores in the thousands it rounds to 1e-4,
    and so do the weights that are computed from it again.
    """
    q, k, v = qkv(16, 32)
    inputs = (q * size, k * size, v)
    given = trained(inputs) if training else list(inputs)
    found = rewritten(plain, given)
    assert found.count() == 1
    assert_agrees(plain, found.run, given, slack=slack if training else 4.0)


@BOTH
def test_longer_than_one_block(training: bool) -> None:
    """Sizes that the kernel splits into blocks, and not evenly."""
    inputs = tuple(normal(1, 2, n, 24, seed=i) for i, n in enumerate((70, 533, 533)))

    def attention(q, k, v):
        return torch.softmax(q @ k.mT / math.sqrt(24), -1) @ v

    given = trained(inputs) if training else list(inputs)
    found = rewritten(attention, given)
    assert found.kernels == ["flash"]
    assert_agrees(attention, found.run, given)


def test_scale_known_only_when_run() -> None:
    """A 0-d tensor as scale is an operand, not a constant."""

    def attention(q, k, v, s):
        return attend(q @ k.mT * s, v)

    found = rewritten(attention, (*qkv(), torch.tensor(0.3)))
    assert found.count() == 1
    assert_agrees(attention, found.run, (*qkv(), torch.tensor(0.7)))


def test_negative_and_zero_scale() -> None:
    for scale in (-0.5, 0.0):

        def attention(q, k, v, scale=scale):
            return attend(q @ k.mT * scale, v)

        found = rewritten(attention, qkv())
        assert_agrees(attention, found.run, qkv())


def test_shared_query_key_value() -> None:
    """Self-attention without projections: one tensor three times."""

    def attention(x):
        return torch.softmax(x @ x.mT, -1) @ x

    x = normal(B, H, S, D)
    given = [x.clone().requires_grad_()]
    found = rewritten(attention, given)
    assert found.count() == 1
    assert_agrees(attention, found.run, given)


def test_two_attentions_share_scores() -> None:
    """The scores of two attentions: neither may take them from the other."""

    def attention(q, k, v):
        scores = q @ k.mT
        return torch.softmax(scores, -1) @ v, torch.softmax(scores * 2, -1) @ v

    found = rewritten(attention, qkv())
    assert_agrees(attention, found.run, qkv())


@takes_turns("training")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "readers",
    [
        lambda p, v, w: (p @ v, p @ w),
        lambda p, v, w: (p @ v, p @ w, p),
        lambda p, v, w: (p @ v, p @ (w * (p @ v).mean())),
        lambda p, v, w: (p @ v, p.double() @ w.double(), (p * 2) @ v),
        lambda p, v, w: (torch.dropout(p, 0.0, True) @ v, p @ w, p.mean(1)),
    ],
    ids=["two", "two and weights", "chain", "casts", "dropout"],
)
def test_values_share_weights(readers: Any, training: bool) -> None:
    """Several products with the same weights: one is replaced, and the others take its weights."""

    def attention(q, k, v, w):
        return readers(torch.softmax(q @ k.mT, -1), v, w)

    given = [x.requires_grad_(training) for x in (*qkv(), normal(B, H, T, D, seed=9))]
    found = rewritten(attention, given)
    assert found.count() == 1 and not found.record.fallbacks
    assert_agrees(attention, found.run, given)


def test_attention_of_attention() -> None:
    """The value of one is the result of another."""

    def attention(q, k, v):
        return plain(q, k, plain(k, k, v))

    found = rewritten(attention, qkv())
    assert found.count() == 2
    assert_agrees(attention, found.run, qkv())


@one_row_in(2)
@pytest.mark.parametrize("profit", ["always", "never", "measured"])
def test_profit(profit: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    run, coverage = compiled(plain, profit=profit)
    with coverage:
        assert_agrees(plain, run, qkv())
    # One decision: the rule's or, where that declined, the template's.
    assert coverage.count("attention") + len([m for m in coverage.declined if m.family == "attention"]) == 1
    if profit != "measured":
        assert coverage.count("attention") == (profit == "always")


def test_nan_policy_is_an_option() -> None:
    keep = keeps(S, T)
    keep[1] = False

    def attention(q, k, v, m):
        return attend(q @ k.mT * SCALE + m, v)

    inputs = (*qkv(), additive(keep))
    for nan in ("eager", "safe"):
        run, coverage = compiled(attention, nan=nan)
        with coverage:
            out = run(*inputs)
        assert coverage.count("attention") == 1
        assert bool(out.isnan().any()) == (nan == "eager")
