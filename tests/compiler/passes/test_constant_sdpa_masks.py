"""Masks of attention calls in the source: dropped where they mask nothing, laid out where kernels want rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.thorough import takes_turns
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import regraft
from regraft.compiler.passes.constant_sdpa_masks import simplify_sdpa_masks
from regraft.rewrites.graph import arguments, op_name

aten = torch.ops.aten


def heads(*sizes, device="cpu"):
    return [torch.randn(2, 3, n, 8, device=device) for n in sizes]


def positions(n):
    return torch.arange(n)


def nothing(q, k, v):
    keep = (positions(q.shape[-2])[:, None] >= 0).expand(2, 1, q.shape[-2], k.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def nothing_added(q, k, v):
    keep = (positions(q.shape[-2])[:, None] >= 0).expand(2, 1, q.shape[-2], k.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.where(keep, 0.0, -torch.inf), scale=0.3)


def causal(q, k, v):
    keep = positions(k.shape[-2])[None, :] <= positions(q.shape[-2])[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def told(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


CASES = {
    "nothing": (nothing, (5, 7, 7), {"none": 1}),
    "nothing added": (nothing_added, (5, 7, 7), {"none": 1}),
    "causal": (causal, (6, 6, 6), {"causal": 1}),
    "causal, not square": (causal, (5, 7, 7), {}),
    "told": (told, (6, 6, 6), {}),
}


@takes_turns("training")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("training", [False, True])
def test_masks_that_are_known(name, training):
    function, sizes, expected = CASES[name]
    torch.compiler.reset()
    given = [x.requires_grad_(training) for x in heads(*sizes)]
    with regraft.coverage() as cov:
        out = torch.compile(function, backend="regraft")(*given)
    torch.testing.assert_close(out, function(*given))
    assert cov.graphs[0].changes("constant_sdpa_masks") == expected


def test_a_mask_that_is_written_to_is_not_known():
    def function(q, k, v, drop):
        keep = torch.ones(6, 6, dtype=torch.bool)
        keep[drop] = False
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)

    given = [*heads(6, 6, 6), torch.arange(2)]
    with regraft.coverage() as cov:
        out = torch.compile(function, backend="regraft")(*given)
    torch.testing.assert_close(out, function(*given), equal_nan=True)
    assert cov.graphs[0].changes("constant_sdpa_masks") == {}


def on_cuda(mask, p=0.0):
    """The graph of an attention call on (fake) CUDA tensors, its mask made by `mask`."""

    def function(q, k, v, bias):
        return aten.scaled_dot_product_attention(q, k, v, mask(bias), p)

    with FakeTensorMode(allow_non_fake_inputs=True):
        half = [torch.empty(2, 3, 6, 8, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        return make_fx(function, pre_dispatch=True)(*half, torch.empty(6, 6, 3, device="cuda", dtype=torch.bfloat16))


def masks_of(module):
    return [arguments(n)["attn_mask"] for n in module.graph.nodes if op_name(n) == "aten.scaled_dot_product_attention"]


def test_on_cuda_rows_are_contiguous():
    module = on_cuda(lambda bias: bias.permute(2, 0, 1).unsqueeze(0))
    assert simplify_sdpa_masks(module) == {"rows": 1}
    (mask,) = masks_of(module)
    assert mask.target is aten.contiguous.default and mask.meta["val"].stride(-1) == 1
    assert simplify_sdpa_masks(module) == {}


def test_layers_share_one_copy():
    def function(q, k, v, bias):
        mask = bias.permute(2, 0, 1).unsqueeze(0)
        x = aten.scaled_dot_product_attention(q, k, v, mask)
        return aten.scaled_dot_product_attention(x, k, v, mask)

    with FakeTensorMode(allow_non_fake_inputs=True):
        half = [torch.empty(2, 3, 6, 8, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        bias = torch.empty(6, 6, 3, device="cuda", dtype=torch.bfloat16)
        module = make_fx(function, pre_dispatch=True)(*half, bias)
    assert simplify_sdpa_masks(module) == {"rows": 2}
    first, second = masks_of(module)
    assert first is second


def test_random_streams_are_kept():
    module = on_cuda(lambda bias: bias.permute(2, 0, 1).unsqueeze(0), p=0.5)
    assert simplify_sdpa_masks(module, keep_stream=True) == {}
    assert simplify_sdpa_masks(module) == {"rows": 1}
