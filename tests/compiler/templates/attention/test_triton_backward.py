"""The backward pass of the attention kernel in Triton: interpreted against autograd, and compiled for GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.thorough import one_row_in, takes_turns
from support.triton_attention import SMALL, Dropout, found_in, gradients, run
from support.triton_kernels import compiled

from regraft.compiler.gpu import AMPERE, HOPPER
from regraft.compiler.templates.attention import triton_text as attention_text
from regraft.compiler.templates.attention.triton_backward import attention_backward
from regraft.compiler.templates.attention.triton_text import UnsupportedAttentionError
from regraft.compiler.templates.attention.triton_tiles import Tile, backward_tiles

from .test_triton_forward import (
    BF16,
    F32,
    REALISTIC,
    alibi,
    causal,
    local,
    masked,
    plain,
    qkv,
    random,
    scored,
    softcap,
)


def agrees(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], slack: float = 4.0, **options: Any
) -> None:
    """Assert that gradients are as near to those in float64 as eager's are."""
    with torch.no_grad():
        ran = run(function, inputs)
    gradient = random(*function(*inputs).shape, dtype=inputs[0].dtype)
    ours = gradients(ran, gradient, **options)
    eager, exact = autograd(function, inputs, gradient), autograd(function, [_double(x) for x in inputs], gradient)
    for mine, theirs, right in zip(ours[:3], eager, exact, strict=True):
        mine = mine.reshape(theirs.shape)
        assert torch.equal(mine.isnan(), theirs.isnan())
        if not theirs.isnan().all():
            allowed = slack * float((theirs.double() - right).nan_to_num().abs().max()) + 4e-6
            assert float((mine.double() - right).nan_to_num().abs().max()) <= allowed


def _double(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def autograd(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], gradient: torch.Tensor) -> Any:
    leaves = [x.detach().clone().requires_grad_() for x in inputs[:3]]
    out = function(*leaves, *inputs[3:])
    return torch.autograd.grad(out, leaves, gradient.to(out.dtype))


@pytest.mark.parametrize("sizes", [(1, 2, 20, 33, 16, 16), (2, 1, 17, 16, 24, 40), (1, 1, 1, 1, 1, 1)])
def test_sizes(sizes: tuple[int, ...]) -> None:
    agrees(plain, qkv(*sizes))


def test_bfloat16() -> None:
    agrees(plain, qkv(1, 2, 20, 33, 16, 16, dtype=BF16), slack=2.0)


def test_tiles_that_are_not_square() -> None:
    for tile in (Tile(32, 16, 4, 1), Tile(16, 32, 4, 2)):
        agrees(scored(local), qkv(1, 1, 70, 70, 16, 16), tile=tile)


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("f", [causal, local], ids=["causal", "local"])
@pytest.mark.parametrize("sizes", [(40, 40), (50, 20), (20, 50)])
def test_hidden_keys_are_left_out(f: Callable[..., Any], sizes: tuple[int, int], dtype: torch.dtype) -> None:
    if sizes == (50, 20) and f is local:
        pytest.skip("rows without any key: NaN everywhere")
    agrees(scored(f), qkv(1, 2, *sizes, 8, 8, dtype=dtype))


@pytest.mark.parametrize("past", [-3, 5])
def test_queries_that_look_at_all_keys_are_computed_without_a_mask(past: int) -> None:
    def before(s: torch.Tensor) -> torch.Tensor:
        i, j = torch.arange(s.shape[-2]).unsqueeze(-1), torch.arange(s.shape[-1])
        return torch.where(j <= 2 * i + past, s * 0.2, -100.0 if past < 0 else -math.inf)

    for tile in (SMALL, Tile(16, 32, 4, 1), Tile(32, 16, 4, 1)):
        agrees(scored(before), qkv(1, 1, 70, 61, 16, 16, dtype=BF16), tile=tile)


