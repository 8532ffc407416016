"""Inference graphs that the program calls itself: what AOTAutograd does around a graph is done, or it does it."""

from __future__ import annotations

import pytest
import torch

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
