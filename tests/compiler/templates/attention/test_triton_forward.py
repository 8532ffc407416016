"""The attention kernel in Triton: interpreted against eager and float64, and compiled for GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.thorough import one_row_in, takes_turns
from support.triton_attention import SMALL, agrees, found_in, found_on_gpu, run, run_on_gpu
from support.triton_kernels import compiled
from torch._subclasses import FakeTensorMode

from regraft.compiler.gpu import AMPERE, HOPPER
from regraft.compiler.templates.attention.triton_backward import attention_backward
from regraft.compiler.templates.attention.triton_forward import attention_triton
from regraft.compiler.templates.attention.triton_text import UnsupportedAttentionError
from regraft.compiler.templates.attention.triton_tiles import Tile, tiles

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def random(*sizes: int, dtype: torch.dtype = F32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator).to(dtype)


def qkv(b: int, h: int, m: int, n: int, d: int, e: int, dtype: torch.dtype = F32) -> list[torch.Tensor]:
    return [random(b, h, m, d, dtype=dtype), random(b, h, n, d, dtype=dtype), random(b, h, n, e, dtype=dtype)]


def scored(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Attention with `f` of scores and of what follows q, k and v."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return torch.matmul(torch.softmax(f(torch.matmul(q, k.transpose(-1, -2)), *more), -1), v)

    return attention


def positions(s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(s.shape[-2]).unsqueeze(-1), torch.arange(s.shape[-1])


def causal(s: torch.Tensor) -> torch.Tensor:
    i, j = positions(s)
    return torch.where(j <= i, s * 0.2, -math.inf)


def local(s: torch.Tensor) -> torch.Tensor:
    i, j = positions(s)
    return (s * 0.2).masked_fill((j > i) | (j < i - 17), -math.inf)


def alibi(s: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    i, j = positions(s)
    return (s + slopes[:, None, None] * (j - i)).masked_fill(j > i, -math.inf)


def relative(s: torch.Tensor, table: torch.Tensor, bucket: torch.Tensor) -> torch.Tensor:
    return s + table[bucket].permute(2, 0, 1)


def softcap(s: torch.Tensor) -> torch.Tensor:
    return torch.tanh(s / 5.0) * 5.0


plain = scored(lambda s: s * 0.3)
masked = scored(lambda s, mask: s / 3 + mask)
hidden = scored(lambda s, mask: s.masked_fill(mask, -math.inf))
BUCKETS = (torch.arange(20)[:, None] - torch.arange(30)).abs().clamp(max=6)


# -- sizes and dtypes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes",
    [(2, 3, 20, 33, 16, 16), (1, 2, 17, 16, 24, 40), (1, 1, 16, 20, 64, 64), (1, 1, 5, 7, 80, 80),
     (1, 1, 20, 17, 128, 128), (1, 2, 3, 1, 8, 8), (1, 1, 1, 1, 1, 1), (1, 1, 1, 40, 33, 7)],
)  # fmt: skip
def test_sizes(sizes: tuple[int, ...]) -> None:
    agrees(plain, qkv(*sizes))


@pytest.mark.parametrize("sizes", [(1, 2, 20, 33, 16, 16), (1, 1, 18, 40, 80, 24)])
def test_bfloat16_is_as_near_to_float64_as_eager(sizes: tuple[int, ...]) -> None:
    agrees(plain, qkv(*sizes, dtype=BF16), slack=2.0)


def test_float16() -> None:
    inputs = qkv(1, 2, 20, 33, 24, 16, dtype=F16)
    wide = [x.float() for x in inputs]
    ran = run(plain, wide, half=F16)
    assert ran.result.dtype == F16
    torch.testing.assert_close(ran.result.reshape(1, 2, 20, 16).float(), plain(*wide), rtol=2e-3, atol=2e-3)


def test_larger_tiles_and_several_stages() -> None:
    agrees(plain, qkv(1, 2, 40, 70, 16, 16), tile=Tile(32, 64, 4, 2))


def test_two_dimensions() -> None:
    agrees(plain, [random(20, 16), random(30, 16), random(30, 8)])


# -- score functions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 20, 30), (2, 1, 1, 30), (2, 3, 20, 1), (30,), ()])
def test_masks_broadcast(shape: tuple[int, ...]) -> None:
    agrees(masked, [*qkv(2, 3, 20, 30, 16, 16), random(*shape)])


def test_strided_masks_in_half_precision() -> None:
    bias = random(20, 30, 3, dtype=BF16).permute(2, 0, 1)
    agrees(masked, [*qkv(2, 3, 20, 30, 16, 16, dtype=BF16), bias], slack=2.0)


def test_truth_values_as_masks() -> None:
    keep = torch.arange(30) % 3 > 0
    agrees(scored(lambda s, keep: torch.where(keep, s, -math.inf)), [*qkv(2, 3, 20, 30, 16, 16), keep])


@one_row_in(2)
@pytest.mark.parametrize("f", [causal, local], ids=["causal", "local"])
@pytest.mark.parametrize("sizes", [(40, 40), (50, 20), (20, 50)])
def test_hidden_keys_are_left_out(f: Callable[..., Any], sizes: tuple[int, int]) -> None:
    ran = agrees(scored(f), qkv(1, 2, *sizes, 8, 8))
    assert "whole = " in ran.source.text
    assert ("begin = " in ran.source.text) == (f is local)


def test_hidden_keys_are_not_read() -> None:
    inputs = qkv(1, 1, 32, 64, 8, 8)
    expected = scored(causal)(*inputs)
    inputs[1][:, :, 48:] = inputs[2][:, :, 48:] = math.nan
    torch.testing.assert_close(run(scored(causal), inputs).result.reshape(expected.shape), expected)


def test_alibi() -> None:
    agrees(scored(alibi), [*qkv(1, 2, 33, 33, 16, 16), torch.tensor([0.5, 0.25])])


def test_relative_bias_from_a_table() -> None:
    agrees(scored(relative), [*qkv(2, 3, 20, 30, 16, 16), random(7, 3), BUCKETS])


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_softcap(dtype: torch.dtype) -> None:
    agrees(scored(softcap), qkv(1, 2, 20, 40, 16, 16, dtype=dtype))


def test_any_operation_on_scores() -> None:
    def odd(s: torch.Tensor, bucket: torch.Tensor) -> torch.Tensor:
        s = torch.lgamma(s).clamp(-3, 3)
        return torch.where(bucket % 3 == 1, s.sin(), torch.nn.functional.gelu(s))

    agrees(scored(odd), [*qkv(1, 2, 20, 33, 16, 16), torch.arange(-10, 23)], slack=16.0)


@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_sinks(scale: float) -> None:
    def sinks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(q, k.transpose(-1, -2)) * scale
        scores = torch.cat([scores, sink.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], -1)], -1)
        return torch.matmul(torch.softmax(scores, -1)[..., :-1], v)

    agrees(sinks, [*qkv(2, 3, 20, 30, 16, 16), torch.tensor([0.5, -math.inf, 30.0])])


def test_fused_operator_of_torch() -> None:
    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)[0]

    mask = random(20, 40)
    mask[3], mask[4, 5:] = -math.inf, -math.inf
    inputs = [*qkv(2, 2, 20, 40, 16, 16), mask]
    ran = run(sdpa, inputs)
    expected = sdpa(*inputs)
    assert not expected[:, :, 3].any()
    torch.testing.assert_close(ran.result, expected)


# -- special values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowest", [-math.inf, torch.finfo(F32).min], ids=["nan", "uniform"])
@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_fully_masked_rows_are_eagers(lowest: float, scale: float) -> None:
    mask = torch.zeros(20, 40, dtype=torch.bool)
    mask[4], mask[5, 3:], mask[6, :20] = True, True, True
    f = scored(lambda s, mask: (s * scale).masked_fill(mask, lowest))
    inputs = [*qkv(1, 2, 20, 40, 16, 16), mask]
    assert f(*inputs)[0, 0, 4].isnan().all() == (lowest == -math.inf)
    agrees(f, inputs)


def test_lowest_biases_give_uniform_rows() -> None:
    bias = torch.zeros(20, 40)
    bias[4], bias[6, :20] = torch.finfo(F32).min, torch.finfo(F32).min
    agrees(masked, [*qkv(1, 2, 20, 40, 16, 16), bias])


@pytest.mark.parametrize("lowest", [-math.inf, torch.finfo(F32).min, torch.finfo(F32).max, -1e9])
def test_masks_of_keys_alone(lowest: float) -> None:
    mask = random(2, 1, 1, 40)
    mask[0, ..., 25:], mask[1] = lowest, lowest
    ran = agrees(scored(lambda s, mask: s * 0.25 + mask), [*qkv(2, 2, 20, 40, 16, 16), mask])
    assert "softmax_step(x, top, total, 1.0)" in ran.source.text


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_nan_and_infinities_spread_as_in_eager(where: int, number: float) -> None:
    inputs = qkv(1, 1, 20, 30, 16, 16)
    inputs[where][0, 0, 7, 3] = number
    agrees(plain, inputs)


def test_large_scores_do_not_overflow() -> None:
    q, k, v = qkv(1, 1, 20, 30, 16, 16)
    agrees(plain, [q * 1e3, k * 1e3, v], slack=8.0)


@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_maxima_and_sums_of_rows(scale: float) -> None:
    inputs = qkv(2, 3, 20, 30, 16, 16)
    ran = run(scored(lambda s: s * scale), inputs)
    expected = torch.logsumexp(inputs[0] @ inputs[1].transpose(-1, -2) * scale, -1)
    top, total = ran.statistics
    torch.testing.assert_close(top * (1.0 if scale == 1.0 else math.log(2.0)) + total.log(), expected)


# -- strides ----------------------------------------------------------------------------------------------------------


def test_repeated_key_heads_are_read_in_place() -> None:
    def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        def repeat(x: torch.Tensor) -> torch.Tensor:
            b, h, n, d = x.shape
            return x[:, :, None].expand(b, h, 2, n, d).reshape(b, 2 * h, n, d)

        return plain(q, repeat(k), repeat(v))

    inputs = [random(2, 4, 20, 16), random(2, 2, 30, 16), random(2, 2, 30, 16)]
    ran = agrees(grouped, inputs)
    assert [b.sizes for b in ran.attention.reads] == [tuple(x.shape) for x in inputs]


def test_heads_split_and_merged_without_copies() -> None:
    def projected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.view(2, -1, 3, 16).transpose(1, 2) for x in (q, k, v))
        return plain(q, k, v).transpose(1, 2).contiguous().view(2, -1, 48)

    agrees(projected, [random(2, 20, 48), random(2, 30, 48), random(2, 30, 48)])


def test_columns_far_apart() -> None:
    q, k, v = (x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in qkv(1, 2, 20, 30, 16, 8))
    agrees(plain, [q, k, v])


# -- the source -------------------------------------------------------------------------------------------------------


def test_equal_attentions_have_one_source() -> None:
    first, second = (found_in(plain, qkv(1, 2, 20, 30, 16, 16))[0].attention for _ in range(2))
    other = found_in(plain, qkv(1, 2, 20, 31, 16, 16))[0].attention
    assert attention_triton(first, SMALL).text == attention_triton(second, SMALL).text
    assert attention_triton(first, SMALL).launches[0].name != attention_triton(other, SMALL).launches[0].name


def test_buffers_that_32_bits_cannot_reach() -> None:
    with FakeTensorMode():
        inputs = [torch.empty(100, 64, 4096, 64) for _ in range(3)]
        attention = found_in(plain, inputs)[0].attention
    assert compiled(attention_triton(attention), 90)
    assert "program = tl.program_id(0).to(tl.int64)" in attention_triton(attention).text


def test_float64_is_refused() -> None:
    attention = found_in(plain, qkv(1, 2, 20, 30, 16, 16))[0].attention
    double = replace(attention.q, buffer=replace(attention.q.buffer, dtype=torch.float64))
    with pytest.raises(UnsupportedAttentionError, match="float64"):
        attention_triton(replace(attention, q=double))


# -- compiled ---------------------------------------------------------------------------------------------------------


def empty(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype)


def large(b: int, h: int, n: int, d: int, dtype: torch.dtype = BF16) -> list[torch.Tensor]:
    return [empty(b, h, n, d, dtype=dtype) for _ in range(3)]


REALISTIC = {
    "bert": (masked, [*large(16, 12, 512, 64), empty(16, 1, 1, 512)]),
    "causal": (scored(causal), large(2, 16, 1024, 128)),
    "vit": (plain, large(8, 12, 197, 64)),
    "swin": (masked, [*large(64, 4, 49, 32), empty(4, 49, 49)]),
    "wide": (plain, large(1, 8, 1024, 80)),
    "t5": (scored(relative), [*large(2, 8, 512, 64), empty(32, 8), torch.zeros(512, 512, dtype=torch.int64)]),
    "gemma": (scored(softcap), large(1, 8, 1024, 256)),
    "float32": (plain, large(2, 12, 512, 64, dtype=F32)),
}


@one_row_in(2)
@pytest.mark.parametrize("gpu", [HOPPER, AMPERE], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize("name", REALISTIC)
def test_default_tiles_fit_the_gpu(name: str, gpu: Any) -> None:
    function, inputs = REALISTIC[name]
    attention = found_in(function, inputs)[0].attention
    (made,) = compiled(attention_triton(attention, tiles(attention, gpu)[0], statistics=True), gpu.capability)
    assert made.metadata.shared <= gpu.shared_bytes
    products = "wgmma.mma_async" if gpu is HOPPER else "mma.sync"
    assert products in made.asm["ptx"] or name == "float32"


# -- products with a bias in one call ---------------------------------------------------------------------------------


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Position bias as a row for each head, and a causal mask of the lowest number, which is added."""
    i = torch.arange(q.shape[1], device=q.device)
    mask = torch.where(i <= i.unsqueeze(1), 0.0, torch.finfo(torch.float32).min).to(q.dtype)
    scores = torch.baddbmm(row, q, k.transpose(1, 2), beta=1.0, alpha=0.25)
    return torch.bmm(torch.softmax(scores + mask, -1, dtype=torch.float32).to(v.dtype), v)


