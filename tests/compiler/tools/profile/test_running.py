"""Steps: outputs and gradients of one call, and nothing left behind."""

from dataclasses import dataclass

import torch

from regraft.compiler.tools.profile.running import step_of, tensors_in, undisturbed


@dataclass
class Output:
    loss: torch.Tensor
    parts: tuple


def test_tensors_of_nested_outputs():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    assert [len(t) for t in tensors_in(Output(a, ({"x": b}, [c, None, 3])))] == [1, 2, 3]


def test_gradients_of_what_is_in_a_closure():
    weight = torch.full((3,), 2.0, requires_grad=True)
    x = torch.ones(3)
    step = step_of(lambda x: {"y": weight * x}, (x,), {})
    output, gradient = step()
    assert torch.equal(gradient, x) and not output.requires_grad
    assert weight.grad is None and len(step()) == 2


def test_steps_that_share_leaves_give_gradients_in_one_order():
    a, b = (torch.ones(n, requires_grad=True) for n in (2, 3))
    leaves = []
    first = step_of(lambda: a.sum() + 2 * b.sum(), (), {}, leaves)()
    second = step_of(lambda: b.sum() * 2, (), {}, leaves)()
    assert [t.shape for t in first] == [t.shape for t in second]
    assert {len(t): float(t.sum()) for t in second[1:]} == {2: 0.0, 3: 6.0}


def test_no_gradients_under_no_grad():
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        assert len(step_of(layer, (torch.ones(1, 2),), {})()) == 1


def test_a_module_is_as_before():
    module = torch.nn.BatchNorm1d(4)
    module.weight.grad = torch.full((4,), 5.0)
    state = torch.get_rng_state()
    with undisturbed(module):
        module(torch.randn(8, 4)).sum().backward()
        assert module.running_mean.abs().sum() > 0
    assert torch.equal(module.running_mean, torch.zeros(4)) and module.num_batches_tracked == 0
    assert torch.equal(module.weight.grad, torch.full((4,), 5.0)) and module.bias.grad is None
    assert torch.equal(torch.get_rng_state(), state)
