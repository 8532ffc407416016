"""Results of a graph that the program writes to after a graph break, before the backward: gradients are eager's."""

import pytest
import torch
from support.thorough import one_row_in, takes_turns
from torch.nn import functional as F

import regraft  # noqa: F401 - the backend

BREAK = torch._dynamo.graph_break


def attention(q, k, v):
    scores = q @ k.mT + torch.ones(5, 5).triu(1) * -4
    result = scores.softmax(-1) @ v
    BREAK()
    scores.add_(1)
    return result, scores


def casts(q, k, v):
    narrow = (q * 2).to(torch.bfloat16)
    result = (narrow.float() * k).sigmoid() * v
    BREAK()
    narrow.zero_()
    return result, narrow


def views(q, k, v):
    sums = q + k
    parts = sums.view(2, 3, 40)
    result = (sums.sigmoid() * v).tanh()
    BREAK()
    parts.mul_(0)
    return result, sums


def turned(q, k, v):
    sums = (q + k).transpose(1, 2)
    result = torch.exp(sums.softmax(-1)) * v.transpose(1, 2)
    BREAK()
    sums.index_fill_(0, torch.tensor([0]), 2.0)
    return result, sums


def several(q, k, v):
    a, b = q * 3, k * 2
    result = (a + b).sigmoid() * v + a.softmax(-1)
    BREAK()
    a.sub_(b)
    BREAK()
    b.sub_(a)
    return result, a, b


def expanded(q, k, v):
    row = (q * 2)[:, :1].expand(2, 3, 5, 8)
    result = row.softmax(-1) * v * k
    BREAK()
    return result, row + 1


PROGRAMS = (attention, casts, views, turned, several, expanded)


def trained(program, function):
    given = [torch.linspace(-1, n, 2 * 3 * 5 * 8).reshape(2, 3, 5, 8).requires_grad_() for n in (1, 2, 3)]
    results = function(*given)
    return results, torch.autograd.grad(results[0].sum() + results[0].square().sum(), given)


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_writes_to_results_before_the_backward(program, dynamic):
    torch._dynamo.reset()
    options = {"strict": True, "profit": "always"}
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic, options=options)
    ours, eager = trained(program, compiled), trained(program, program)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


WEIGHT = torch.randn(7, 4, requires_grad=True)
RESULTS = {
    "layer": lambda x: F.linear(x, WEIGHT),
    "product": lambda x: x @ WEIGHT.t(),
    "beside": lambda x: (x @ WEIGHT.t(), (x * 2).view(-1, 2))[0],
    "convolution": lambda x: F.conv2d(x[:, :, None], WEIGHT[:3, :3, None, None]),
    "view": lambda x: (x * 2).view(-1, 2),
    "turned": lambda x: (x * 2).mT,
}


@one_row_in(2)
@takes_turns("options")
@pytest.mark.parametrize("options", [{}, {"cpp.wrapper": True}], ids=["python", "cpp"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", RESULTS)
def test_what_a_program_writes_to_after_a_graph_break(name, dynamic, options):
    """Results that eager has computed are no views to autograd, which refuses writes to those of others."""

    def program(x):
        y, z = RESULTS[name](x), x.exp()
        torch._dynamo.graph_break()
        y.add_(1)
        return y, z

    torch._dynamo.reset()
    x = torch.randn(2, 3, 4, requires_grad=True)
    found = []
    for call in (program, torch.compile(program, backend="regraft", dynamic=dynamic, options=options)):
        y, z = call(x)
        found.append((y, z, torch.autograd.grad(y.sin().sum() + z.sum(), x)[0]))
    torch.testing.assert_close(found[1], found[0])


def test_what_the_backward_needs_counts_its_writes():
    """The result is what is saved for the backward, to which nobody may write."""
    torch._dynamo.reset()
    x = torch.randn(2, 3, 4, requires_grad=True)
    y, z = torch.compile(lambda x: (s := x @ WEIGHT.t(), s.sin()), backend="regraft")(x)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
