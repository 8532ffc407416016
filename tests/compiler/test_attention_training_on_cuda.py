"""Training on a GPU with attention kernels: results and gradients are eager's, dropout by what it does on average."""

from __future__ import annotations

import pytest
import torch

import regraft

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

B, H, N, D = 2, 4, 200, 64
RULE = "attention-template"


@pytest.fixture(autouse=True)
def _compiled_anew(monkeypatch, tmp_path):
    torch.compiler.reset()
    torch.manual_seed(7)
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))


def random(*sizes, dtype=torch.bfloat16, scale=1.0):
    return (torch.randn(sizes, device="cuda") * scale).to(dtype).requires_grad_()


def heads(x):
    return x.view(B, N, H, D).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).reshape(B, N, H * D)


def causal(scores):
    places = torch.arange(N, device="cuda")
    return torch.where(places <= places[:, None], scores, float("-inf"))


def weights_of(x, y, f):
    q, k = heads(x), heads(y)
    return torch.softmax(f(torch.matmul(q, k.transpose(-1, -2)) * D**-0.5), -1, dtype=torch.float32)


def capped(x, y, z, w):
    weights = weights_of(x, y, lambda s: causal(torch.tanh(s / 20.0) * 20.0)).to(z.dtype)
    return merged(torch.matmul(weights, heads(z))) @ w


def biased(x, y, z, w, table):
    places = torch.arange(N, device="cuda")
    bias = table[(places[:, None] - places).abs().clamp(max=31)].permute(2, 0, 1)
    weights = weights_of(x, y, lambda s: s + bias).to(z.dtype)
    return merged(torch.matmul(weights, heads(z))) @ w


def both(x, y, z, w, table):
    """What no library has: a bias outside of a softcap."""
    places = torch.arange(N, device="cuda")
    bias = table[(places[:, None] - places).abs().clamp(max=31)].permute(2, 0, 1)
    weights = weights_of(x, y, lambda s: causal(torch.tanh(s / 20.0) * 20.0 + bias)).to(z.dtype)
    return merged(torch.matmul(weights, heads(z))) @ w


def given(dtype, table=False):
    inputs = [random(B, N, H * D, dtype=dtype) for _ in range(3)] + [random(H * D, H * D, dtype=dtype, scale=0.05)]
    return [*inputs, random(32, H, dtype=dtype)] if table else inputs


def step(function, inputs, above):
    out = function(*inputs)
    return [out, *torch.autograd.grad(out, inputs, above)]


def exactly(function, inputs, above):
    double = [x.detach().double().requires_grad_() for x in inputs]
    return step(lambda *x: function(*x).double(), double, above.double())


def check(function, inputs, count=1, steps=1, **options):
    """Results and gradients are nearly as near to double precision as eager's."""
    above = torch.randn(B, N, H * D, device="cuda").to(inputs[0].dtype)
    eager, exact = step(function, inputs, above), exactly(function, inputs, above)
    compiled = torch.compile(function, backend="regraft", dynamic=False, options={"profit": "always", **options})
    with regraft.coverage() as coverage:
        for _ in range(steps):
            ours = [x.clone() for x in step(compiled, inputs, above)]
    assert [match.rule for match in coverage.applied].count(RULE) == count, coverage.near_misses
    for number, (a, b, c) in enumerate(zip(ours, eager, exact, strict=True)):
        scale = float(c.abs().max())
        wrong, allowed = float((a.double() - c).abs().max()), 3 * float((b.double() - c).abs().max())
        assert wrong <= allowed + 2e-3 * scale, (number, wrong / scale, allowed / scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_softcap(dtype):
    check(capped, given(dtype))


@pytest.mark.parametrize("function", [biased, both])
def test_relative_positions_learn(function):
    check(function, given(torch.bfloat16, table=True))


def test_steps_are_replayed_as_cuda_graphs():
    check(both, given(torch.bfloat16, table=True), steps=4, template="cudagraphs")


@pytest.mark.parametrize("rng", ["statistical", "fast"])
def test_dropout_leaves_its_share_and_gradients_follow_the_same_mask(rng):
    p, n, table = 0.25, 128, random(32, H, dtype=torch.float32)
    places = torch.arange(n, device="cuda")

    def full(q, k, table):
        bias = table[(places[:, None] - places).abs().clamp(max=31)].permute(2, 0, 1)
        return torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * D**-0.5 + bias, -1)

    def attention(q, k, v, table):
        return torch.matmul(torch.nn.functional.dropout(full(q, k, table), p), v) * 1.0

    inputs = [random(B, H, n, D, dtype=torch.float32) for _ in range(2)]
    inputs += [torch.eye(n, device="cuda").expand(B, H, n, n).clone().requires_grad_(), table]
    compiled = torch.compile(attention, backend="regraft", options={"profit": "always", "rng": rng})
    above = torch.randn(B, H, n, n, device="cuda")
    outs = []
    with regraft.coverage() as coverage:
        for _ in range(2):
            out, *ours = step(compiled, inputs, above)
            outs.append(out.detach())
    assert RULE in [match.rule for match in coverage.applied], coverage.near_misses
    dropped = outs[-1] == 0
    assert abs(float(dropped.float().mean()) - p) < 0.01
    assert not torch.equal(outs[0] == 0, dropped)  # drawn anew in each step
    mean = outs[-1].sum(-1).mean()
    assert abs(float(mean) - 1.0) < 0.02
    expected = step(lambda q, k, v, t: torch.matmul(full(q, k, t) * ~dropped / (1 - p), v), inputs, above)
    for a, b in zip([outs[-1], *ours], expected, strict=True):
        torch.testing.assert_close(a, b, rtol=5e-3, atol=5e-3 * float(b.abs().max()))
