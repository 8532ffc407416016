"""Replacements that make tensors of numbers: these are constants of the program, in every kind of compilation."""

import pytest
import torch
from support.thorough import one_row_in, takes_turns

import regraft
from regraft import Sample, T, register_pattern
from regraft.rewrites import rule as rules
from regraft.rewrites.editor import RewriteError

OUTSIDE = torch.tensor([1.0, 2.0, 3.0, 4.0])
REPLACEMENTS = {
    "a number": lambda x: x * torch.tensor(2.0),
    "a vector": lambda x: x * torch.tensor([1.5]) + x * torch.tensor([0.5]),
    "a number of integers": lambda x: x * torch.tensor(2),
    "filled": lambda x: x * torch.full((1,), 2.0, dtype=x.dtype),
}


def declared(replacement):
    torch.compiler.reset()
    rules._declared.pop("doubled", None)
    return register_pattern("doubled", replacement=replacement, samples=[Sample(x=T("B 4"))])(lambda x: x + x)


@one_row_in(2)
@takes_turns("train", "dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", REPLACEMENTS)
def test_tensors_of_numbers(name, train, dynamic):
    rule = declared(REPLACEMENTS[name])
    options = {"rules": (rule,), "profit": "always", "strict": True}
    compiled = torch.compile(lambda x: (x + x).exp(), backend="regraft", options=options, dynamic=dynamic)
    for rows in (3, 5):
        x = torch.randn(rows, 4, requires_grad=train)
        with regraft.coverage() as found:
            y = compiled(x)
        assert found.matches["doubled"] or (rows == 5 and not found.graphs)
        torch.testing.assert_close(y, (x + x).exp())
        if train:
            y.sum().backward()
            torch.testing.assert_close(x.grad, 2 * y.detach())


def test_a_tensor_from_outside_is_refused_with_what_to_do():
    rule = declared(lambda x: x * OUTSIDE)
    options = {"rules": (rule,), "profit": "always"}
    compiled = torch.compile(lambda x: (x + x).exp(), backend="regraft", options={**options, "strict": True})
    with pytest.raises(Exception, match="reads a tensor that is none of its operands: make it a parameter"):
        compiled(torch.randn(3, 4))
    torch.compiler.reset()
    x = torch.randn(3, 4)
    with regraft.coverage() as found:
        torch.testing.assert_close(
            torch.compile(lambda x: (x + x).cos(), backend="regraft", options=options)(x), (x + x).cos()
        )
    (fault,) = found.faults
    assert fault.rule == "doubled" and "none of its operands" in fault.message
    (failure,) = regraft.check(rule, examples=2).failures
    assert RewriteError.__name__ in failure.problem and "make it a parameter" in failure.problem