def test_programs_of_long_and_short_loops_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_text, "_TURNS", 6)
    agrees(scored(causal), qkv(1, 5, 40, 40, 16, 16))
    source = attention_backward(found_in(scored(causal), qkv(1, 5, 40, 40, 16, 16))[0].attention, SMALL).source
    assert source.text.count("turns = tl.minimum(5 - turn, 2)") == 2


def test_level_scores_have_one_number_for_maximum_and_sum() -> None:
    bias = random(32, 32, dtype=BF16)
    for function, dtype, more, level in (
        (scored(causal), BF16, [], True), (scored(causal), F32, [], False), (scored(softcap), BF16, [], True),
        (masked, BF16, [bias], False),
    ):  # fmt: skip
        attention = found_in(function, [*qkv(1, 2, 32, 32, 16, 16, dtype=dtype), *more])[0].attention
        assert ("share" in attention_backward(attention).source.text) != level


def test_score_functions() -> None:
    agrees(scored(softcap), qkv(1, 2, 20, 40, 16, 16))
    agrees(scored(softcap), qkv(1, 2, 20, 40, 16, 16, dtype=BF16))
    agrees(scored(alibi), [*qkv(1, 2, 33, 33, 16, 16), torch.tensor([0.5, 0.25])])
    agrees(masked, [*qkv(1, 2, 20, 40, 16, 16), random(2, 20, 40)])
    agrees(scored(lambda s: torch.sigmoid(s) * s.abs() - 1 / (1 + s.exp())), qkv(1, 1, 20, 40, 16, 16))


@pytest.mark.parametrize("shape", [(2, 3, 20, 30), (3, 20, 30), (2, 1, 1, 30)])
def test_biases(shape: tuple[int, ...]) -> None:
    bias = random(*shape).requires_grad_()
    inputs = [*qkv(2, 3, 20, 30, 16, 16), bias]
    gradient = random(2, 3, 20, 16)
    (expected,) = torch.autograd.grad(masked(*inputs), bias, gradient)
    with torch.no_grad():
        *_, scores = gradients(run(masked, inputs), gradient)
    torch.testing.assert_close(scores.sum_to_size(shape), expected)


@pytest.mark.parametrize("lowest", [-math.inf, -1e9, torch.finfo(torch.float32).min])
def test_fully_masked_rows(lowest: float) -> None:
    bias = torch.zeros(20, 40)
    bias[4], bias[6, :20] = lowest, lowest
    agrees(masked, [*qkv(1, 2, 20, 40, 16, 16), bias])


def test_repeated_key_heads_have_a_gradient_for_each_use() -> None:
    def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        def repeat(x: torch.Tensor) -> torch.Tensor:
            b, h, n, d = x.shape
            return x[:, :, None].expand(b, h, 2, n, d).reshape(b, 2 * h, n, d)

        return plain(q, repeat(k), repeat(v))

    inputs, gradient = [random(2, 4, 20, 16), random(2, 2, 30, 16), random(2, 2, 30, 16)], random(2, 4, 20, 16)
    with torch.no_grad():
        dq, dk, dv, _ = gradients(run(grouped, inputs), gradient)
    ours = dq, dk.unflatten(1, (2, 2)).sum(2), dv.unflatten(1, (2, 2)).sum(2)
    torch.testing.assert_close(ours, autograd(grouped, inputs, gradient), rtol=1e-4, atol=1e-5)


def test_heads_split_and_merged_without_copies() -> None:
    def projected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.view(2, -1, 3, 16).transpose(1, 2) for x in (q, k, v))
        return plain(q, k, v).transpose(1, 2).contiguous().view(2, -1, 48)

    inputs, gradient = [random(2, 20, 48), random(2, 30, 48), random(2, 30, 48)], random(2, 20, 48)
    with torch.no_grad():
        *found, _ = gradients(run(projected, inputs), gradient)
    ours = tuple(x.transpose(1, 2).reshape(2, -1, 48) for x in found)
    torch.testing.assert_close(ours, autograd(projected, inputs, gradient), rtol=1e-4, atol=1e-5)


