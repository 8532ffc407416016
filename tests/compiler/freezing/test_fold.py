"""What is folded to constants, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.freezing import counts, disturbed, frozen
from support.thorough import one_row_in, takes_turns
from torch import nn
from torch.nn import functional as F


class Program(nn.Module):
    """A weight, and a function of it and the input."""

    def __init__(self, function, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.weight)


def folded(function, *shape: int, x=None, **options) -> dict[str, int]:
    model = Program(function, *shape)
    x = torch.randn(3, 4) if x is None else x
    run, cov = frozen(model, **options)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
        torch.testing.assert_close(run(x), model(x))
    return counts(cov)


def test_chain_becomes_one_constant() -> None:
    assert folded(lambda x, w: x + (w.exp() * 2).softmax(-1), 4)["constants"] == 1


def test_views_of_weights_stay() -> None:
    assert folded(lambda x, w: x * w.view(2, 2).t().reshape(4)[:4] * w[None], 4)["constants"] == 1
    assert folded(lambda x, w: x * w[0] * w.t(), 4, 4, x=torch.randn(4, 4))["constants"] == 0


def test_large_results_stay() -> None:
    """A constant takes no more than a few times the memory of the weights that it is made from."""
    x = torch.randn(1)
    assert folded(lambda x, w: x + (w * 2).expand(4000, 1000).exp(), 1000, x=x)["constants"] == 1


def test_what_is_returned_is_the_users_own() -> None:
    model = Program(lambda x, w: (x + 1, w * 2), 4)
    run, cov = frozen(model)
    with cov, torch.no_grad():
        run(torch.ones(4))[1].zero_()
        torch.testing.assert_close(run(torch.ones(4))[1], model.weight * 2)
    assert counts(cov)["constants"] == 0


def test_random_numbers_are_not_folded() -> None:
    model = Program(lambda x, w: x + torch.bernoulli(w.sigmoid()), 64)
    run, cov = frozen(model)
    x = torch.zeros(64)
    with cov, torch.no_grad():
        draws = {tuple(run(x).tolist()) for _ in range(8)}
    assert len(draws) > 1
    assert counts(cov)["constants"] <= 2  # the sigmoid, and that its elements are chances


def test_shared_weights_are_packed_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.tanh(self.first(x)))

    model, x = Tied(), torch.randn(3, 8)
    run, cov = frozen(model)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
        model.second.weight.mul_(2)
        torch.testing.assert_close(run(x), model(x))
    assert counts(cov)["packed_linear"] == 2 and counts(cov)["constants"] == 1


def test_values_of_tuples() -> None:
    assert folded(lambda x, w: x + w.sort().values + torch.var_mean(w)[0], 4)["constants"] >= 1


def test_constants_of_the_program_count_too() -> None:
    assert folded(lambda x, w: x + w * torch.arange(4.0), 4)["constants"] == 1


def test_wide_steps_on_the_way() -> None:
    """A batch norm in bfloat16 is folded in float64, four times as large, and nothing of that is left."""
    model = disturbed(nn.Sequential(nn.Conv2d(256, 512, 3), nn.BatchNorm2d(512))).bfloat16()
    run, cov = frozen(model)
    with cov, torch.no_grad():
        run(torch.randn(1, 256, 3, 3, dtype=torch.bfloat16))
    assert counts(cov)["constants"] == 2 and "rsqrt" not in cov.graphs[0].details["source:inference"]


def _kept(function: Callable[..., Any], inputs: Sequence[torch.Tensor], weights: int) -> dict[str, int]:
    """What freezing does to a product of the first input with what follows from `weights` buffers."""
    x, *state = inputs

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for place, tensor in enumerate(state):
                self.register_buffer(f"b{place}", tensor)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x, *(getattr(self, f"b{place}") for place in range(weights)))

    model = Quantized()
    run, cov = frozen(model)
    with cov, torch.no_grad():
        ours, eager = run(x), model(x)
    assert float((ours - eager).norm()) < 1e-2 * float(eager.norm())
    return counts(cov)


N, K = 288, 256  # more than what is little
BYTES, PACKED = torch.arange(N * K).view(N, K) % 251 - 125, torch.arange(N * K).view(N, K) % 253
SCALE = torch.rand(N, 1) / 128


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed & 0xF, packed >> 4], -1).view(N, 2 * K)


def _assigned(packed: torch.Tensor) -> torch.Tensor:
    made = torch.empty(N, 2 * K, dtype=torch.uint8)
    made[:, ::2], made[:, 1::2] = packed & 0xF, packed >> 4
    return made


SMALL_WEIGHTS = {
    "scaled": lambda x, w, s: F.linear(x, w.to(x.dtype) * s),
    "transposed": lambda x, w, s: x @ (w.to(x.dtype) * s).t().contiguous(),
    "scaled-after": lambda x, w, s: F.linear(x, w.to(x.dtype)) * s[:, 0],
    "groups": lambda x, w, s: F.linear(x, (w.view(N, 4, K // 4).to(x.dtype) * s[..., None]).view(N, K)),
    "by-way-of-float": lambda x, w, s: F.linear(x, (w.float() * s.float()).to(x.dtype)),
    "batch": lambda x, w, s: torch.bmm(x[None].expand(2, -1, -1), (w.to(x.dtype) * s).t().expand(2, K, N)),
    "convolution": lambda x, w, s: F.conv1d(x[..., None], (w.to(x.dtype) * s)[..., None]),
}


@one_row_in(2)
@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SMALL_WEIGHTS)
def test_small_weights_stay_small(name: str, dtype: torch.dtype) -> None:
    """A product reads weights of few bits, never a constant that takes more memory than these."""
    inputs = [torch.randn(2, K, dtype=dtype), BYTES.to(torch.int8), SCALE.to(dtype)]
    found = _kept(SMALL_WEIGHTS[name], inputs, 2)
    assert found["bytes"] <= BYTES.numel(), found
    assert found["packed_linear"] == found["packed_convolution"] == 0


@pytest.mark.parametrize("unpack", [_unpacked, _assigned])
def test_packed_weights_stay_packed(unpack: Callable[..., torch.Tensor]) -> None:
    inputs = [torch.randn(2, 2 * K), PACKED.to(torch.uint8), SCALE]
    found = _kept(lambda x, w, s: F.linear(x, (unpack(w).to(x.dtype) - 8) * s), inputs, 2)
    assert found["bytes"] == 0, found


def test_wide_weights_are_not_kept_wider() -> None:
    inputs = [torch.randn(2, K), BYTES.bfloat16()]
    assert _kept(lambda x, w: F.linear(x, w.float()), inputs, 1)["bytes"] == 0


def test_what_does_not_grow_is_folded() -> None:
    inputs = [torch.randn(2, K), BYTES.float(), SCALE]
    assert _kept(lambda x, w, s: F.linear(x, w * s), inputs, 2)["constants"] == 1
    assert _kept(lambda x, w: F.linear(x.bfloat16(), w.bfloat16()), inputs, 1)["constants"] == 1
    few = [torch.randn(2, K), BYTES[:16].to(torch.int8), SCALE[:16]]
    assert _kept(lambda x, w, s: F.linear(x, w.float() * s), few, 2)["constants"] == 1
