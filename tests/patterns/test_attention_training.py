"""Attention in training: dropout of eager's stream or distribution, gradients of masks, checkpoints, modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.attentions import SCALE, B, D, H, S, T, additive, attend, by_hand, keeps, normal, qkv
from support.rewriting import assert_agrees, compiled, outcome, rewritten, trained
from support.thorough import one_row_in, takes_turns, thorough
from torch import nn

P = 0.25


def dropped(q, k, v):
    return F.dropout((q @ k.mT * SCALE).softmax(-1), P, True) @ v


def dropped_masked(q, k, v, m):
    return F.dropout((q @ k.mT * SCALE + m).softmax(-1), P, True) @ v


def dropped_where(q, k, v, m):
    return F.dropout((q @ k.mT * SCALE).masked_fill(m == 0, -torch.inf).softmax(-1), P, True) @ v


def dropped_upcast(q, k, v):
    return F.dropout(F.softmax(q.float() @ k.float().mT * SCALE, -1).to(v.dtype), P, True) @ v


def dropped_by_hand(q, k, v):
    return torch.dropout(by_hand(q @ k.mT * SCALE), P, True) @ v


def dropped_3d(q, k, v):
    q, k, v = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    return torch.bmm(F.dropout(torch.bmm(q, k.mT).mul(SCALE).softmax(-1), P, True), v)


DROPPED = {
    "plain": (dropped, qkv()),
    "additive mask": (dropped_masked, (*qkv(), additive(keeps(B, 1, S, T)))),
    "boolean mask": (dropped_where, (*qkv(), keeps(S, T))),
    "by hand": (dropped_by_hand, qkv()),
    "3-D": (dropped_3d, qkv()),
    "bf16": (dropped, qkv(dtype=torch.bfloat16)),
    "bf16, upcast": (dropped_upcast, qkv(dtype=torch.bfloat16)),
}


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("rng", ["statistical", "eager"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", DROPPED)
def test_dropout_draws_what_eager_draws(name: str, dynamic: bool, rng: str) -> None:
    """On a CPU the same elements are dropped, under both policies: results and gradients agree."""
    function, inputs = DROPPED[name]
    given = trained(inputs)
    found = rewritten(function, given, dynamic=dynamic, rng=rng)
    assert found.count() == 1, found.record.near_misses
    assert "dropout" in found.tags or any("dropout" in t for t in found.tags)
    for ours, eager in zip(outcome(found.run, given), outcome(function, given), strict=True):
        tolerance = 1e-5 if eager.dtype == torch.float32 else 3e-2
        torch.testing.assert_close(ours, eager, rtol=tolerance, atol=tolerance)


def test_dropout_compiled() -> None:
    """Through AOTAutograd too, and anew at each call."""
    run, coverage = compiled(dropped, rng="eager")
    with coverage:
        torch.manual_seed(3)
        ours = [run(*trained(qkv())) for _ in range(2)]
    torch.manual_seed(3)
    eager = [dropped(*qkv()) for _ in range(2)]
    assert coverage.count("attention") == 1
    assert not torch.equal(ours[0], ours[1])
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b)


def rand_like(q, k, v):
    p = (q @ k.mT * SCALE).softmax(-1)
    return (p * (torch.rand_like(p) > P)) / (1 - P) @ v


def rand_like_float(q, k, v):
    p = (q @ k.mT * SCALE).softmax(-1)
    keep = (torch.rand_like(p) > P).to(p.dtype)
    return p * keep * (1.0 / (1.0 - P)) @ v


def rand_where(q, k, v):
    p = (q @ k.mT * SCALE).softmax(-1)
    return torch.where(torch.rand(p.shape) >= P, p, 0.0) * (1 / (1 - P)) @ v


BY_HAND = (rand_like, rand_like_float, rand_where)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("function", BY_HAND, ids=lambda f: f.__name__)
def test_handwritten_dropout(function: Any, training: bool) -> None:
    given = trained(qkv()) if training else list(qkv())
    found = rewritten(function, given)
    assert found.count() == 1, found.record.near_misses
    assert not found.ops & {"rand_like", "rand"}
    assert not torch.equal(found.run(*given), found.run(*given))


@pytest.mark.parametrize("function", BY_HAND, ids=lambda f: f.__name__)
def test_handwritten_dropout_keeps_its_numbers_where_asked(function: Any) -> None:
    found = rewritten(function, trained(qkv()), rng="eager")
    assert found.count() == 0
    assert "random-stream-changes" in found.codes
    assert_agrees_in_stream(function, found.run, trained(qkv()))


def assert_agrees_in_stream(function: Any, run: Any, given: list[Any]) -> None:
    for ours, eager in zip(outcome(run, given), outcome(function, given), strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("function", [dropped, *BY_HAND], ids=lambda f: f.__name__)
def test_dropout_has_the_distribution(function: Any) -> None:
    """Weights are zero with probability P, else divided by 1 - P: read off a value that is the identity."""
    n = 48
    q, k, v = torch.zeros(2, 4, n, D), torch.zeros(2, 4, n, D), torch.eye(n).expand(2, 4, n, n)
    found = rewritten(function, (q, k, v))
    assert found.count() == 1
    torch.manual_seed(0)
    weights = found.run(q, k, v) * n * (1 - P)
    torch.testing.assert_close(weights.round().clamp(0, 1), weights, atol=1e-4, rtol=0)
    count = weights.numel()
    deviation = (P * (1 - P) / count) ** 0.5
    assert abs(float((weights < 0.5).float().mean()) - P) < 5 * deviation


def test_other_draws_keep_their_order() -> None:
    """What is drawn before and after the attention stays eager's under rng='eager'."""

    def function(q, k, v):
        first = torch.rand_like(q)
        out = dropped(q + first, k, v)
        return F.dropout(out, 0.5, True)

    found = rewritten(function, trained(qkv()), rng="eager")
    assert found.count() == 1, found.record.near_misses
    assert_agrees_in_stream(function, found.run, trained(qkv()))


