"""cuDNN's attention gets its gradient in the layout of its result: its plans are kept without looking at that."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.sdpa_backward_layout import lay_out_sdpa_gradients
from regraft.rewrites.graph import op_name, val

aten = torch.ops.aten


def graph_of(turned):
    """A backward call whose gradient is laid out as the result is, or not."""

    def function(grad, q, out, sums, seed):
        grad = grad.permute(0, 2, 1, 3) if turned else grad
        return aten._scaled_dot_product_cudnn_attention_backward(
            grad, q, q, q, out, sums, seed, seed, None, None, None, 6, 6, 0.0, False
        )

    with FakeTensorMode():
        heads = torch.empty(2, 6, 3, 8, dtype=torch.bfloat16, device="cuda").permute(0, 2, 1, 3)
        grad = torch.empty((2, 6, 3, 8) if turned else (2, 3, 6, 8), dtype=torch.bfloat16, device="cuda")
        sums, seed = torch.empty(2, 3, 6, 1, device="cuda"), torch.empty((), dtype=torch.int64, device="cuda")
        return make_fx(function)(grad, heads, heads, sums, seed)


@pytest.mark.parametrize("turned", [True, False])
def test_the_gradient_lies_as_the_result_does(turned):
    module = graph_of(turned)
    assert lay_out_sdpa_gradients(module) == (0 if turned else 1)
    module.graph.lint()
    (call,) = (node for node in module.graph.nodes if op_name(node).endswith("cudnn_attention_backward"))
    assert val(call.args[0]).stride() == val(call.args[4]).stride() and lay_out_sdpa_gradients(module) == 0
