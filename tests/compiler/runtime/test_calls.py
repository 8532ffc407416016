"""Backwards that are asked for several gradients at once."""

import torch
from support.caches import cache_in
from torch.autograd.functional import jacobian


def program(x, y):
    return x.sin() * y.sum(), (x * y).sum()


def product(x, w):
    return (x @ w).tanh()


def test_jacobians_of_all_rows_at_once(tmp_path, monkeypatch):
    """Compiled, and recalled from the cache."""
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    with cache_in(tmp_path):
        for _ in range(2):
            torch.compiler.reset()
            compiled = torch.compile(program, backend="regraft", options={"strict": True})
            for size in (3, 5):
                given = torch.randn(size), torch.randn(size)
                ours, theirs = (jacobian(f, given, vectorize=True) for f in (compiled, program))
                torch.testing.assert_close(ours, theirs)


def test_gradients_of_which_rows_lie_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    gradients = torch.randn(4, 4, 5).permute(2, 0, 1)
    with cache_in(tmp_path):
        for given in (gradients.contiguous(), gradients.mT):  # torch refuses the second but for recalled steps
            torch.compiler.reset()
            ours, theirs = (
                torch.autograd.grad(f(x, w), (x, w), given, is_grads_batched=True)
                for f in (torch.compile(product, backend="regraft"), product)
            )
            torch.testing.assert_close(ours, theirs)
