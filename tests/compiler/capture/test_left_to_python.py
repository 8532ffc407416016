"""Frames that Python runs: broadcasts of a size of 1 that depends on data; inputs that are written to and reshaped."""

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns

import regraft

IN_GRAPH = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
X, Y = torch.tensor([1.0, 2.0, 3.0, -1.0]), torch.tensor([4.0, 5.0, 6.0])
ONE = torch.tensor([-1.0, 2.0, -3.0, -1.0])
BROADCASTS = {
    "sum": lambda x, y: x[x > 0] + y,
    "product": lambda x, y: y * x[x > 0],
    "choice": lambda x, y: torch.where(x[x > 0] > 1, y, 2.0),
    "three": lambda x, y: torch.addcdiv(x[x > 0], y, y.abs() + 1),
    "expanded": lambda x, y: x[x > 0].expand(3) + y,
    "as another": lambda x, y: x[x > 0].expand_as(y) * 2,
    "in place": lambda x, y: y.clone().add_(x[x > 0]),
    "copied": lambda x, y: y.clone().copy_(x[x > 0]),
    "bias": lambda x, y: F.linear(y[None], torch.ones(3, 3), x[x > 0]),
    "batches": lambda x, y: x[x > 0][:, None, None].expand(-1, 2, 2) @ y[:, None, None].expand(-1, 2, 2),
    "counts": lambda x, y: torch.bincount((x > 0).long() * 0) * y,
    "number": lambda x, y: torch.ones(int((x > 0).sum().item())) + y,
    "size": lambda x, y: (x[x > 0] + y, x[x > 0].shape[0] + 1, x[x > 0].sum() / x[x > 0].shape[0])[1:],
}


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", BROADCASTS)
def test_a_size_of_one_that_depends_on_data_is_broadcast(name, dynamic):
    program = BROADCASTS[name]
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic)
    with torch._dynamo.config.patch(**IN_GRAPH):
        for x in (X, ONE, X, -ONE):
            torch.testing.assert_close(compiled(x, Y), program(x, Y))


def _codes(program, *given, fullgraph=False):
    torch._dynamo.reset()
    with torch._dynamo.config.patch(**IN_GRAPH), regraft.coverage() as cov:
        result = torch.compile(program, backend="regraft", fullgraph=fullgraph)(*given)
    torch.testing.assert_close(result, program(*given))
    return [fallback.code for fallback in cov.fallbacks]


def test_what_is_left_to_python_is_told():
    assert _codes(BROADCASTS["sum"], X, Y) == ["left-to-python"]
    inner = BROADCASTS["sum"]
    assert "left-to-python" in _codes(lambda x, y: inner(x, y).sin() * 2, ONE, Y)


def test_sizes_that_the_program_states_are_compiled():
    def stated(x, y):
        z = x[x > 0]
        torch._check(z.shape[0] == 3)
        return z + y

    assert _codes(stated, X, Y) == []


@one_row_in(2)
@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: x[x > 0] * x[x.abs() * x > 0],  # both sizes depend on data
        lambda x, y: x[x > 0][:, None] * y,
        lambda x, y: x[x > 0] @ y,  # eager broadcasts no depth
        lambda x, y: torch.stack([x[x > 0], y]),
        lambda x, y: x[x > 0] * 2 + 1,
    ],
)
def test_other_sizes_that_depend_on_data_are_compiled(program):
    assert _codes(program, X, Y) == []


def test_a_whole_graph_is_compiled_with_the_assumption():
    assert _codes(BROADCASTS["sum"], X, Y, fullgraph=True) == []
    with torch._dynamo.config.patch(**IN_GRAPH), pytest.raises(RuntimeError, match="Runtime assertion"):
        torch.compile(BROADCASTS["sum"], backend="regraft", fullgraph=True)(ONE, Y)


def test_asserted_sizes_of_inputs_are_compiled():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: x + y.view(x.shape), backend="regraft")
    with (
        torch._dynamo.config.patch(prefer_deferred_runtime_asserts_over_guards=True),
        regraft.coverage() as cov,
    ):
        for n in (2, 3, 5):
            torch.testing.assert_close(compiled(torch.ones(n, 3), torch.ones(3 * n)), torch.full((n, 3), 2.0))
    assert not cov.fallbacks
    with pytest.raises(RuntimeError):
        compiled(torch.ones(4, 3), torch.ones(9))


def _written(x, y):
    x += y
    x.t_()
    return 3


def _multiplied(x, y):
    x.mul_(2).transpose_(0, 1)
    return y + 1


def _lists(x, y):
    torch._foreach_add_([x, y], 1)
    x.t_()
    return y + 1


@one_row_in(3)
@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("program", [_written, _multiplied, _lists])
def test_inputs_that_are_written_to_and_reshaped(program, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic, options={"strict": True})
    for n in (4, 5, 6):
        mine, theirs = ([torch.arange(3.0 * n).view(n, 3) for _ in range(2)] for _ in range(2))
        torch.testing.assert_close(compiled(*mine), program(*theirs))
        torch.testing.assert_close(mine, theirs, check_stride=True)
