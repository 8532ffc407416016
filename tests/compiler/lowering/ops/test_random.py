"""Random numbers by Philox: their distributions, and that they come again with the seed."""

from __future__ import annotations

import math

import pytest
import torch
from support.lowering import agree, compare, run, trace

from regraft.compiler.autograd.seed_dropout import seed_calls
from regraft.compiler.ir.program import Definition
from regraft.compiler.lowering import lower

N = 20_000


def draw(function, *inputs, seed=0, fast=False):
    """What a function gives where its random calls are seeded: by the loop program, and by the operators themselves."""
    module = trace(function, *inputs)
    assert seed_calls(module, fast=fast)
    module.recompile()
    made = lower(module, strict=True)
    assert not made.kept
    torch.manual_seed(seed)
    drawn = run(module, made, list(inputs))
    torch.manual_seed(seed)
    compare(drawn, module(*inputs))
    return drawn


def follows(sample, cdf):
    """Assert that a sample has a distribution (Kolmogorov and Smirnov, at 0.1%)."""
    ordered = sample.double().flatten().sort()[0]
    expected, n = cdf(ordered), ordered.numel()
    steps = torch.arange(n, dtype=torch.float64) / n
    distance = torch.maximum((expected - steps).abs(), (expected - steps - 1 / n).abs()).max()
    assert distance < 1.95 / math.sqrt(n), distance


def uniform_cdf(x):
    return x.clamp(0, 1)


def normal_cdf(x):
    return torch.special.ndtr(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_continuous_distributions(dtype):
    follows(draw(lambda: torch.rand(N, dtype=dtype)), uniform_cdf)
    follows(draw(lambda x: torch.rand_like(x), torch.empty(100, 200, dtype=dtype)), uniform_cdf)
    follows(draw(lambda: torch.randn(N, dtype=dtype)), normal_cdf)
    follows(draw(lambda: torch.normal(3.0, 2.0, (N,), dtype=dtype)), lambda x: normal_cdf((x - 3) / 2))
    follows(draw(lambda: torch.empty(N, dtype=dtype).uniform_(-1, 4)), lambda x: uniform_cdf((x + 1) / 5))
    follows(draw(lambda: torch.empty(N, dtype=dtype).exponential_(2.0)), lambda x: 1 - torch.exp(-2 * x))


def test_normal_of_tensors():
    mean, deviation = torch.full((N,), 5.0), torch.full((N,), 0.5)
    follows(draw(torch.normal, mean, deviation), lambda x: normal_cdf((x - 5) / 0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_uniforms_never_reach_1(dtype):
    x = draw(lambda: torch.rand(N, dtype=dtype))
    assert x.dtype == dtype
    assert x.min() >= 0 and x.max() < 1
    assert abs(x.double().mean() - 0.5) < 0.01


@pytest.mark.parametrize(("low", "high"), [(0, 7), (-3, 3), (0, 2**40), (5, 6)])
def test_integers(low, high):
    x = draw(lambda: torch.randint(low, high, (N,)))
    assert low <= x.min() and x.max() < high
    follows((x.double() - low + torch.rand(N, dtype=torch.float64)) / (high - low), uniform_cdf)


def test_chances():
    for p in (0.0, 0.2, 1.0):
        x = draw(lambda p=p: torch.bernoulli(torch.empty(N), p))
        assert set(x.unique().tolist()) <= {0.0, 1.0}
        assert abs(float(x.mean()) - p) < 0.015
    x = draw(torch.bernoulli, torch.linspace(0, 1, N))
    assert x[: N // 2].mean() < 0.3 < 0.7 < x[N // 2 :].mean()


@pytest.mark.parametrize("p", [0.001, 0.3, 1.0])
def test_dropout(p):
    x = torch.randn(N)
    result, mask = draw(lambda x: torch.native_dropout(x, p, True), x)
    assert mask.dtype == torch.bool
    assert abs(float(mask.float().mean()) - (1 - p)) < 0.015
    scale = 0.0 if p == 1 else 1 / (1 - p)
    torch.testing.assert_close(result, x * mask * scale)


def test_dropout_out_of_training_needs_no_numbers():
    agree(lambda x: torch.native_dropout(x, 0.5, False), torch.randn(9))


def test_every_call_and_every_run_draws_anew_and_seeds_repeat():
    def function():
        return torch.rand(100), torch.rand(100)

    first, second = draw(function), draw(function)
    torch.testing.assert_close(first, second)
    assert (first[0] != first[1]).all()
    assert (draw(function, seed=1)[0] != first[0]).all()


def test_seeds_are_drawn_once_a_graph():
    module = trace(lambda x: (torch.rand_like(x), torch.randn_like(x)), torch.randn(3))
    seed_calls(module)
    made = lower(module)
    assert [type(item) is Definition for item in made.program.items] == [False, False, True, True]
    seeds, split, *_ = made.program.items
    assert (seeds.reads, seeds.pure) == ((), False)
    assert (split.reads, split.pure) == ((seeds.name,), True)
    assert not made.kept


def test_eagers_own_numbers_are_the_default():
    agree(lambda x: torch.rand_like(x) + 1, torch.randn(3), extern={"aten.rand_like.default"}, rtol=9, atol=9)


def test_numbers_do_not_depend_on_the_layout():
    module = trace(lambda x: torch.rand_like(x), torch.randn(4, 6).t())
    seed_calls(module)
    made = lower(module, strict=True)
    torch.manual_seed(3)
    turned = run(module, made, [torch.randn(4, 6).t()])
    torch.manual_seed(3)
    torch.randn(4, 6)
    assert turned.stride() == (1, 6)
    assert turned.unique().numel() == 24
