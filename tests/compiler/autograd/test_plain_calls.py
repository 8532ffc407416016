"""Inference graphs that the program calls itself: what AOTAutograd does around a graph is done, or it does it."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import regraft  # noqa: F401 - the backend
from regraft.compiler.autograd.plain_calls import PlainCall, called_plainly

torch.library.define("regraft_plain_calls::twice", "(Tensor x) -> Tensor")
torch.library.impl("regraft_plain_calls::twice", "CompositeExplicitAutograd", lambda x: x * 2)
torch.library.register_fake("regraft_plain_calls::twice", lambda x: torch.empty_like(x))


@pytest.fixture
def plainly(monkeypatch):
    """For each program that was differentiated, whether it calls its graph itself."""
    torch.compiler.reset()
    monkeypatch.setenv("REGRAFT_DISABLE_CACHE", "1")
    found = []
    real = PlainCall.instead_of

    def noted(self, compiled):
        chosen = real(self, compiled)
        found.append(chosen is not compiled)
        return chosen

    monkeypatch.setattr(PlainCall, "instead_of", noted)
    return found


def gives_an_input(x, y):
    return y, x + y, x


def writes(x, y):
    y.mul_(x)
    return x + y


def gives_what_it_writes(x, y):
    return y.add_(1), x * y


def gives_a_view(x, y):
    return x[1:], x + y


def gives_views_of_one(x, y):
    z = x + y
    return z, z[1:]


def gives_a_parameters_view(x, y):
    return y.t(), x.sum()


def turns(x, y):
    y.unsqueeze_(0)
    return x + y


def of_users(x, y):
    return torch.ops.regraft_plain_calls.twice(x) + y


def switches(x, y):
    torch.set_grad_enabled(False)
    return x + y


PLAIN = [lambda x, y: x * y + 1, gives_an_input, writes, gives_what_it_writes]
OTHERS = [gives_a_view, gives_a_parameters_view, of_users]
EITHER = [gives_views_of_one, turns, switches]  # Dynamo or capture may leave nothing to AOTAutograd


def outcome(function, mode, before=lambda x, y: (x, y)):
    """Results, which inputs they are, inputs, their versions, and the state of gradients."""
    torch.manual_seed(0)
    x, y = before(torch.randn(3, 3), torch.randn(3, 3))
    with mode():
        results = function(x, y)
        state = torch.is_grad_enabled()
    results = results if isinstance(results, tuple) else (results,)
    same = [next((k for k, given in enumerate((x, y)) if given is r), None) for r in results]
    counted = [None if z.is_inference() else z._version for z in (x, y)]
    views = [r._is_view() for r in results]
    return [r.detach().clone() for r in results], same, [x.clone(), y.clone()], counted, views, state


MODES = [torch.no_grad, torch.enable_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", PLAIN + OTHERS + EITHER)
def test_a_program_does_what_eager_does(plainly, function, mode):
    compiled = torch.compile(function, backend="regraft", options={"strict": True}, dynamic=False)
    for _ in range(2):
        with torch.enable_grad():
            expected, found = outcome(function, mode), outcome(compiled, mode)
        torch.testing.assert_close(found, expected)
    assert function in EITHER or plainly == [function in PLAIN]


def test_inputs_in_one_memory_that_are_written(plainly):
    def parts(x, y):
        return x[:2], x[1:]

    compiled = torch.compile(writes_first, backend="regraft", options={"strict": True}, dynamic=False)
    for _ in range(2):
        torch.testing.assert_close(*(outcome(f, torch.no_grad, parts) for f in (compiled, writes_first)))
    assert plainly == [False]


def writes_first(x, y):
    y.mul_(2)
    return x.sum() + y.sum()


def made_nested(x, y):
    return torch.nested.nested_tensor_from_jagged(x * 2, torch.tensor([0, 1, 3]))


def made_nested_beside(x, y):
    nested = torch.nested.nested_tensor_from_jagged(x + y, torch.tensor([0, 2, 3]))
    return nested.values() * 2, nested


def made_of_two(x, y):
    return TwoTensor(x + 1, y * 2) * 3


@pytest.mark.parametrize("function", [made_nested, made_nested_beside, made_of_two])
def test_results_of_subclasses_that_a_program_makes_itself(plainly, function):
    """AOTAutograd puts them together: its record of the graph is that of their parts, all plain tensors."""
    compiled = torch.compile(function, backend="regraft", dynamic=False)
    for seed in range(2):
        torch.manual_seed(seed)
        given = torch.randn(3, 3), torch.randn(3, 3)
        found, expected = ([r] if isinstance(r, torch.Tensor) else r for r in (compiled(*given), function(*given)))
        for a, b in zip(found, expected, strict=True):
            assert type(a) is type(b)
            torch.testing.assert_close(*([t.values() if t.is_nested else t + 0 for t in (a, b)]))
    assert plainly == [False]


def test_sizes_that_change_stay_marked_for_the_next_graph(plainly):
    compiled = torch.compile(lambda x, y: x * 2, backend="regraft", dynamic=True)
    marked = vars(compiled(torch.randn(5, 3), torch.randn(3)))
    assert plainly == [False] and any(name.endswith("_dynamic_indices") for name in marked)


def test_gradients_are_on_again_after_an_error():
    def fails(args):
        assert not torch.is_grad_enabled()
        raise ValueError("failed")

    for mode in MODES:
        with mode():
            before = torch.is_grad_enabled()
            with pytest.raises(ValueError, match="failed"):
                called_plainly(fails)(torch.ones(2))
            assert torch.is_grad_enabled() == before


def test_a_graph_runs_outside_autocast():
    seen = called_plainly(lambda args: (args[0] @ args[0],))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert seen(torch.ones(2, 2))[0].dtype == torch.float32
        assert torch.is_autocast_enabled("cpu")


def normalized(x, w, state):
    state.mul_(0.9).add_(x.detach().mean() * 0.1)
    return x @ w, (x > 0).sum(), w.sum() + state


def views(x, w, state):
    y = x @ w
    return y, y[1:], state * 2


def of_users_in_training(x, w, state):
    return torch.ops.regraft_plain_calls.twice(x.detach()) @ w, state


def counts_only(x, w, state):
    return torch.linalg.vector_norm(x * 1, 0, -1), w.detach().sum() + state


STEPS = {normalized: True, counts_only: True, views: False, of_users_in_training: False}


@pytest.mark.parametrize("function", STEPS)
def test_a_training_step_does_what_eager_does(plainly, function):
    """Outputs, gradients, writes and their count, and what may be differentiated."""
    compiled = torch.compile(function, backend="regraft", options={"strict": True}, dynamic=False)
    for turn in range(4):  # with all gradients, without that of one result, twice, and within autocast
        found = []
        for run in (function, compiled):
            torch.manual_seed(turn)
            x, w, state = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True), torch.zeros(3)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=turn == 3):
                results = run(x, w, state)
            wanted = [r for r in results if r.requires_grad]
            wanted = wanted[turn == 1 :] or wanted
            total = sum(r.float().sin().sum() for r in wanted)
            total.backward(retain_graph=turn == 2)
            if turn == 2:
                total.backward()
            found.append(
                (
                    [r.detach() for r in results],
                    [r.requires_grad for r in results],
                    state._version > 0,
                    *(0 * p.detach() if p.grad is None else p.grad for p in (x, w)),
                )
            )
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    assert plainly[:1] == [STEPS[function]]


def test_the_memory_of_a_step_is_let_go(plainly):
    """What a forward keeps lives until its backward has run, and no longer."""
    compiled = torch.compile(lambda x, w: (x @ w).tanh(), backend="regraft", dynamic=False)
    for _ in range(2):
        x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
        gone = weakref.ref(x)
        y = compiled(x, w).sum()
        del x
        assert gone() is None or y.grad_fn is not None
        y.backward()
        assert gone() is None
    assert plainly == [True]


def test_calls_after_the_first_backward_have_derivatives_of_gradients(plainly):
    def function(x, w):
        return (x @ w).tanh()

    compiled = torch.compile(function, backend="regraft", dynamic=False)
    for turn in range(4):
        found = []
        for run in (function, compiled):
            torch.manual_seed(turn)
            x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
            (dx,) = torch.autograd.grad(run(x, w).sum(), x, create_graph=turn % 2 == 1)
            found.append([dx.detach()])
            found[-1] += torch.autograd.grad(dx.square().sum(), (x, w)) if turn % 2 else []
        torch.testing.assert_close(*found)
    assert plainly == [True]
