"""Questions to torch that Dynamo has answered do not prevent capture."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.thorough import takes_turns
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import regraft


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("bias", [causal_lower_right, causal_upper_left])
def test_causal_biases(bias, dynamic):
    def program(q, k, v):
        return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=bias(q.shape[2], k.shape[2])).relu()

    torch.compiler.reset()
    with regraft.coverage() as found:
        compiled = torch.compile(program, backend="regraft", dynamic=dynamic)
        for queries, keys in [(4, 6), (5, 7)]:
            q, k, v = (torch.randn(2, 2, n, 8, requires_grad=True) for n in (queries, keys, keys))
            results = []
            for run in (compiled, program):
                result = run(q, k, v)
                results.append((result, *torch.autograd.grad(result.sum(), (q, k, v))))
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
            with torch.no_grad():
                torch.testing.assert_close(compiled(q, k, v), program(q, k, v), rtol=1e-4, atol=1e-5)
    assert "opaque-call" not in [fallback.code for fallback in found.fallbacks]
