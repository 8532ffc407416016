"""Rows whose every key is hidden by low finite numbers, in inference: kernels of GPUs give them uniform weights.

Stand-ins for the kernels compute as those do: powers of two of a score times a constant, minus that of the largest one,
without rounding between.
"""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.attentions import keeps, normal
from support.rewriting import rewritten
from support.thorough import one_row_in

from regraft.patterns import attention_cuda
from regraft.patterns.attention import sdpa

S, D = 8, 16
LOG2_E = 1 / math.log(2)


def kernel(q: Any, k: Any, v: Any, mask: Any, *_: Any, scale: float) -> tuple[torch.Tensor]:
    scores = (q.float() @ k.float().mT) * scale + (0.0 if mask is None else mask.float())
    top = (scores.amax(-1, keepdim=True) * LOG2_E).double()  # rounded to float32
    powers = torch.exp2(scores.double() * LOG2_E - top).float()
    return (((powers / powers.sum(-1, keepdim=True)) @ v.float()).to(v.dtype),)


KERNELS = {c.name: c for c in attention_cuda.CUDA_KERNELS if c.name != "flash"}
MASKS = {
    "where": lambda s, m: torch.where(m, s, torch.finfo(s.dtype).min),
    "masked_fill": lambda s, m: s.masked_fill(~m, -65504.0),
    "where, bias": lambda s, m: torch.where(m, s + m.mT.to(s.dtype) * 0.5, torch.finfo(s.dtype).min),
    "of each key": lambda s, m: s.masked_fill(~m[:, :, 2:3], torch.finfo(s.dtype).min),
    "added": lambda s, m: s + torch.where(m, 0.0, torch.finfo(s.dtype).min).to(s.dtype),
    "flags": lambda s, m: s + (1 - m.to(s.dtype)) * torch.finfo(s.dtype).min,
    "infinite": lambda s, m: s.masked_fill(~m, -math.inf),
}


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("mask", MASKS)
def test_rows_without_keys(mask: str, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(_scaled_dot_product_cudnn_attention=kernel, _scaled_dot_product_efficient_attention=kernel)
    monkeypatch.setattr(attention_cuda, "aten", fake)
    monkeypatch.setattr(attention_cuda, "device_of", lambda match: "cuda")
    q, k, v = (normal(2, 3, S, D, dtype=dtype, seed=i) for i in range(3))
    keep = keeps(2, 1, S, S)
    keep[0, 0, 2] = keep[1, 0, 5] = False
    function = lambda q, k, v, m: torch.softmax(MASKS[mask](q @ k.mT * 0.25, m), -1) @ v  # noqa: E731
    found = rewritten(function, (q, k, v, keep), rules=[replace(sdpa, candidates=(KERNELS[name],))])
    assert found.kernels == [name]
    ours, eager = found.run(q, k, v, keep), function(q, k, v, keep)
    torch.testing.assert_close(ours, eager, rtol=0.02, atol=0.02, equal_nan=True)
    q[0, 1, 2, 3] = math.nan
    assert torch.equal(found.run(q, k, v, keep).isnan(), function(q, k, v, keep).isnan())
