"""Weights that change after they were frozen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.freezing import counts, frozen, normalized, residual_network
from support.thorough import one_row_in
from torch import nn


def by_in_place(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.mul_(1.5)


def by_state_dict(model: nn.Module) -> None:
    model.load_state_dict(
        {name: value * 0.5 for name, value in model.state_dict().items() if value.is_floating_point()}
    )


def by_new_parameter(model: nn.Module) -> None:
    model[0].weight = nn.Parameter(model[0].weight + 1)


def by_data(model: nn.Module) -> None:
    model[0].weight.data = model[0].weight.data + 1


def by_buffer(model: nn.Module) -> None:
    model[1].running_mean = model[1].running_mean + 1


CHANGES = [by_in_place, by_state_dict, by_new_parameter, by_data, by_buffer]


@one_row_in(2)
@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_followed(change: Callable[[nn.Module], None]) -> None:
    model, x = normalized(), torch.randn(2, 4, 9, 9)
    run, cov = frozen(model)
    with cov, torch.no_grad():
        before = run(x)
        torch.testing.assert_close(before, model(x), rtol=1e-4, atol=1e-4)
        for _ in range(2):
            change(model)
            after = run(x)
            torch.testing.assert_close(after, model(x), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(before, after)
    assert counts(cov)["constants"] > 0  # and there was one compilation


def test_training_step_in_between() -> None:
    model, x = normalized(), torch.randn(2, 4, 9, 9)
    run, cov = frozen(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cov, torch.no_grad():
        run(x)
    for _ in range(2):
        model(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)


def test_two_models_of_one_code() -> None:
    """Dynamo may share the code of equal modules: the second has weights of its own."""
    first, second, x = residual_network(), residual_network(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.add_(0.1)

    run, _ = frozen(lambda model, x: model(x))
    with torch.no_grad():
        for model in (first, second, first):
            torch.testing.assert_close(run(model, x), model(x), rtol=1e-4, atol=1e-4)
