"""Spellings of one program have one normal form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.normal import form

B, H, S, T, D = 2, 4, 6, 10, 8
SCALE = 1 / math.sqrt(D)
LOWEST = torch.finfo(torch.float32).min

ATTENTION = "matmul(softmax(mul(matmul(%0, permute(%1, [0, 1, 3, 2])), 0.353553), -1), %2)"


def heads(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes)


def qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return heads(B, H, S, D), heads(B, H, T, D), heads(B, H, T, D)


def soft(scores: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores, -1)


def merged(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, *x.shape[-2:])


SCALES = {
    "div": lambda q, k: (q @ k.mT) / math.sqrt(D),
    "mul": lambda q, k: (q @ k.mT) * SCALE,
    "number first": lambda q, k: SCALE * (q @ k.mT),
    "on q": lambda q, k: (q * SCALE) @ k.mT,
    "on k": lambda q, k: q @ (k * SCALE).mT,
    "on k after transpose": lambda q, k: q @ (k.transpose(-2, -1) / math.sqrt(D)),
    "half on each": lambda q, k: (q * SCALE**0.5) @ (k * SCALE**0.5).transpose(2, 3),
    "half on each by division": lambda q, k: (q / D**0.25) @ (k / D**0.25).mT,
    "twice": lambda q, k: (q @ k.mT) * 2 * (SCALE / 2),
    "0-d tensor": lambda q, k: (q @ k.mT) * torch.tensor(SCALE),
    "0-d divisor": lambda q, k: (q @ k.mT) / torch.sqrt(torch.tensor(float(D))),
    "full": lambda q, k: (q @ k.mT) / torch.full([], math.sqrt(D)),
    "one element": lambda q, k: (q @ k.mT) * torch.full([1], SCALE),
    "full as big as scores": lambda q, k: (q @ k.mT) * torch.full([B, H, S, T], SCALE),
    "rsqrt": lambda q, k: (q @ k.mT) * torch.rsqrt(torch.tensor(float(D))),
    "negative twice": lambda q, k: (-q @ k.mT) * -SCALE,
    "on q before a view": lambda q, k: (q * SCALE).reshape(B, H, S, D) @ k.mT,
    "einsum": lambda q, k: torch.einsum("bhsd,bhtd->bhst", q, k) * SCALE,
    "einsum, other letters": lambda q, k: torch.einsum("...id,...jd->...ij", q * SCALE, k),
    "einsum, k first": lambda q, k: torch.einsum("bhtd,bhsd->bhst", k, q) / math.sqrt(D),
    "einsum, transposed result": lambda q, k: torch.einsum("bhsd,bhtd->bhts", q, k).mT * SCALE,
    "bmm": lambda q, k: torch.bmm(merged(q), merged(k).mT).view(B, H, S, T) * SCALE,
    "bmm, scale before view": lambda q, k: (torch.bmm(merged(q), merged(k).mT) * SCALE).view(B, H, S, T),
    "bmm, scale on q": lambda q, k: torch.bmm(merged(q * SCALE), merged(k).mT).unflatten(0, (B, H)),
    "baddbmm": lambda q, k: torch.baddbmm(torch.zeros(1, 1, 1), merged(q), merged(k).mT, alpha=SCALE).view(B, H, S, T),
    "baddbmm, beta 0": lambda q, k: torch.baddbmm(
        torch.empty(B * H, S, T), merged(q), merged(k).mT, beta=0, alpha=SCALE
    ).view(B, H, S, T),
    "k first": lambda q, k: (k @ q.mT).mT * SCALE,
    "k first, scaled": lambda q, k: ((k * SCALE) @ q.mT).transpose(-1, -2),
    "size as number": lambda q, k: (q @ k.mT) * q.size(-1) ** -0.5,
    "contiguous": lambda q, k: (q.contiguous() @ k.mT.contiguous()).contiguous() * SCALE,
    "movedim": lambda q, k: q @ k.movedim(-1, -2) * SCALE,
    "swapaxes": lambda q, k: q @ k.swapaxes(2, 3) * SCALE,
    "permute": lambda q, k: q @ k.permute(0, 1, 3, 2) * SCALE,
    "permute twice": lambda q, k: q @ k.permute(0, 3, 1, 2).permute(0, 2, 1, 3) * SCALE,
    "unsqueeze": lambda q, k: (q.unsqueeze(0) @ k.mT.unsqueeze(0)).squeeze(0) * SCALE,
    "float": lambda q, k: (q.float() @ k.mT.to(torch.float32)).type_as(q) * SCALE,
    "double and back": lambda q, k: (q.double().float() @ k.mT) * SCALE,
    "expand": lambda q, k: q.expand(B, H, S, D) @ k.mT.expand(-1, -1, -1, -1) * SCALE,
    "with an empty cache": lambda q, k: q @ torch.cat([torch.empty(0), k, k[:, :, :0]], -2).mT * SCALE,
    "adding nothing": lambda q, k: (q + 0) @ k.mT * SCALE + torch.zeros(S, T),
}


@pytest.mark.parametrize("spelling", SCALES)
def test_scores(spelling: str) -> None:
    assert form(lambda q, k, v: soft(SCALES[spelling](q, k)) @ v, *qkv()) == ATTENTION


def _by_hand(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def _logarithm(s: torch.Tensor, keepdim: bool) -> torch.Tensor:
    """The logarithm of the sum of exponents, computed by hand."""
    m = s.amax(-1, keepdim=keepdim)
    return m + torch.log(torch.exp(s - (m if keepdim else m[..., None])).sum(-1, keepdim=keepdim))


SOFTMAXES = {
    "logarithm by hand": lambda s: torch.exp(s - _logarithm(s, True)),
    "logarithm by hand, dim restored": lambda s: torch.exp(s - _logarithm(s, False)[..., None]),
    "method": lambda x: x.softmax(-1),
    "dim 3": lambda x: x.softmax(3),
    "functional": lambda x: F.softmax(x, dim=-1),
    "dtype": lambda x: F.softmax(x, dim=-1, dtype=torch.float32),
    "special": lambda x: torch.special.softmax(x, -1),
    "_softmax": lambda x: torch.ops.aten._softmax.default(x, 3, False),
    "log and exp": lambda x: x.log_softmax(-1).exp(),
    "special log": lambda x: torch.special.log_softmax(x, 3).exp(),
    "by hand": _by_hand,
    "by hand with max": lambda x: (e := (x - x.max(-1, keepdim=True).values).exp()) / e.sum(dim=-1, keepdim=True),
    "by hand with max detached": lambda x: (e := (x - x.amax(3, True).detach()).exp()) / e.sum(3, True),
    "by hand without max": lambda x: (e := x.exp()) / e.sum(-1, True),
    "by hand, unsqueezed": lambda x: (e := x.exp()) / e.sum(-1).unsqueeze(-1),
    "by hand, None": lambda x: (e := x.exp()) / e.sum(-1)[..., None],
    "by hand, reciprocal": lambda x: (e := x.exp()) * e.sum(-1, keepdim=True).reciprocal(),
    "by hand, nothing to divide by": lambda x: (e := (x - x.amax(-1, True)).exp()) / (e.sum(-1, True) + 1e-9),
    "by hand, nothing, unsqueezed": lambda x: (e := (x - x.amax(-1, True)).exp()) / (e.sum(-1) + 1e-12)[..., None],
    "by hand, bounded": lambda x: (e := (x - x.max(-1, True)[0]).exp()) / e.sum(-1, True).clamp(min=1e-6),
    "by hand, at least": lambda x: (e := (x - x.amax(-1, True)).exp()) / e.sum(-1, True).clamp_min(1e-20),
    "logsumexp": lambda x: (x - x.logsumexp(-1, keepdim=True)).exp(),
    "transposed": lambda x: x.mT.softmax(-2).mT,
    "flattened": lambda x: x.reshape(-1, T).softmax(-1).reshape(B, H, S, T),
    "heads merged": lambda x: x.flatten(0, 1).softmax(2).view(B, H, S, T),
    "double": lambda x: x.double().softmax(-1).float(),
    "shifted": lambda x: (x - x.max(-1, keepdim=True)[0]).softmax(-1),
    "shifted while small": lambda x: ((y := x / 32) - y.amax(-1).unsqueeze(-1)).mul(32).softmax(-1),
    "upcast": lambda x: x.to(torch.float64).softmax(-1).to(x.dtype),
}


@pytest.mark.parametrize("spelling", SOFTMAXES)
def test_softmax(spelling: str) -> None:
    assert form(lambda q, k, v: SOFTMAXES[spelling](q @ k.mT / math.sqrt(D)) @ v, *qkv()) == ATTENTION


def test_weights_that_multiply_no_values_stay_a_layer() -> None:
    """A gate by a softmax, and a bias of other scores."""
    x, w = torch.randn(B, S, D), torch.randn(S, D)
    assert "linear(%0, %1)" in form(lambda x, w: torch.softmax(F.linear(x, w), -1) * x.sum(), x, w)
    assert "linear(%0, %1)" in form(lambda x, w: torch.softmax(x @ x.mT + F.linear(x, w), -1) @ x, x, w)


def test_a_logarithm_with_another_shift_stays() -> None:
    """exp(x - (n + log(sum(exp(x - m))))) is a softmax only for n = m."""
    x, n = torch.randn(B, S, T), torch.randn(B, S, 1)
    text = form(lambda x, n: torch.exp(x - (n + torch.log(torch.exp(x - x.amax(-1, True)).sum(-1, True)))), x, n)
    assert "softmax" not in text


PRODUCTS = {
    "matmul": lambda p, v: torch.matmul(p, v),
    "transposed": lambda p, v: (v.mT @ p.mT).mT,
    "einsum": lambda p, v: torch.einsum("bhst,bhtd->bhsd", p, v),
    "einsum, v first": lambda p, v: torch.einsum("bhtd,bhst->bhsd", v, p),
    "bmm": lambda p, v: torch.bmm(merged(p), merged(v)).view(B, H, S, D),
    "eval dropout": lambda p, v: F.dropout(p, 0.1, False) @ v,
    "dropout of nothing": lambda p, v: F.dropout(p, 0.0, True) @ v,
    "scaled v": lambda p, v: p @ (v * 0.5) * 2,
}


@pytest.mark.parametrize("spelling", PRODUCTS)
def test_second_product(spelling: str) -> None:
    assert form(lambda q, k, v: PRODUCTS[spelling](soft(q @ k.mT * SCALE), v), *qkv()) == ATTENTION


LATE = {
    "divided": lambda e, v: (e @ v) / e.sum(-1, keepdim=True),
    "unsqueezed": lambda e, v: torch.einsum("bhst,bhtd->bhsd", e, v) / e.sum(-1)[..., None],
    "reciprocal": lambda e, v: (e @ v) * e.sum(-1, keepdim=True).reciprocal(),
    "one over": lambda e, v: (e @ v) * (1 / e.sum(-1, keepdim=True)),
}


@pytest.mark.parametrize("spelling", LATE)
def test_division_after_the_second_product(spelling: str) -> None:
    def function(q, k, v):
        scores = q @ k.mT * SCALE
        return LATE[spelling](torch.exp(scores - scores.amax(-1, keepdim=True)), v)

    assert form(function, *qkv()) == ATTENTION


def test_a_division_by_another_sum_stays() -> None:
    def function(q, k, v):
        e = torch.exp(q @ k.mT * SCALE)
        return (e @ v) / (e * e).sum(-1, keepdim=True)

    assert "softmax" not in form(function, *qkv())


BOOLEAN = "matmul(softmax(where(%3, mul(matmul(%0, permute(%1, [0, 1, 3, 2])), 0.353553), -inf), -1), %2)"
NEVER = float("-inf")

MASKS = {
    "masked_fill": lambda s, m: s.masked_fill(~m, NEVER),
    "masked_fill, logical_not": lambda s, m: s.masked_fill(torch.logical_not(m), NEVER),
    "masked_fill, == 0": lambda s, m: s.masked_fill(m == 0, NEVER),
    "masked_fill, == False": lambda s, m: s.masked_fill(m == False, NEVER),  # noqa: E712
    "masked_fill by tensor": lambda s, m: s.masked_fill(~m, torch.tensor(NEVER)),
    "where": lambda s, m: torch.where(m, s, NEVER),
    "where by tensor": lambda s, m: torch.where(m, s, torch.tensor(NEVER)),
    "where by full": lambda s, m: torch.where(m, s, torch.full_like(s, NEVER)),
    "where the other way": lambda s, m: torch.where(~m, NEVER, s),
    "where of an expanded mask": lambda s, m: torch.where(m.expand(B, H, S, T), s, NEVER),
    "not not": lambda s, m: s.masked_fill(~(~(~m)), NEVER),
    "and all true": lambda s, m: torch.where(m & torch.ones_like(m), s, NEVER),
    "cast and compared": lambda s, m: s.masked_fill(m.float() < 0.5, NEVER),
    "int and compared": lambda s, m: s.masked_fill(m.long() != 1, NEVER),
    "1 - mask": lambda s, m: s.masked_fill((1 - m.long()).bool(), NEVER),
    "1.0 - mask": lambda s, m: s.masked_fill((1.0 - m.to(s.dtype)).to(torch.bool), NEVER),
    "mask of an additive mask": lambda s, m: torch.where(torch.where(m, 0.0, LOWEST) == 0, s, NEVER),
    "before the scale": lambda s, m: s.masked_fill(~m, NEVER),
    "logical_and with itself inverted": lambda s, m: s.masked_fill(~(m & torch.ones(T, dtype=torch.bool)), NEVER),
    "with heads merged": lambda s, m: torch.where(
        m.expand(B, H, S, T).reshape(B * H, S, T), s.reshape(B * H, S, T), NEVER
    ).view(B, H, S, T),
}


@pytest.mark.parametrize("spelling", MASKS)
def test_boolean_mask(spelling: str) -> None:
    mask = torch.rand(B, 1, S, T) > 0.3
    got = form(lambda q, k, v, m: soft(MASKS[spelling](q @ k.mT * SCALE, m)) @ v, *qkv(), mask)
    assert got == BOOLEAN


MASKED_AGAIN = (
    "where(any(%3, -1, True), matmul(softmax(where(%3, mul(matmul(%0, permute(%1, [0, 1, 3, 2])), 0.353553), "
    f"{LOWEST:g}), -1), %2), 0)"
)

WEIGHTS = {
    "masked_fill": lambda w, m: w.masked_fill(~m, 0.0),
    "where": lambda w, m: torch.where(m, w, 0.0),
    "masked_fill by tensor": lambda w, m: w.masked_fill(m == False, torch.tensor(0.0)),  # noqa: E712
    "then eval dropout": lambda w, m: F.dropout(w.masked_fill(~m, 0), 0.1, False),
    "in double": lambda w, m: w.masked_fill(~m, 0).double().float(),
}


@pytest.mark.parametrize("spelling", WEIGHTS)
def test_weights_masked_again(spelling: str) -> None:
    mask = torch.rand(B, 1, S, T) > 0.3

    def attend(q, k, v, m):
        return WEIGHTS[spelling](soft((q @ k.mT * SCALE).masked_fill(~m, LOWEST)), m) @ v

    assert form(attend, *qkv(), mask) == MASKED_AGAIN


def test_weights_masked_again_where_rows_may_be_empty() -> None:
    """A row with nothing to keep would be NaN inside, so it keeps everything: its sum is dropped anyway."""
    mask = torch.rand(B, 1, S, T) > 0.3
    got = form(lambda q, k, v, m: soft((q @ k.mT).masked_fill(~m, NEVER)).masked_fill(~m, 0) @ v, *qkv(), mask)
    opened = "logical_or(%3, logical_not(any(%3, -1, True)))"
    scores = f"where({opened}, matmul(%0, permute(%1, [0, 1, 3, 2])), -inf)"
    assert got == f"where(any(%3, -1, True), matmul(softmax({scores}, -1), %2), 0)"


def test_weights_masked_again_by_a_mask_made_again() -> None:
    def attend(q, k, v, m):
        scores = (q @ k.mT * SCALE).masked_fill(m == torch.tensor(False), NEVER)
        return soft(scores).masked_fill(m == torch.tensor(False), 0) @ v

    assert form(attend, *qkv(), torch.ones(B, 1, S, T, dtype=torch.long)).startswith("where(any(ne(%3, ")


def test_dropped_weights_masked_before() -> None:
    mask = torch.rand(B, 1, S, T) > 0.3

    def attend(q, k, v, m):
        return F.dropout(soft((q @ k.mT).masked_fill(~m, NEVER)).masked_fill(~m, 0), 0.1, True) @ v

    assert form(attend, *qkv(), mask).startswith("where(any(%3, -1, True), matmul(dropout(softmax(where(")


def test_two_boolean_masks_are_one() -> None:
    def twice(q, k, v, m, n):
        s = (q @ k.mT * SCALE).masked_fill(~n, LOWEST)
        return soft(s.masked_fill(~m, LOWEST)) @ v

    def once(q, k, v, m, n):
        return soft(torch.where(m & n, q @ k.mT * SCALE, LOWEST)) @ v

    masks = torch.rand(B, 1, S, T) > 0.3, torch.rand(S, T) > 0.3
    assert form(twice, *qkv(), *masks) == form(once, *qkv(), *masks)


ADDITIVE = "matmul(softmax(add(mul(matmul(%0, permute(%1, [0, 1, 3, 2])), 0.353553), %3), -1), %2)"

BIASES = {
    "add": lambda s, m: s + m,
    "mask first": lambda s, m: m + s,
    "iadd out of place": lambda s, m: torch.add(s, m),
    "alpha 1": lambda s, m: torch.add(s, m, alpha=1),
    "sub of a negation": lambda s, m: s - (m * -1),
    "expanded": lambda s, m: s + m.expand(B, H, S, T),
    "in two halves": lambda s, m: s + m + torch.zeros(S, T),
    "with heads merged": lambda s, m: (s.view(B * H, S, T) + m.expand(B, H, S, T).reshape(B * H, S, T)).view(
        B, H, S, T
    ),
    "in five dims": lambda s, m: (s.view(1, B, H, S, T) + m.unsqueeze(0)).view(B, H, S, T),
    "contiguous": lambda s, m: s + m.contiguous(),
    "in windows": lambda s, m: (s.view(B, H, 2, 3, 5, 2) + m.expand(B, H, S, T).reshape(B, H, 2, 3, 5, 2)).view(
        s.shape
    ),
}


@pytest.mark.parametrize("spelling", BIASES)
def test_additive_mask(spelling: str) -> None:
    mask = torch.randn(B, 1, S, T)
    assert form(lambda q, k, v, m: soft(BIASES[spelling](q @ k.mT * SCALE, m)) @ v, *qkv(), mask) == ADDITIVE


def test_two_additive_masks_are_one() -> None:
    masks = torch.randn(B, 1, S, T), torch.randn(H, S, T)
    forms = {
        form(f, *qkv(), *masks)
        for f in (
            lambda q, k, v, m, n: soft(q @ k.mT + m + n) @ v,
            lambda q, k, v, m, n: soft(m + q @ k.mT + n) @ v,
            lambda q, k, v, m, n: soft(q @ k.mT + (m + n)) @ v,
        )
    }
    assert len(forms) == 1


def test_bias_before_the_scale_is_scaled_with_the_scores() -> None:
    mask = torch.randn(B, 1, S, T)
    before = form(lambda q, k, v, m: soft((q @ k.mT + m) * 0.5) @ v, *qkv(), mask)
    after = form(lambda q, k, v, m: soft((q @ k.mT) * 0.5 + m * 0.5) @ v, *qkv(), mask)
    assert before == after


X = (B, S, H * D)
SELF = (
    "reshape(permute(matmul(softmax(matmul(permute(reshape(%0, [2, 6, 4, 8]), [0, 2, 1, 3]), "
    "permute(reshape(%1, [2, 6, 4, 8]), [0, 2, 3, 1])), -1), "
    "permute(reshape(%2, [2, 6, 4, 8]), [0, 2, 1, 3])), [0, 2, 1, 3]), [2, 6, 32])"
)


def _four(q, k, v):
    q, k, v = (x.view(B, -1, H, D).transpose(1, 2) for x in (q, k, v))
    return (soft(q @ k.transpose(2, 3)) @ v).transpose(1, 2).contiguous().view(B, S, -1)


def _three(q, k, v):
    q, k, v = (x.view(B, S, H, D).transpose(1, 2).reshape(B * H, S, D) for x in (q, k, v))
    out = torch.bmm(soft(torch.bmm(q, k.transpose(1, 2))), v)
    return out.view(B, H, S, D).transpose(1, 2).reshape(B, S, H * D)


def _three_masked(q, k, v):
    q, k, v = (x.view(B, S, H, D).transpose(1, 2).reshape(B * H, S, D) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(B, H, S, S) + torch.zeros(B, 1, S, S)
    out = torch.bmm(soft(scores.view(B * H, S, S)), v)
    return out.view(B, H, S, D).transpose(1, 2).reshape(B, S, H * D)


def _einsum(q, k, v):
    q, k, v = (x.unflatten(-1, (H, D)) for x in (q, k, v))
    return torch.einsum("bhqk,bkhd->bqhd", soft(torch.einsum("bqhd,bkhd->bhqk", q, k)), v).flatten(2)


def _einsum_heads_third(q, k, v):
    q, k, v = (x.unflatten(-1, (H, D)) for x in (q, k, v))
    return torch.einsum("bqhk,bkhd->bqhd", soft(torch.einsum("bqhd,bkhd->bqhk", q, k)), v).flatten(2)


def _transposed_keys(q, k, v):
    q, v = (x.view(B, S, H, D).permute(0, 2, 1, 3) for x in (q, v))
    k = k.view(B, S, H, D).permute(0, 2, 3, 1)
    return (soft(torch.matmul(q, k)) @ v).permute(0, 2, 1, 3).flatten(2, 3)


LAYOUTS = (_four, _three, _three_masked, _einsum, _einsum_heads_third, _transposed_keys)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_head_layout(layout) -> None:
    assert form(layout, heads(*X), heads(*X), heads(*X)) == SELF


@pytest.mark.parametrize("path", [None, [0, 1, 0, 1, 0, 1], [2, 3, 1, 2, 0, 1], [0, 1, 2, 0, 0, 1], [1, 2, 0, 2, 1, 0]])
def test_products_of_several_operands_follow_their_path(path: list[int] | None) -> None:
    """It names the operands of each product, earlier results last: torch gives one where opt_einsum is installed."""
    function = lambda *operands: torch.ops.aten.einsum.default("ab,cb,cd,ed->ae", operands, path=path)  # noqa: E731
    operands = [heads(3, 4), heads(5, 4), heads(5, 6), heads(2, 6)]
    found = form(function, *operands)
    assert "einsum" not in found and found.count("matmul") == 3
    torch.testing.assert_close(torch.compile(function, backend="regraft")(*operands), function(*operands))


def _repeat(x: torch.Tensor, how: str) -> torch.Tensor:
    b, h, t, d = x.shape
    if how == "expand":
        return x[:, :, None].expand(b, h, 2, t, d).reshape(b, h * 2, t, d)
    if how == "interleave":
        return x.repeat_interleave(2, dim=1)
    if how == "repeat":
        return x.unsqueeze(2).repeat(1, 1, 2, 1, 1).flatten(1, 2)
    return torch.stack((x, x), 2).flatten(1, 2)


@pytest.mark.parametrize("how", ["interleave", "repeat"])
def test_repeated_heads(how: str) -> None:
    shared = heads(B, H // 2, T, D), heads(B, H // 2, T, D)

    def attend(how):
        return lambda q, k, v: soft(q @ _repeat(k, how).mT) @ _repeat(v, how)

    q = heads(B, H, S, D)
    assert form(attend(how), q, *shared) == form(attend("expand"), q, *shared)


GROUPS = {
    "einsum": lambda q, k, v: torch.einsum("bghqk,bgkd->bghqd", soft(torch.einsum("bghqd,bgkd->bghqk", q, k)), v),
    "keys first": lambda q, k, v: torch.einsum("bgkd,bghqk->bghqd", v, soft(torch.einsum("bgkd,bghqd->bghqk", k, q))),
    "groups third": lambda q, k, v: torch.einsum(
        "bghqk,bgkd->bqghd", soft(torch.einsum("bqghd,bgkd->bghqk", q.permute(0, 3, 1, 2, 4), k)), v
    ).permute(0, 2, 3, 1, 4),
}


@pytest.mark.parametrize("spelling", GROUPS)
def test_queries_in_groups(spelling: str) -> None:
    """Queries viewed as groups, keys and values as they are: (b, g, h, q, d) against (b, g, k, d)."""
    given = heads(B, 2, 3, S, D), heads(B, 2, T, D), heads(B, 2, T, D)

    keys = f"permute(reshape(%1, [1, {B}, 2, {T}, {D}]), [1, 2, 0, 4, 3])"
    values = f"reshape(%2, [{B}, 2, 1, {T}, {D}])"
    assert form(GROUPS[spelling], *given) == f"matmul(softmax(matmul(%0, {keys}), -1), {values})"


def test_queries_of_heads_that_the_batch_shares() -> None:
    """The keys' own layout decides, not that of the einsum, and a layer's weight may be the keys."""
    text = form(
        lambda q, k, v: torch.einsum("bsht,bthd->bshd", torch.einsum("shd,bthd->bsht", q, k).softmax(-1), v),
        heads(S, H, D), heads(B, T, H, D), heads(B, T, H, D),
    )  # fmt: skip
    assert "matmul(softmax(matmul(" in text
    assert "matmul(softmax(matmul(" in form(
        lambda x, k, v: F.softmax(F.linear(x, k), -1) @ v, heads(B, S, D), heads(T, D), heads(T, D)
    )


SHARED = {
    "heads before rows": ("bhsd,btd->bhst", "bhst,btd->bhsd", (B, H, S, D)),
    "rows before heads": ("bshd,btd->bsht", "bsht,btd->bshd", (B, S, H, D)),
    "heads first among scores": ("bshd,btd->bhst", "bhst,btd->bshd", (B, S, H, D)),
}


@pytest.mark.parametrize("spelling", SHARED)
def test_heads_that_share_a_key(spelling: str) -> None:
    first, second, sizes = SHARED[spelling]
    got = form(
        lambda q, k, v: torch.einsum(second, torch.einsum(first, q, k).softmax(-1), v),
        heads(*sizes), heads(B, T, D), heads(B, T, D),
    )  # fmt: skip
    keys = f"permute(reshape(%1, [1, {B}, {T}, {D}]), [1, 0, 3, 2])"
    assert got == f"matmul(softmax(matmul(%0, {keys}), -1), reshape(%2, [{B}, 1, {T}, {D}]))"


CASTS = {
    "dtype": lambda s: s.softmax(-1, dtype=torch.float32).to(torch.bfloat16),
    "float": lambda s: s.float().softmax(-1).to(s.dtype),
    "plain": lambda s: s.softmax(-1),
    "type_as": lambda s: torch.softmax(s.float(), dim=-1).type_as(s),
    "double": lambda s: torch.softmax(s, -1, dtype=torch.float64).to(s.dtype),
}


@pytest.mark.parametrize("spelling", CASTS)
def test_upcast_softmax(spelling: str) -> None:
    q, k, v = (x.bfloat16() for x in qkv())
    assert form(lambda q, k, v: CASTS[spelling](q @ k.mT * SCALE) @ v, q, k, v) == ATTENTION


def test_an_upcast_that_stays_is_kept() -> None:
    q, k, v = (x.bfloat16() for x in qkv())
    got = form(lambda q, k, v: torch.softmax((q @ k.mT).float(), -1) @ v.float(), q, k, v)
    assert got == "matmul(softmax(to(matmul(%0, permute(%1, [0, 1, 3, 2])), torch.float32), -1), to(%2, torch.float32))"


@pytest.mark.parametrize(
    "add",
    [
        lambda s, m: s.__iadd__(m),
        lambda s, m: (s + m).to(s.dtype),
        lambda s, m: (m + s).type_as(s),
        lambda s, m: s + m.to(s.dtype),
    ],
)
def test_a_wider_mask_in_the_type_of_scores(add: Callable[..., Any]) -> None:
    q, k, v = (x.bfloat16() for x in qkv())
    got = form(lambda q, k, v, m: add(q @ k.mT, m).softmax(-1) @ v, q, k, v, torch.randn(B, 1, S, T))
    scores = "matmul(%0, permute(%1, [0, 1, 3, 2]))"
    assert got == f"matmul(softmax(add({scores}, to(%3, torch.bfloat16)), -1), %2)"


DROPPED = "matmul(dropout(softmax(mul(matmul(%0, permute(%1, [0, 1, 3, 2])), 0.353553), -1), 0.25, True), %2)"

DROPOUTS = {
    "functional": lambda p: F.dropout(p, 0.25),
    "native": lambda p: torch.native_dropout(p, 0.25, True)[0],
    "merged": lambda p: F.dropout(p.view(B * H, S, T), 0.25).view(B, H, S, T),
    "rand_like >": lambda p: p * (torch.rand_like(p) > 0.25) / 0.75,
    "rand_like >=, cast": lambda p: p * (torch.rand_like(p) >= 0.25).to(p.dtype) / (1 - 0.25),
    "rand <": lambda p: p * (torch.rand(B, H, S, T) < 0.75) * (1 / 0.75),
    "where": lambda p: torch.where(torch.rand_like(p) < 0.25, 0.0, p) / 0.75,
    "masked_fill": lambda p: p.masked_fill(torch.rand_like(p) < 0.25, 0.0) / 0.75,
    "mask scaled first": lambda p: p * ((torch.rand_like(p) > 0.25).float() / 0.75),
    "bernoulli": lambda p: p * torch.bernoulli(torch.full_like(p, 0.75)) / 0.75,
    "dropped ones": lambda p: p * F.dropout(torch.ones_like(p), 0.25),
}


@pytest.mark.parametrize("spelling", DROPOUTS)
def test_dropout(spelling: str) -> None:
    assert form(lambda q, k, v: DROPOUTS[spelling](soft(q @ k.mT * SCALE)) @ v, *qkv()) == DROPPED