@pytest.mark.parametrize("p", [1.0, 0.0])
def test_extreme_dropout(p: float) -> None:
    def function(q, k, v):
        return F.dropout((q @ k.mT * SCALE).softmax(-1), p, True) @ v

    found = rewritten(function, trained(qkv()))
    assert_agrees_in_stream(function, found.run, trained(qkv()))


# -- gradients


@pytest.mark.parametrize("shape", [(S, T), (1, H, S, T), (B, 1, 1, T), (H, 1, T)])
def test_gradient_of_a_bias(shape: tuple[int, ...]) -> None:
    """A bias that is learned (relative positions) gets its gradient."""

    def function(q, k, v, bias):
        return attend(q @ k.mT * SCALE + bias, v)

    given = trained((*qkv(), normal(*shape)), 4)
    found = rewritten(function, given)
    assert found.count() == 1
    assert found.kernels == ["math"]
    assert_agrees(function, found.run, given)


def test_gradient_of_a_scale() -> None:
    def function(q, k, v, scale):
        return attend(q @ k.mT * scale, v)

    for scale in (torch.tensor(0.3), normal(H, 1, 1).abs()):
        given = trained((*qkv(), scale), 4)
        found = rewritten(function, given)
        assert found.count() == 1
        assert_agrees(function, found.run, given)


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1), (1, 2)])
def test_some_gradients_only(which: tuple[int, ...]) -> None:
    def function(q, k, v):
        return attend(q @ k.mT * SCALE, v)

    given = [x.clone().requires_grad_(i in which) for i, x in enumerate(qkv())]
    found = rewritten(function, given)
    assert found.count() == 1
    assert_agrees(function, found.run, given)


def test_detached_weights() -> None:
    """Weights that no gradient may pass: the match must not let it through."""

    def function(q, k, v):
        return (q @ k.mT * SCALE).softmax(-1).detach() @ v

    given = trained(qkv())
    found = rewritten(function, given)
    assert_agrees(function, found.run, given)


def test_scores_without_gradients() -> None:
    def function(q, k, v):
        with torch.no_grad():
            p = (q @ k.mT * SCALE).softmax(-1)
        return p @ v

    given = trained(qkv())
    run, coverage = compiled(function)
    with coverage:
        assert_agrees(function, run, given)


class Attention(nn.Module):
    """Self-attention as models have it."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.out, self.dropout = nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, H, D).permute(2, 0, 3, 1, 4)
        weights = self.dropout((q @ k.transpose(-2, -1) * SCALE + mask).softmax(-1))
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, s, H * D))


@one_row_in(2)
@pytest.mark.parametrize(
    ("dropout", "dynamic"), [(0.0, False), (0.3, False), thorough(0.0, True), (0.3, True)], ids=str
)
def test_module(dropout: float, dynamic: bool) -> None:
    """Two layers, one of symbolic sizes: results, each parameter's gradient, with and without dropout; in eval."""
    torch.manual_seed(0)
    layers = nn.ModuleList([Attention(dropout) for _ in range(1 if dynamic else 2)])

    def model(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x, mask)
        return x

    x, mask = normal(B, S, H * D), additive(keeps(S, S))
    run, coverage = compiled(model, dynamic=dynamic, rng="eager")
    with coverage:
        ours = _step(layers, run, x, mask)
    assert coverage.count("attention") == len(layers), coverage.near_misses
    for a, b in zip(ours, _step(layers, model, x, mask), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    layers.eval()
    torch.testing.assert_close(run(x, mask), model(x, mask))


def _step(layers: nn.Module, model: Any, x: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(5)
    layers.zero_grad()
    out = model(x, mask)
    out.square().mean().backward()
    return [out.detach(), *(p.grad.clone() for p in layers.parameters())]


def test_checkpoint() -> None:
    """The body of an activation checkpoint is rewritten like the rest, or left alone: right either way."""
    from torch.utils.checkpoint import checkpoint

    def function(q, k, v):
        return checkpoint(lambda a, b, c: attend(a @ b.mT * SCALE, c), q, k, v, use_reentrant=False)

    run, coverage = compiled(function)
    with coverage:
        assert_agrees(function, run, trained(qkv()))


def _padded(x: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(B, H, T, D, dtype=x.dtype)
    z[:, :, :S] = x
    return z


def _padded_before(x: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(B, H, T, D, dtype=x.dtype)
    view = z.view(B * H, T, D).view(z.shape)
    z.narrow(2, 0, S).add_(x)
    return view


def _padded_by_lists(x: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(B, H, T, D, dtype=x.dtype)
    torch._foreach_add_([z[:, :, :S]], [x])
    return z


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("padded", [_padded, _padded_before, _padded_by_lists])
def test_no_gradient_of_what_is_detached_from_a_written_tensor(padded: Any, dynamic: bool) -> None:
    """Gradients enter a tensor of zeros by a write to a part of it: only the keys have one, not what is detached."""

    def function(x):
        z = padded(x)
        return attend(z.detach() @ z.mT * SCALE, z.detach())

    found = rewritten(function, given := trained(qkv()[:1]), dynamic=dynamic)
    assert found.count() == 1
    assert_agrees(function, found.run, given)
