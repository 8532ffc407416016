"""`flex_attention` by the whole compiler on CPUs: one kernel, as near to float64 as eager, rows of nothing 0."""

from __future__ import annotations

import pytest
import torch
from support.thorough import examples
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import regraft

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

S = 77
SLOPES, DOCUMENT = torch.linspace(0.1, 1, 4), torch.arange(S) // 20

PROGRAMS = {
    "nothing": (None, None),
    "causal": (None, lambda b, h, i, j: i >= j),
    "capped window": (lambda s, b, h, i, j: torch.tanh(s / 5) * 5, lambda b, h, i, j: (i >= j) & (i - j < 9)),
    "documents": (lambda s, b, h, i, j: s + SLOPES[h] * (j - i), lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j]),
    "empty rows": (lambda s, b, h, i, j: s * s * 0.1, lambda b, h, i, j: (i >= j) & (i > 10)),
}


@pytest.mark.parametrize(
    ("dtype", "names"), [(torch.float32, list(PROGRAMS)), (torch.bfloat16, list(PROGRAMS)[1 : examples(3, 5)])]
)
def test_one_kernel_of_our_own(dtype, names):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, S, 24, generator=generator).to(dtype) for heads in (4, 2, 2))
    masks = [mask and create_block_mask(mask, 1, 1, S, S, device="cpu") for _, mask in map(PROGRAMS.get, names)]

    def program(q, k, v):
        every = enumerate(zip((PROGRAMS[name][0] for name in names), masks, strict=True))  # none shares scores
        return [flex_attention(q + number, k, v, f, m, enable_gqa=True) for number, (f, m) in every]

    torch._dynamo.reset()
    with torch.no_grad(), regraft.coverage() as found:
        results = torch.compile(program, backend="regraft", options={"profit": "always"})(q, k, v)
    assert found.count("attention") == len(names)
    assert found.matches["attention-template"] == len(names)
    assert not found.fallbacks
    eager, exact = program(q, k, v), program(q.double(), k.double(), v.double())
    for one, other, best in zip(results, eager, exact, strict=True):
        assert one.stride() == other.stride()
        assert (one - best).abs().max() <= 2 * (other - best).abs().max() + 1e-6
