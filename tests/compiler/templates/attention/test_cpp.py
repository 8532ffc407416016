"""The attention kernel against eager and float64."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import one_row_in

from regraft.compiler.codegen.cpp import target
from regraft.compiler.templates import TemplateKernel

from ..fusing import Fused, assert_as_good_as_eager, fuse

F32 = torch.float32


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.3, -1), v)


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / 3 + mask, -1), v)


def hidden(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)).masked_fill(mask, -math.inf)
    return torch.matmul(torch.softmax(scores, -1), v)


def random(*sizes: int, dtype: torch.dtype = F32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator).to(dtype)


def qkv(b: int, h: int, m: int, n: int, d: int, e: int, dtype: torch.dtype = F32) -> list[torch.Tensor]:
    return [random(b, h, m, d, dtype=dtype), random(b, h, n, d, dtype=dtype), random(b, h, n, e, dtype=dtype)]


@one_row_in(2)
@pytest.mark.parametrize(
    "sizes",
    [(1, 2, 128, 128, 64, 64), (2, 3, 1, 77, 20, 24), (2, 2, 5, 1, 8, 8), (1, 1, 1, 1, 1, 1), (1, 2, 37, 49, 7, 5),
     (1, 1, 30, 700, 80, 33), (1, 1, 100, 2100, 64, 64), (1, 1, 8, 2060, 64, 64)],
)  # fmt: skip
def test_sizes(sizes: tuple[int, ...]) -> None:
    assert_as_good_as_eager(attention, qkv(*sizes))


@settings(max_examples=8, deadline=None)
@given(st.tuples(*(st.integers(1, limit) for limit in (2, 3, 40, 70, 40, 40))))
def test_any_sizes(sizes: tuple[int, ...]) -> None:
    assert_as_good_as_eager(attention, qkv(*sizes))


@pytest.mark.parametrize("sizes", [(1, 2, 33, 65, 16, 16), (1, 1, 7, 40, 9, 9)])
def test_bfloat16_is_nearer_to_float64_than_eager(sizes: tuple[int, ...]) -> None:
    assert_as_good_as_eager(attention, qkv(*sizes, dtype=torch.bfloat16), slack=1.0)


def test_bfloat16_result_keeps_nan() -> None:
    q, k, v = qkv(1, 1, 20, 20, 16, 16, torch.bfloat16)
    q[0, 0, 3, 2] = math.nan
    assert_as_good_as_eager(attention, [q, k, v])


@one_row_in(2)
@pytest.mark.parametrize("shape", [(1, 1, 20, 30), (2, 1, 1, 30), (2, 3, 20, 1), (3, 1, 30), (30,), ()])
def test_masks_broadcast(shape: tuple[int, ...]) -> None:
    assert_as_good_as_eager(masked, [*qkv(2, 3, 20, 30, 16, 16), random(*shape)])


def test_strided_masks_are_read_where_they_are() -> None:
    bias = random(20, 30, 3).permute(2, 0, 1)
    assert_as_good_as_eager(masked, [*qkv(2, 3, 20, 30, 16, 16), bias])


def test_fully_masked_rows_are_nan_as_in_eager() -> None:
    mask = torch.zeros(20, 30, dtype=torch.bool)
    mask[4], mask[5, 3:] = True, True
    inputs = [*qkv(1, 2, 20, 30, 16, 16), mask]
    assert hidden(*inputs)[0, 0, 4].isnan().all()
    assert_as_good_as_eager(hidden, inputs)


def test_rows_masked_in_one_chunk_of_keys_only() -> None:
    mask = torch.zeros(6, 2600, dtype=torch.bool)
    mask[0, :2000], mask[1, 300:], mask[2] = True, True, True
    assert_as_good_as_eager(hidden, [*qkv(1, 1, 6, 2600, 64, 64), mask])


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_spread_as_in_eager(where: int, number: float) -> None:
    inputs = qkv(1, 2, 20, 30, 16, 16)
    inputs[where][0, 1, 7, 3] = number
    assert_as_good_as_eager(attention, inputs)


def test_large_scores_do_not_overflow() -> None:
    q, k, v = qkv(1, 2, 20, 30, 16, 16)
    assert_as_good_as_eager(attention, [q * 1e3, k * 1e3, v], slack=8.0)


def test_softcap() -> None:
    def softcap(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.tanh(torch.matmul(q, k.transpose(-1, -2)) / 5.0) * 5.0
        return torch.matmul(torch.softmax(scores, -1), v)

    assert_as_good_as_eager(softcap, qkv(1, 2, 40, 40, 16, 16))


def test_alibi_and_causal_from_positions() -> None:
    def alibi(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(q, k.transpose(-1, -2))
        distance = torch.arange(k.shape[2])[None, :] - torch.arange(q.shape[2])[:, None]
        scores = (scores + slopes[:, None, None] * distance).masked_fill(distance > 0, -math.inf)
        return torch.matmul(torch.softmax(scores, -1), v)

    assert_as_good_as_eager(alibi, [*qkv(1, 2, 33, 33, 16, 16), torch.tensor([0.5, 0.25])])


@pytest.mark.parametrize("shifted", [False, True])
def test_sinks(shifted: bool) -> None:
    def sinks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = torch.cat([scores, sink.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], -1)], -1)
        if shifted:
            scores = scores - scores.max(dim=-1, keepdim=True).values
        return torch.matmul(torch.softmax(scores, -1)[..., :-1], v)

    inputs = [*qkv(2, 3, 20, 30, 16, 16), torch.tensor([0.5, -math.inf, 30.0])]
    assert_as_good_as_eager(sinks, inputs)


def test_repeated_key_heads_are_read_in_place() -> None:
    def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        def repeat(x: torch.Tensor) -> torch.Tensor:
            b, h, n, d = x.shape
            return x[:, :, None].expand(b, h, 2, n, d).reshape(b, 2 * h, n, d)

        return attention(q, repeat(k), repeat(v))

    inputs = [random(2, 4, 20, 16), random(2, 2, 30, 16), random(2, 2, 30, 16)]
    assert_as_good_as_eager(grouped, inputs)
    assert not any("clone" in name or "expand" in name for name in fuse(grouped, inputs).operators)


def test_heads_split_and_merged_without_copies() -> None:
    def projected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.view(2, -1, 3, 16).transpose(1, 2) for x in (q, k, v))
        return attention(q, k, v).transpose(1, 2).contiguous().view(2, -1, 48)

    inputs = [random(2, 20, 48), random(2, 30, 48), random(2, 30, 48)]
    assert_as_good_as_eager(projected, inputs)
    names = fuse(projected, inputs).operators
    assert not any("bmm" in name or "clone" in name or "transpose" in name for name in names), names


def test_two_dimensions() -> None:
    assert_as_good_as_eager(attention, [random(20, 16), random(30, 16), random(30, 8)])


def test_fused_operator_of_torch() -> None:
    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]

    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=0.5)[0]

    for function in (sdpa, causal):
        inputs = qkv(2, 2, 30, 30, 16, 16)
        fused = fuse(function, inputs)
        assert fused.count == 1
        torch.testing.assert_close(fused.graph_module(*inputs), function(*inputs))


def test_fused_operator_of_torch_with_fully_masked_rows() -> None:
    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)[0]

    mask = random(30, 40)
    mask[3], mask[4, 5:] = -math.inf, -math.inf
    inputs = [*qkv(2, 2, 30, 40, 16, 16), mask]
    fused = fuse(sdpa, inputs)
    assert fused.count == 1
    torch.testing.assert_close(fused.graph_module(*inputs), sdpa(*inputs))


def causal_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)[0]


def spelled_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ v


@one_row_in(2)
@pytest.mark.parametrize("sizes", [(1, 2, 37, 37, 8, 8), (1, 1, 100, 30, 8, 8), (1, 1, 30, 100, 8, 8),
                                   (1, 1, 2200, 2200, 64, 64)])  # fmt: skip
def test_causal(sizes: tuple[int, ...]) -> None:
    inputs = qkv(*sizes)
    fused = fuse(causal_sdpa, inputs)
    assert "reach" in kernel_of(fused).source
    torch.testing.assert_close(fused.graph_module(*inputs), spelled_out(*inputs))


def test_causal_masks_from_positions_are_no_memory() -> None:
    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        i, j = torch.arange(q.shape[2]).unsqueeze(-1), torch.arange(k.shape[2])
        seen = torch.full((1, 1), True) & (j <= i)
        scores = torch.matmul(q, k.transpose(-1, -2))
        return torch.matmul(torch.softmax(torch.where(seen, scores, -math.inf), -1), v)

    inputs = qkv(1, 2, 40, 40, 16, 16)
    fused = fuse(causal, inputs)
    assert [name for name in fused.operators if "arange" in name or "le" in name] == []
    assert "reach" in kernel_of(fused).source
    assert_as_good_as_eager(causal, inputs)


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_hidden_keys_still_spread_nan_where_eager_does(where: int, number: float) -> None:
    inputs = qkv(1, 1, 40, 40, 8, 8)
    inputs[where][0, 0, 30, 3] = number
    fused = fuse(causal_sdpa, inputs)
    torch.testing.assert_close(fused.graph_module(*inputs), spelled_out(*inputs), equal_nan=True)


def test_any_operation_on_scores() -> None:
    def odd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bucket: torch.Tensor) -> torch.Tensor:
        scores = torch.lgamma(torch.matmul(q, k.transpose(-1, -2))).clamp(-3, 3)
        scores = torch.where(bucket % 3 == 1, scores.sin(), torch.nn.functional.gelu(scores))
        return torch.matmul(torch.softmax(scores, -1), v)

    assert_as_good_as_eager(odd, [*qkv(1, 2, 20, 33, 16, 16), torch.arange(-10, 23)], slack=16.0)


def test_half_precision_masks() -> None:
    inputs = [*qkv(1, 2, 20, 30, 16, 16), random(20, 30, dtype=torch.float16)]
    torch.testing.assert_close(fuse(masked, inputs).graph_module(*inputs), masked(*inputs))


def kernel_of(fused: Fused) -> TemplateKernel:
    return next(n.target for n in fused.graph_module.graph.nodes if isinstance(n.target, TemplateKernel))


def test_results_do_not_depend_on_threads() -> None:
    inputs = qkv(2, 3, 128, 128, 64, 64)
    fused, before = fuse(attention, inputs), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = fused.graph_module(*inputs)
        torch.set_num_threads(2)
        assert torch.equal(fused.graph_module(*inputs), alone)
    finally:
        torch.set_num_threads(before)


def test_a_kernel_survives_pickling_and_finds_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = qkv(1, 2, 20, 30, 16, 16)
    kernel = kernel_of(fuse(attention, inputs))
    again = pickle.loads(pickle.dumps(kernel))
    assert (again.name, again.template, again.__name__) == (kernel.name, "attention", kernel.name)
    monkeypatch.setattr("regraft.compiler.codegen.cpp.compiler._compile", lambda *_: pytest.fail("compiled again"))
    assert torch.equal(again(*inputs), kernel(*inputs))


def test_a_kernel_takes_other_strides() -> None:
    inputs = qkv(1, 2, 20, 30, 16, 16)
    kernel = kernel_of(fuse(attention, inputs))
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    torch.testing.assert_close(kernel(*strided).view(1, 2, 20, 16), attention(*inputs))


@one_row_in(2)
@pytest.mark.parametrize("name", ["avx2", "generic", "scalar"])
def test_narrower_vectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.compiler.templates.common.cpp_call.host_target", lambda: target(name))
    inputs = [*qkv(1, 2, 21, 30, 18, 18), random(21, 30)]
    assert_as_good_as_eager(masked, inputs)
    torch.testing.assert_close(fuse(causal_sdpa, inputs[:3]).graph_module(*inputs[:3]), spelled_out(*inputs[:3]))