def sinks(f: Callable[..., torch.Tensor], rows: bool = False) -> Callable[..., torch.Tensor]:
    """Attention with one more score, of each head or of each row."""

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor, *more: torch.Tensor
    ) -> torch.Tensor:
        scores = f(torch.matmul(q, k.transpose(-1, -2)), *more)
        sink = sink if rows else sink.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], -1)
        return torch.matmul(torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1], v)

    return attention


SINKS = {
    "scaled": (lambda s: s * 0.25, []),
    "base e": (lambda s: s * 1.0, []),
    "causal": (causal, []),
    "bias": (lambda s, bias: s * 0.25 + bias, [random(20, 30)]),
}


@one_row_in(2)
@pytest.mark.parametrize("name", SINKS)
def test_sinks(name: str) -> None:
    f, more = SINKS[name]
    inputs = [*qkv(2, 3, 20, 30, 16, 16), torch.tensor([0.5, 3.0, -math.inf]), *more]
    agrees(sinks(f), inputs)
    agrees(sinks(f), [x.to(BF16) for x in inputs])
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    gradient = random(2, 3, 20, 16)
    expected = torch.autograd.grad(sinks(f)(*leaves), leaves[3], gradient)[0]
    with torch.no_grad():
        *_, ours = gradients(run(sinks(f), inputs), gradient)
    torch.testing.assert_close(ours.sum((0, 2)), expected, rtol=1e-4, atol=1e-5)


def test_sinks_of_every_row_with_dropout() -> None:
    dropout, inputs = Dropout(0.5, 99), [*qkv(1, 2, 20, 30, 16, 16), random(1, 2, 20, 1)]
    gradient = random(1, 2, 20, 16)

    def dropping(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        scores = torch.cat([torch.matmul(q, k.transpose(-1, -2)) * 0.25, sink], -1)
        weights = torch.softmax(scores, -1)[..., :-1]
        return torch.matmul(weights * dropout.mask(weights.shape) * dropout.kept, v)

    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(dropping(*leaves), leaves, gradient)
    with torch.no_grad():
        dq, dk, dv, _, dsink = gradients(run(sinks(lambda s: s * 0.25, True), inputs, dropout=dropout), gradient)
    ours = [dq, dk, dv, dsink.unsqueeze(-1)]
    for mine, right in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine.reshape(right.shape), right, rtol=1e-4, atol=1e-5)


def test_there_is_no_gradient_of_no_sink() -> None:
    attention = found_in(plain, qkv(1, 1, 20, 20, 16, 16))[0].attention
    with pytest.raises(ValueError, match="no sink"):
        attention_backward(attention, sinks=True)


@pytest.mark.parametrize("lowest", [-math.inf, -1e9, torch.finfo(torch.float32).min])
def test_fully_hidden_rows(lowest: float) -> None:
    mask = torch.zeros(20, 40, dtype=torch.bool)
    mask[4], mask[6, :20] = True, True
    agrees(scored(lambda s, mask: (s * 0.25).masked_fill(mask, lowest)), [*qkv(1, 2, 20, 40, 16, 16), mask])


def test_functions_without_a_derivative_are_refused() -> None:
    attention = found_in(scored(torch.lgamma), qkv(1, 1, 20, 20, 16, 16))[0].attention
    with pytest.raises(UnsupportedAttentionError, match="lgamma"):
        attention_backward(attention)


@takes_turns("gpu")
@pytest.mark.parametrize("gpu", [HOPPER, AMPERE], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize("name", ["bert", "causal", "gemma", "wide"])
def test_default_tiles_fit_the_gpu(name: str, gpu: Any) -> None:
    function, inputs = REALISTIC[name]
    attention = found_in(function, inputs)[0].attention
    tile = backward_tiles(attention, gpu)[0]
    for made in compiled(attention_backward(attention, tile).source, gpu.capability):
        assert made.metadata.shared <= gpu.shared_bytes
