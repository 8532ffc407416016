"""What a call asks only the shape of is not read: constants of their own sizes, with eager's bits and layout."""

import pytest
import torch
from support.engine import X, capture, ops

from regraft.rewrites.normal_graph import simplified
from regraft.rewrites.unread import free_what_is_not_read

MADE = {
    "full_like": lambda a: torch.full_like(a.exp(), 2.0),
    "full_like, dtype": lambda a: torch.full_like(a.exp(), True, dtype=torch.bool),
    "full_like, a number of an integer": lambda a: torch.full_like(a.argmax(0), 3),
    "new_full": lambda a: a.exp().new_full((3, 2), -float("inf")),
    "new_full, dtype": lambda a: a.exp().new_full((3,), 1, dtype=torch.int64),
    "zeros_like": lambda a: torch.zeros_like(a.exp()),
    "new_zeros": lambda a: a.exp().new_zeros(2, 5),
    "new_ones": lambda a: a.exp().new_ones(()),
    "written later": lambda a: torch.ones_like(a.exp()).mul_(3),
}


@pytest.mark.parametrize("name", MADE)
def test_makes_constants(name):
    module = capture(MADE[name], X)
    simplified(module)
    assert not {"exp", "argmax"} & set(ops(module))
    made, eager = module(X), MADE[name](X)
    assert torch.equal(made, eager) and (made.dtype, made.stride()) == (eager.dtype, eager.stride())


@pytest.mark.parametrize("function", [lambda a: torch.zeros_like(a), lambda a: torch.zeros_like(a.t().exp())])
def test_leaves(function):
    """Inputs are there anyway; memory in another order is no `full`."""
    module = capture(function, X)
    assert free_what_is_not_read(module.graph) == 0


def test_symbolic_sizes():
    run = torch.compile(lambda a: torch.full_like(a @ a.mT, 2.0).triu(1), backend="regraft", dynamic=True)
    for rows in (3, 5):
        x = torch.randn(2, rows, 4)
        assert torch.equal(run(x), torch.full((2, rows, rows), 2.0).triu(1))


def test_numbers_that_change_stay_where_they_are():
    """A number of the program's own, which a later pass makes a tensor of, so that others need no compilation."""
    module = capture(lambda a: torch.full_like(a.exp(), 2.0), X)
    (made,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.full_like.default)
    with module.graph.inserting_before(made):
        made.update_arg(1, module.graph.placeholder("number"))
    assert free_what_is_not_read(module.graph) == 0
