"""Dropout of the weights in the attention kernels: the mask is the operator's of the same seed, in every pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.thorough import one_row_in
from support.triton_attention import SMALL, Dropout, found_in, gradients, run
from support.triton_kernels import compiled

from regraft.compiler.gpu import HOPPER
from regraft.compiler.templates.attention.cpp import attention_cpp
from regraft.compiler.templates.attention.triton_backward import attention_backward
from regraft.compiler.templates.attention.triton_forward import attention_triton
from regraft.compiler.templates.attention.triton_text import UnsupportedAttentionError
from regraft.compiler.templates.attention.triton_tiles import Tile, backward_tiles, tiles

from .test_triton_forward import BF16, causal, large, local, qkv, random, scored, softcap

HALF = Dropout(0.5, 1234567890123456789)
Score = Callable[..., torch.Tensor]


def scaled(s: torch.Tensor) -> torch.Tensor:
    return s * 0.3


def biased(s: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return s * 0.25 + bias


def dropping(f: Score, dropout: Dropout) -> Score:
    """Attention of scores `f` that drops weights: in the inputs' dtype, the mask as the operator draws it."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(f(torch.matmul(q, k.transpose(-1, -2)), *more), -1)
        return torch.matmul(weights * dropout.mask(weights.shape) * dropout.kept, v)

    return attention


def agrees(f: Score, inputs: list[torch.Tensor], dropout: Dropout = HALF, tile: Tile = SMALL) -> None:
    """Assert that the result and all gradients are as near to float64 as eager's are."""
    function = dropping(f, dropout)
    gradient = random(*function(*inputs).shape, dtype=inputs[0].dtype)
    eager, exact = (passes(function, each, gradient) for each in (inputs, [x.double() for x in inputs]))
    with torch.no_grad():
        ran = run(scored(f), inputs, tile, dropout=dropout)
    ours = [ran.result, *gradients(ran, gradient, tile)[:3]]
    for mine, theirs, right in zip(ours, eager, exact, strict=True):
        allowed = 4.0 * float((theirs.double() - right).abs().max()) + 4e-6
        assert float((mine.reshape(theirs.shape).double() - right).abs().max()) <= allowed


def passes(function: Score, inputs: list[torch.Tensor], gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs[:3]]
    out = function(*leaves, *inputs[3:])
    return out.detach(), *torch.autograd.grad(out, leaves, gradient.to(out.dtype))


@one_row_in(2)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_mask_is_the_operators(p: float, fast: bool) -> None:
    agrees(scaled, qkv(2, 2, 20, 33, 16, 16), Dropout(p, -987654321987654321, fast))


@pytest.mark.parametrize("sizes", [(1, 1, 17, 16, 24, 40), (1, 2, 32, 48, 16, 16), (1, 1, 1, 1, 1, 1)])
def test_sizes(sizes: tuple[int, ...]) -> None:
    agrees(scaled, qkv(*sizes))


def test_bfloat16() -> None:
    for f in (scaled, causal, softcap):
        agrees(f, qkv(1, 2, 40, 33, 16, 16, dtype=BF16))


@one_row_in(2)
@pytest.mark.parametrize("f", [causal, local, softcap])
def test_score_functions(f: Score) -> None:
    agrees(f, qkv(1, 2, 40, 40, 16, 16), tile=Tile(16, 32, 4, 1))
    agrees(f, qkv(1, 2, 33, 70, 16, 16), tile=Tile(32, 16, 4, 1))


def test_the_gradient_of_a_bias() -> None:
    bias = random(2, 20, 30).requires_grad_()
    inputs = [*qkv(1, 2, 20, 30, 16, 16), bias]
    gradient = random(1, 2, 20, 16)
    (expected,) = torch.autograd.grad(dropping(biased, HALF)(*inputs), bias, gradient)
    with torch.no_grad():
        *_, scores = gradients(run(scored(biased), inputs, dropout=HALF), gradient)
    torch.testing.assert_close(scores.sum_to_size(bias.shape), expected)


def test_repeated_key_heads() -> None:
    def repeated(x: torch.Tensor) -> torch.Tensor:
        b, h, n, d = x.shape
        return x[:, :, None].expand(b, h, 2, n, d).reshape(b, 2 * h, n, d)

    inputs = [random(2, 4, 20, 16), random(2, 2, 30, 16), random(2, 2, 30, 16)]
    gradient = random(2, 4, 20, 16)
    result, *expected = passes(lambda q, k, v: dropping(scaled, HALF)(q, repeated(k), repeated(v)), inputs, gradient)
    with torch.no_grad():
        ran = run(lambda q, k, v: scored(scaled)(q, repeated(k), repeated(v)), inputs, dropout=HALF)
        dq, dk, dv, _ = gradients(ran, gradient)
    ours = [ran.result.reshape(result.shape), dq, dk.unflatten(1, (2, 2)).sum(2), dv.unflatten(1, (2, 2)).sum(2)]
    torch.testing.assert_close(ours, [result, *expected], rtol=1e-4, atol=1e-5)


def test_what_the_seed_alone_decides_is_computed_before_the_loop() -> None:
    attention = found_in(scored(scaled), qkv(1, 1, 64, 64, 16, 16))[0].attention
    attention = replace(HALF, fast=True).of(attention)
    backward = attention_backward(attention, SMALL).source
    for launch in (*attention_triton(attention, SMALL).launches, *backward.launches):
        before, loop = launch.text.split("for start in", 1)
        assert before.count("hash32(") == 2
        assert loop.count("hash32(") == 1


def test_places_that_32_bits_do_not_hold() -> None:
    with torch._subclasses.FakeTensorMode():
        inputs = [torch.empty(64, 64, 1024, 8) for _ in range(3)]
        attention = found_in(scored(scaled), inputs)[0].attention
    assert "tl.int64" not in attention_triton(attention, SMALL).text
    assert "program = tl.program_id(0).to(tl.int64)" in attention_triton(HALF.of(attention), SMALL).text


@pytest.mark.parametrize("kept", [float("inf"), 0.0, float("nan")])
def test_factors_without_an_inverse_are_refused(kept: float) -> None:
    attention = replace(found_in(scored(scaled), qkv(1, 1, 20, 20, 16, 16))[0].attention, kept=kept)
    for make in (attention_triton, attention_backward):
        with pytest.raises(UnsupportedAttentionError, match="multiplied with"):
            make(attention)


def test_the_kernel_for_cpus_refuses_dropout() -> None:
    attention = HALF.of(found_in(scored(scaled), qkv(1, 1, 20, 20, 16, 16))[0].attention)
    with pytest.raises(ValueError, match="drops no weights"):
        attention_cpp(attention, 8)


def test_default_tiles_fit_the_gpu() -> None:
    attention = HALF.of(found_in(scored(scaled), large(16, 12, 512, 64))[0].attention)
    sources: list[Any] = [attention_triton(attention, tiles(attention, HOPPER)[0], statistics=True)]
    sources.append(attention_backward(attention, backward_tiles(attention, HOPPER)[0]).source)
    for made in (kernel for source in sources for kernel in compiled(source, 90)):
        assert made.metadata.shared <= HOPPER.shared_bytes
