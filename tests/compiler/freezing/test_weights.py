"""Which inputs are weights, when freezing is refused, and what of a program stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.freezing import frozen, normalized
from support.thorough import one_row_in, takes_turns
from torch import nn

import regraft
from regraft.compiler.options import OptionError, Options


class Counting(nn.Module):
    """Has a buffer that its own forward writes to, and a plain tensor as attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(8))
        self.scale = torch.full((8,), 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.layer(x) * (self.calls * 3) * (self.scale * 0.5)


def test_training_is_refused() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    with pytest.raises(Exception, match=r"option 'freezing' is for inference.*no_grad"):
        torch.compile(model, backend="regraft", options={"freezing": True})(x)


def test_no_gradient_wanted_is_inference() -> None:
    model, x = nn.Linear(4, 4).requires_grad_(False), torch.randn(2, 4)
    run, cov = frozen(model, grad=True)
    with cov:
        torch.testing.assert_close(run(x), model(x))
    assert cov.graphs[0].details["freezing"]["weights"] == 2


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_option_is_a_bool(value: object) -> None:
    with pytest.raises(OptionError, match="freezing"):
        Options.parse(None, {"freezing": value})


def test_buffer_that_the_program_writes_to_is_no_weight() -> None:
    model, x = Counting(), torch.randn(3, 8)
    twin = Counting()
    twin.load_state_dict(model.state_dict())
    run, cov = frozen(model)
    with cov, torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), twin(x))
    assert model.calls.tolist() == [3.0] * 8
    details = cov.graphs[0].details["freezing"]
    assert details["weights"] == 3  # weight, bias, scale


def test_arguments() -> None:
    """A parameter is a weight however it comes, and may be another at the next call; other tensors are none."""
    weights, x = [nn.Parameter(torch.randn(4, 4)) for _ in range(2)], torch.randn(2, 4)
    run, cov = frozen(lambda x, w: x @ (w * 2))
    with cov, torch.no_grad():
        for w in (*weights, weights[0] + 1, weights[1] + 1):
            torch.testing.assert_close(run(x, w), x @ (w * 2))
    assert [g.details["freezing"]["weights"] for g in cov.graphs] == [1, 0]


def test_program_without_weights() -> None:
    run, cov = frozen(lambda x: torch.relu(x) + 1)
    x = torch.randn(3, 4)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), torch.relu(x) + 1)
    assert cov.graphs[0].details["freezing"]["constants"] == 0


def test_weights_made_in_inference_mode_stay_inputs() -> None:
    """Nobody counts the writes to them."""
    with torch.inference_mode():
        model = nn.Linear(8, 8)
    x = torch.randn(2, 8)
    run, cov = frozen(model)
    with cov, torch.inference_mode():
        torch.testing.assert_close(run(x), model(x))
        model.weight.mul_(2)
        torch.testing.assert_close(run(x), model(x))
    assert cov.graphs[0].details["freezing"]["weights"] == 0


def test_inference_mode() -> None:
    model, x = normalized(), torch.randn(2, 4, 9, 9)
    run, cov = frozen(model)
    with cov, torch.inference_mode():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(run(x + 1), model(x + 1), rtol=1e-4, atol=1e-5)
    assert sum(m.rule == "batch_norm" for m in cov.graphs[0].applied) == 2


def test_default_is_off() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    torch._dynamo.reset()
    with regraft.coverage() as cov, torch.no_grad():
        torch.compile(model, backend="regraft", options={"profit": "always"})(x)
    assert "freezing" not in cov.graphs[0].details


KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "linear": lambda x, c: F.linear(x, c.expand(8, 8)),
    "matmul": lambda x, c: (x @ x.mT @ x) @ (c.diag() + 1),
    "convolution": lambda x, c: F.conv2d(x[None, None], c.cumsum(0)[:4].reshape(1, 1, 2, 2).expand(8, 1, 2, 2)),
    "convolution1d": lambda x, c: F.conv1d(x[None], c.expand(8, 8)[..., None]),
    "transposed": lambda x, c: F.conv_transpose2d(x[None, None], c.reshape(1, 2, 2, 2)),
}


@one_row_in(2)
@takes_turns("profit")
@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize("profit", ["always", "measured"])
@pytest.mark.parametrize("kind", KERNELS)
def test_weights_that_the_program_makes_of_numbers(kind: str, profit: str, freezing: bool) -> None:
    """Weights that are no inputs: packed while compiling, or not at all."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return KERNELS[kind](x, torch.arange(8.0).pow(0.5))

    x = torch.randn(8, 8)
    torch.compiler.reset()
    with torch.no_grad(), regraft.coverage() as cov:
        run = torch.compile(function, backend="regraft", options={"profit": profit, "freezing": freezing})
        torch.testing.assert_close(run(x), function(x), rtol=1e-4, atol=1e-4)
    kept = [k.operator for g in cov.graphs for c in g.code for k in c.kept]
    assert not cov.faults and (freezing or not [name for name in kept if "_reorder" in name])
