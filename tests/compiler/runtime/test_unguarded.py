"""Steps of optimizers, of whose tensors Dynamo guards nothing, with others than they were compiled for."""

import gc
import weakref

import pytest
import torch
from support.thorough import one_row_in, takes_turns
from torch import nn

import regraft
from regraft.compiler.runtime import overlaps

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.1),
}


def turned(x):
    return x.t().contiguous().t() if x.dim() == 2 else x.clone()


def all_turned(model):
    for p in model.parameters():
        p.data = turned(p.data)


def doubles(model, optimizer):
    model.double()
    for x in (x for own in optimizer.state.values() for x in own.values() if x.dim()):
        x.data = x.data.double()


CHANGES = {
    "doubles": doubles,
    "strides": lambda model, _: all_turned(model),
    "places": lambda model, _: setattr(model.weight, "data", torch.ones(3, 7)[:, 1:5]),
    "state": lambda _, optimizer: [
        setattr(x, "data", turned(x.data)) for own in optimizer.state.values() for x in own.values()
    ],
}


def trained(name, change, compiled, gradient=lambda g, turn: g, sizes=(4, 3)):
    """Weights after each step; `change` comes between the second and the third."""
    torch.manual_seed(0)
    model = nn.Linear(*sizes)
    optimizer = OPTIMIZERS[name](model.parameters())
    step, found = torch.compile(optimizer.step, backend="regraft") if compiled else optimizer.step, []
    for turn in range(5):
        optimizer.zero_grad()
        x = torch.randn(2, sizes[0], dtype=torch.float64).to(model.weight.dtype)
        model(x).sin().sum().backward()
        model.weight.grad = gradient(model.weight.grad, turn)
        step()
        found.append([p.detach().clone() for p in model.parameters()])
        if turn == 1:
            change(model, optimizer)
    return found


@takes_turns("name")
@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_what_a_step_writes_to_is_changed(name, change):
    torch.compiler.reset()
    theirs, ours = (trained(name, CHANGES[change], compiled) for compiled in (False, True))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


GRADIENTS = {
    "strides": lambda g, turn: turned(g) if turn % 2 else g,
    "expanded": lambda g, turn: g[:1].expand(3, 4) if turn == 2 else g,
    "apart": lambda g, turn: torch.zeros(6, 8)[::2, ::2].copy_(g) if turn == 3 else g,
    "later": lambda g, turn: g if turn == 3 else turned(g),
}


@pytest.mark.parametrize("gradient", list(GRADIENTS))
def test_gradients_lie_otherwise(gradient):
    torch.compiler.reset()
    theirs, ours = (trained("sgd", lambda *_: None, compiled, GRADIENTS[gradient]) for compiled in (False, True))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def shared(parameters, optimizer, turn):
    """One gradient for two weights, before the third step."""
    if turn < 2:
        parameters[1].grad = parameters[0].grad


def late(change):
    """`change(weights, state of the optimizer for each)` before the third step."""

    def changed(parameters, optimizer, turn):
        if turn == 2:
            tensors = [{k: x for k, x in optimizer.state[p].items() if x.dim()} for p in parameters]
            change(parameters, tensors)

    return changed


def rows(x, y):
    memory = torch.arange(16.0).reshape(4, 4)
    x.data, y.data = memory[:3], memory[1:]


def at(tensors, others):
    for name, x in tensors.items():
        x.data = others[name].data


MEMORIES = {
    "one gradient, then two": shared,
    "two gradients, then one": lambda p, _, turn: setattr(p[1], "grad", p[0].grad if turn > 1 else p[1].grad),
    "gradients overlap": lambda p, _, turn: rows(p[0].grad, p[1].grad) if turn == 2 else None,
    "a gradient is a weight": lambda p, _, turn: setattr(p[1], "grad", p[0].data) if turn > 1 else None,
    "weights are tied": late(lambda p, _: setattr(p[1], "data", p[0].data)),
    "weights overlap": late(lambda p, _: rows(p[0], p[1])),
    "state is a weight": late(lambda p, state: [setattr(x, "data", p[0].data) for x in state[0].values()]),
    "state is tied": late(lambda _, state: at(state[1], state[0])),
    "first state is tied": lambda p, o, turn: at(o.state[p[1]], o.state[p[0]]) if turn == 1 else None,
}


def stepped(name, change, compiled):
    """Weights after each step of three weights, before which `change` changes them."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(3, 4)) for _ in range(3)]
    optimizer = OPTIMIZERS[name](parameters)
    step, found = torch.compile(optimizer.step, backend="regraft") if compiled else optimizer.step, []
    for turn in range(5):
        for p in parameters:
            p.grad = torch.randn(3, 4)
        change(parameters, optimizer, turn)
        step()
        found.append([p.detach().clone() for p in parameters])
    return found


@one_row_in(2)
@pytest.mark.parametrize("change", list(MEMORIES))
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_tensors_of_a_step_share_memory(name, change):
    torch.compiler.reset()
    theirs, ours = (stepped(name, MEMORIES[change], compiled) for compiled in (False, True))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, equal_nan=True)


def test_gradients_are_looked_at_once(monkeypatch):
    """A step of hundreds of weights looks at the addresses of all, and not at each gradient's memory besides."""
    seen = []
    monkeypatch.setattr(overlaps, "is_others_memory", lambda x: seen.append(x) or False)
    stepped("adam", lambda *_: None, True)
    assert not seen


def test_calls_as_written_are_told_once():
    torch.compiler.reset()
    with regraft.coverage() as cov:
        trained("sgd", lambda *_: None, True, GRADIENTS["strides"])
    assert [f.code for f in cov.fallbacks] == ["gradients-otherwise"]


def test_other_weights_are_compiled_once():
    torch.compiler.reset()
    with regraft.coverage() as cov:
        trained("adam", CHANGES["doubles"], True)
    assert len(cov.graphs) == 2 and all(graph.code[0].kernels for graph in cov.graphs)


def test_weights_are_free_when_their_optimizer_is_gone(monkeypatch, tmp_path):
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    for _ in range(2):  # compiled, recalled
        torch.compiler.reset()
        model = nn.Linear(4, 3)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        step = torch.compile(optimizer.step, backend="regraft")
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
            step()
        seen = [weakref.ref(x) for x in (*model.parameters(), *optimizer.state[model.weight].values())]
        del model, optimizer, step
        gc.collect()
        assert not [ref for ref in seen if ref() is not None]
