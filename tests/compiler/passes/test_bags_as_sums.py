"""Bags of embeddings of one size, written out; others stay calls."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from regraft.compiler.passes.bags_as_sums import write_bags_as_sums
from regraft.rewrites.compat import capture_function
from regraft.rewrites.graph import arguments, op_name

W, I2 = torch.randn(20, 6), torch.randint(0, 20, (5, 4))

WRITTEN = {
    "sum": lambda w, i: F.embedding_bag(i, w, mode="sum"),
    "mean": lambda w, i: F.embedding_bag(i, w, mode="mean"),
    "weighted": lambda w, i: F.embedding_bag(i, w, mode="sum", per_sample_weights=w[:5, :4]),
    "even offsets": lambda w, i: F.embedding_bag(i.flatten(), w, torch.arange(0, 20, 2), mode="sum"),
}
LEFT = {
    "max": lambda w, i: F.embedding_bag(i, w, mode="max"),
    "padded": lambda w, i: F.embedding_bag(i, w, mode="sum", padding_idx=3),
    "by frequency": lambda w, i: F.embedding_bag(i, w, mode="sum", scale_grad_by_freq=True),
    "a rest": lambda w, i: F.embedding_bag(i.flatten(), w, torch.arange(0, 20, 3), mode="sum"),
    "other offsets": lambda w, i: F.embedding_bag(i.flatten(), w, torch.arange(0, 20, 2) * 1, mode="sum"),
}


def captured(function, w=W):
    module, _ = capture_function(function, [w, I2], dynamic=False)
    return module


@pytest.mark.parametrize("name", WRITTEN)
def test_written_out(name):
    module = captured(WRITTEN[name])
    assert write_bags_as_sums(module) == 1
    module.graph.lint()
    assert not any("embedding_bag" in op_name(node) for node in module.graph.nodes)
    w, v = W.clone().requires_grad_(), W.clone().requires_grad_()
    found, wanted = module(w, I2), WRITTEN[name](v, I2)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found.sin().sum(), w), torch.autograd.grad(wanted.sin().sum(), v))


@pytest.mark.parametrize("name", LEFT)
def test_left(name):
    module = captured(LEFT[name])
    assert write_bags_as_sums(module) == 0


def test_weights_of_another_dtype_are_left():
    """Eager refuses them on GPUs."""
    module = captured(WRITTEN["weighted"])
    (node,) = (node for node in module.graph.nodes if "embedding_bag" in op_name(node))
    weights = arguments(node)["per_sample_weights"]
    weights.meta["val"] = weights.meta["val"].double()
    assert write_bags_as_sums(module) == 0


def test_weights_of_16_bits_are_added_in_32():
    w = W.bfloat16()
    module = captured(WRITTEN["sum"], w)
    write_bags_as_sums(module)
    assert module(w, I2).dtype == torch.bfloat16
    torch.testing.assert_close(module(w, I2), WRITTEN["sum"](w, I2), rtol=2**-6, atol=2**-6)
