"""Tensors without dims, where 0 and -1 name a dim that they do not have, and tensors without elements."""

import pytest
import torch
import torch.nn.functional as F
from support.thorough import thorough

import regraft  # noqa: F401 - the backend

ZERO = torch.zeros((), dtype=torch.int64)
OVER_A_DIM = {
    "sum": lambda x: x.sum(0),
    "sum of a product": lambda x: (x * x.sin()).sum(0),
    "kept sum": lambda x: x / x.sum(-1, keepdim=True),
    "mean": lambda x: x.mean(-1),
    "largest": lambda x: x - x.amax(0, keepdim=True),
    "deviation": lambda x: torch.var_mean(x, -1, correction=0)[1],
    "softmax": lambda x: x.softmax(-1) + x.log_softmax(0),
    "logarithm of a sum": lambda x: (x - x.logsumexp(-1)).exp(),
    "norm": lambda x: x / x.norm(dim=0) + F.normalize(x, dim=-1),
    "running sum": lambda x: x.cumsum(0) + x.cummax(-1)[0],
    "order": lambda x: x.sort(-1)[0] + x.topk(1)[0] + x.median(0)[0],
    "moved": lambda x: x.transpose(0, -1).t().movedim(0, -1).permute(()),
    "places": lambda x: x.gather(0, ZERO) + x.scatter_add(-1, ZERO, x) + x.index_add(0, ZERO, x),
    "squeezed": lambda x: x.squeeze(0).unsqueeze(-1).squeeze(-1),
}


@pytest.mark.parametrize("gradient", [thorough(False), True])
def test_operators_over_a_dim(gradient):
    def program(x):
        results = [over(given) for over in OVER_A_DIM.values() for given in (x, x * 2, x[None].reshape(()) * 3)]
        return [*results, *(torch.broadcast_to(r, (1, *r.shape)) for r in results), *(r.expand(2) + 1 for r in results)]

    def run(function):
        x = torch.tensor(0.7, requires_grad=gradient)
        results = function(x)
        return results, torch.autograd.grad(sum(r.sum() for r in results), x) if gradient else ()

    compiled = torch.compile(program, backend="regraft", options={"strict": True}, fullgraph=True)
    for ours, eager in zip(run(compiled), run(program), strict=True):
        torch.testing.assert_close(ours, eager)


W, BIAS = torch.linspace(-1, 1, 16).reshape(4, 4), torch.linspace(0, 1, 4)
HALVES = (0, 3, 2, 2)
WITHOUT_ELEMENTS = {  # reshaping may give them any number of columns
    "rows": ((0, 2, 2), lambda x: F.linear(x.reshape(-1, 4), W, BIAS).reshape(0, 2, 4)),
    "rows and a matrix": ((0, 2, 2), lambda x: torch.addmm(BIAS, x.reshape(0, 4), W).reshape(0, 2, 4)),
    "rows twice": ((0, 3, 4), lambda x: F.linear(F.linear(x, W).reshape(-1, 4), W).reshape(0, 2, 4) @ W),
    "merged heads": (HALVES, lambda x: F.linear(x.transpose(1, 2).reshape(0, 3, 4), W)),
    "heads": (HALVES, lambda x: F.scaled_dot_product_attention(x, x, x).transpose(1, 2).reshape(0, 2, 4) @ W),
    "weights": (HALVES, lambda x: ((x @ x.mT).softmax(-1) @ x).reshape(0, 6, 2).mean(-1)),
    "encoder": ((0, 3, 4), lambda x: F.gelu(F.layer_norm(x + F.linear(x, W), (4,))).flatten(1)),
}


@pytest.mark.parametrize("name", WITHOUT_ELEMENTS)
def test_programs_of_batches_without_elements(name):
    size, program = WITHOUT_ELEMENTS[name]
    compiled = torch.compile(program, backend="regraft", options={"strict": True}, fullgraph=True)
    ours, eager = torch.randn(size, requires_grad=True), torch.randn(size, requires_grad=True)
    result, expected = compiled(ours), program(eager)
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    assert ours.grad is not None and ours.grad.shape == size


def test_attention_modules_train_on_batches_without_elements():
    module = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    compiled = torch.compile(module, backend="regraft", options={"strict": True})
    x, memory = (torch.randn(0, 3, 4, requires_grad=True) for _ in range(2))
    compiled(x, memory, memory, need_weights=False)[0].sum().backward()
    assert x.grad is not None and module.in_proj_weight.grad is not None
    assert not module.in_proj_weight.grad.any()