def sloped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same with a row that is computed of positions."""
    slopes = torch.pow(0.5, torch.arange(1, q.shape[0] + 1, device=q.device))
    row = slopes.unsqueeze(1) * torch.arange(k.shape[1], device=q.device)
    return biased(q, k, v, row.unsqueeze(1).to(q.dtype))


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("sizes", [(6, 1, 40), (6, 40, 40), (1, 1, 40), (40,), (1,)])
def test_products_with_a_bias(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    agrees(biased, [*(random(6, 40, 16, dtype=dtype) for _ in range(3)), random(*sizes, dtype=dtype)])


def test_slopes_are_computed_and_hidden_keys_left_out() -> None:
    inputs = [random(6, 40, 16) for _ in range(3)]
    torch.testing.assert_close(run_on_gpu(sloped, inputs), sloped(*inputs))
    found = found_on_gpu(sloped, inputs)
    assert len(found.attention.reads) == 3
    assert "whole = " in attention_triton(found.attention).text


@pytest.mark.parametrize("capability", [80, 90])
def test_products_with_a_bias_compile(capability: int) -> None:
    found = found_on_gpu(sloped, [torch.empty(16, 512, 64, dtype=BF16) for _ in range(3)])
    assert compiled(attention_triton(found.attention, statistics=True), capability)
    assert compiled(attention_backward(found.attention).source, capability)


@pytest.mark.parametrize("keys, parts", [(49, 1), (300, 2)])
def test_columns_are_one_part_beside_one_block_of_keys(keys, parts):
    """Triton removes a loop that runs once, and multiplies two parts wrongly then, which only a GPU shows."""
    attention = found_in(scored(lambda s: s * 0.2), qkv(2, 2, 20, keys, 80, 80, BF16))[0].attention
    text = attention_triton(attention, Tile(64, 64, 4, 3)).text
    assert f"acc{parts - 1}" in text and f"acc{parts}" not in text
