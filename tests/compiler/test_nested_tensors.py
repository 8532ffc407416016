"""Nested tensors (rows of different lengths in one memory): the lengths are one size, which is no number."""

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in

import regraft

WEIGHT = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def rows(*lengths, requires_grad=False):
    parts = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=requires_grad)


def dense(value):
    return value.values() if value.is_nested else value


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.compiler.reset()


@one_row_in(2)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x: F.gelu(F.linear(F.layer_norm(x, (4,)), WEIGHT)), id="a layer"),
        pytest.param(lambda x: x.values().view(-1, 2, 2).sum(-1) * x.size(0), id="its values"),
        pytest.param(lambda x: torch.nested.to_padded_tensor(x, 0.0).softmax(-1), id="padded"),
    ],
)
def test_programs_are_compiled_with_kernels(program):
    compiled = torch.compile(program, backend="regraft", options={"strict": True})
    with regraft.coverage() as cov:
        for lengths in [(2, 3, 1), (4, 1, 2)]:
            x, y = rows(*lengths, requires_grad=True), rows(*lengths, requires_grad=True)
            ours, theirs = dense(compiled(x)), dense(program(y))
            torch.testing.assert_close(ours, theirs)
            ours.square().sum().backward()
            theirs.square().sum().backward()
            torch.testing.assert_close(x.grad.values(), y.grad.values())
    assert cov.graphs and {f.code for f in cov.fallbacks} <= {"tensor-subclass"}


def test_what_torch_cannot_differentiate_runs_as_it_was_written():
    compiled = torch.compile(lambda x: x.sum(-1), backend="regraft")
    x = rows(2, 3, requires_grad=True)
    out = compiled(x)  # AOTAutograd asks for the derivative at once
    torch.testing.assert_close(out.values(), x.values().sum(-1))
    with pytest.raises(NotImplementedError):
        out.values().sum().backward()
