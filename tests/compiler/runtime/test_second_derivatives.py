"""Derivatives of gradients: eager's, by the program as it was written; an error where that cannot be run again."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

import regraft


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return x * gradient


def broken(x, w):
    h = (x @ w).tanh()
    torch._dynamo.graph_break()
    return h.exp() * x


def hooked(x, w):
    x.register_hook(lambda gradient: gradient * 3)
    return (x @ w).square()


def enabling(x, w):
    scale = x.mean()
    with torch.enable_grad():
        return (x @ w).tanh() * scale


DISABLED = "gradients where they were disabled"
PROGRAMS = {
    "products": lambda x, w: F.softplus(x @ w).square(),
    "a view": lambda x, w: (x @ w).sigmoid().view(2, -1, 5),
    "several": lambda x, w: ((x @ w).sin(), x.argmax(), (x * w[0]).sum(0), x),
    "one of two": lambda x, w: x.exp() * 2,
    "numbers": lambda x, w: (x @ w).sigmoid() * x.size(0),
    "a checkpoint": lambda x, w: checkpoint(lambda y: (y @ w).tanh(), x, use_reentrant=False),
    "a graph break": broken,
    "hooks": hooked,
    DISABLED: enabling,
}


def penalized(run, x, w, run_with_gradients=True):
    """Gradients of a penalty on gradients, and the first gradients."""
    x, w = (t.detach().clone().requires_grad_() for t in (x, w))
    with torch.set_grad_enabled(run_with_gradients):
        results = run(x, w)
    loss = sum(r.square().sum() for r in (results if isinstance(results, tuple) else (results,)) if r.requires_grad)
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (first.norm() + loss).backward()
    return first, x.grad, w.grad


@one_row_in(2)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_penalty_on_gradients_is_eagers(name, dynamic):
    torch.compiler.reset()
    run = torch.compile(PROGRAMS[name], backend="regraft", dynamic=dynamic, options={"strict": True})
    with regraft.coverage() as cov:
        for rows in (4, 6):
            x, w = torch.randn(rows, 5).double(), torch.randn(5, 5).double()
            found, expected = (penalized(call, x, w, name != DISABLED) for call in (run, PROGRAMS[name]))
            torch.testing.assert_close(found, expected)
    assert any(f.code == "second-derivatives" for graph in cov.graphs for f in graph.fallbacks)


def test_autocast_of_the_forward():
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(5, 8), nn.Softplus(), nn.Linear(8, 1))
    run, found = torch.compile(model, backend="regraft"), []
    for call in (model, run):
        x = torch.ones(3, 5, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = call(x)
        (first,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.square().sum(), model[0].weight)))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0.0)


class Averaging(nn.Module):
    """Reads a buffer, and writes it."""

    def __init__(self, *, width=5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))
        self.register_buffer("average", torch.ones(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.average.lerp_(x.detach().mean(0), 0.25)
        self.calls += 1
        return (x * self.weight / self.average.clone() / self.calls.clone()).tanh()


STATES = {
    "of batches": lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Softplus(), nn.Linear(5, 5), nn.BatchNorm1d(5)),
    "of instances": lambda: nn.Sequential(nn.Unflatten(1, (1, 5)), nn.InstanceNorm1d(1, track_running_stats=True)),
    "not of batches": lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Softplus()).eval(),
    "power iterations": lambda: nn.Sequential(spectral_norm(nn.Linear(5, 5)), nn.Softplus()),
    "averages": Averaging,
}


@one_row_in(2)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", STATES)
def test_what_a_program_writes_is_as_it_was(name, dynamic):
    """Of two calls: the second one writes what the first one has read."""
    torch.compiler.reset()
    torch.manual_seed(0)
    plain = STATES[name]().double()
    model = copy.deepcopy(plain)
    run = torch.compile(model, backend="regraft", dynamic=dynamic, options={"strict": True})
    for rows in (4, 6):
        x = torch.randn(rows, 5).double()
        found, expected = (penalized_twice(call, of, x) for call, of in ((run, model), (plain, plain)))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(dict(model.named_buffers()), dict(plain.named_buffers()))


def penalized_twice(run, model, x):
    """Gradients of a penalty on gradients of two calls."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    loss = run(x).sin().sum() + run(x * 2).square().sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (first.square().sum() + loss).backward()
    return [first, x.grad, *(p.grad for p in model.parameters())]


def _drawing(x, w):
    return F.dropout(x @ w, 0.5)


def _writing(x, w):
    w.detach().mul_(2)
    return (x @ w).square()


@pytest.mark.parametrize("program", [_drawing, _writing, lambda x, w: Halved.apply(x @ w)])
def test_what_cannot_run_again_is_refused(program):
    """Draws would be others, much that is written is gone, a user's backward is recorded without its derivative."""
    torch.compiler.reset()
    run = torch.compile(program, backend="regraft")
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 5000)
    (first,) = torch.autograd.grad(run(x, w).square().sum(), x, create_graph=True)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_that_changed_since_are_an_error():
    torch.compiler.reset()
    weight, bias = (nn.Parameter(torch.randn(4)) for _ in range(2))
    run = torch.compile(lambda x: (x * weight + bias).exp(), backend="regraft")
    x = torch.randn(4, requires_grad=True)
    y = run(x).sum()
    with torch.no_grad():
        bias.add_(1)
    (first,) = torch.autograd.grad(y, x, create_graph=True)  # as the forward was
    torch.testing.assert_close(first, weight * (x * weight + bias - 1).exp())
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()


def test_inputs_are_not_kept():
    torch.compiler.reset()
    run = torch.compile(lambda x: x.sum(), backend="regraft")
    x = torch.ones(3, requires_grad=True)
    mine = x * 2
    seen, y = weakref.ref(mine), run(mine)
    del mine
    gc.collect()
    assert seen() is None
    y.backward()
    assert x.grad.tolist() == [2, 2, 2]
