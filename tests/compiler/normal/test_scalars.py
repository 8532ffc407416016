"""Tensors without dims take 0 and -1 as dims all the same: the normal form leaves such calls as they are."""

import math

import pytest
import torch
from support.thorough import one_row_in, takes_turns

import regraft


def of_no_dims(x):
    return [
        x.movedim(0, -1) * 2, x.moveaxis(-1, 0) + 1, x.transpose(0, -1) * 3, x.sum(0) * 1.0,
        x.sum(-1, keepdim=True) * 0.5,
        x.mean(0) * 2, x.amax(-1) - x, x.softmax(0) * x, x - x.logsumexp(0), x / x.sum(0, keepdim=True),
        (x - x.mean(-1, keepdim=True)) * x, x.cumsum(-1) + 1, x.squeeze(0) * 2, x.flatten() * 2, x.sort(0)[0] * 2,
    ]  # fmt: skip


def test_dims_of_tensors_without_dims():
    x = torch.tensor(1.5)
    torch._dynamo.reset()
    with regraft.coverage() as block:
        ours = torch.compile(of_no_dims, backend="regraft", options={"profit": "always"})(x)
    assert not block.fallbacks
    torch.testing.assert_close(ours, of_no_dims(x))


DIVISORS = {
    "integers": torch.tensor(3),
    "half": torch.tensor(3.1, dtype=torch.float16),
    "single": torch.tensor(3.1),
    "double": torch.tensor(3.1, dtype=torch.float64),
    "of one dim": torch.tensor([3.1], dtype=torch.float16),
}


@one_row_in(3)
@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(), (1,), (2, 3, 4, 4)])
@pytest.mark.parametrize("divisor", DIVISORS)
def test_divisors_of_other_dtypes(sizes, divisor, dtype):
    """A reciprocal may have another dtype than the quotient, or be less precise than it."""

    def program(x, n):
        scores = x @ x.mT if x.dim() > 1 else x * x
        return scores / n, (x.sum() / n).exp(), x.sum() / x.ne(0).sum(), (scores / n).sum() * n, x / n / n

    x = torch.linspace(0.1, 1, math.prod(sizes)).reshape(sizes).to(dtype)
    compiled = torch.compile(program, backend="regraft", options={"strict": True, "profit": "always"})
    torch.testing.assert_close(compiled(x, DIVISORS[divisor]), program(x, DIVISORS[divisor]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_factors_of_other_dtypes_in_attention(dtype):
    """The product of two factors may be more than their dtype holds."""

    def program(q, k, v, a, b):
        return torch.softmax(q @ k.mT / a * b, -1) @ v, torch.softmax(q @ k.mT * a * b, -1) @ v

    q, k, v = (torch.linspace(-0.01, 0.02 * n, 2 * 3 * 5 * 8).reshape(2, 3, 5, 8) for n in (1, 2, 3))
    compiled = torch.compile(program, backend="regraft", options={"strict": True, "profit": "always"})
    for a, b in ((300.0, 300.0), (3e-5, 2e-4), (3.1, 7.3)):
        given = q, k, v, torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)
        torch.testing.assert_close(compiled(*given), program(*given))


def scaled_scores(q, k, v, a, b):
    return q * a * b, (((q * a) @ k.mT) * b).softmax(-1) @ v, (q @ k.mT) * a * b


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("factors", [(1 << 62, 1 << 62), (1 << 40, -(1 << 40)), (3, 1 << 62), (1 << 62, 0.5), (2, 3)])
def test_products_of_factors_that_exceed_64_bits(factors, dynamic):
    """Scaling twice by large integers stays in floating point."""
    q, k, v = torch.randn(3, 2, 5, 8).mul(1e-9).unbind()
    torch._dynamo.reset()
    options = {"strict": True, "profit": "always"}
    compiled = torch.compile(scaled_scores, backend="regraft", dynamic=dynamic, options=options)
    torch.testing.assert_close(compiled(q, k, v, *factors), scaled_scores(q, k, v, *factors))


@pytest.mark.parametrize("spelling", [torch.where, lambda mask: torch.where(mask & True)])
def test_indices_where_a_broadcast_holds(spelling):
    """`where` of a condition alone gives one tensor of indices a dim."""

    def program(x):
        return [index * 2 for index in spelling((x > 0).unsqueeze(0).expand(2, -1, -1))]

    x = torch.randn(3, 4)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(program, backend="regraft", options={"strict": True, "profit": "always"})
        torch.testing.assert_close(compiled(x), program(x))
