"""Programs that return inputs which they write to, beside others that AOTAutograd writes to after the graph."""

import pytest
import torch
from support.thorough import one_row_in, takes_turns

import regraft  # noqa: F401 - the backend


def by_out(x, w, u, v):
    y = torch.mul(v, 2, out=u)
    w.detach().mul_(2)
    return x * 2, y, x.sum()


def of_several(x, w, u, v):
    w.detach().add_(1)
    values, places = torch.sort(v, out=(u, torch.empty(6, dtype=torch.int64)))
    return x @ w, places, values, v.add_(1).mul_(3)


def beside_a_gradient(x, w, u, v):
    x = x * 2
    torch._dynamo.graph_break()
    x.mul_(w[0])
    y = u.copy_(v)
    return x.sin(), y, x


def beside_a_turned_input(x, w, u, v):
    y = u.mul_(2)
    z = v.unsqueeze_(0)
    return x * 2, y, z, x + 1


def through_a_view(x, w, u, v):
    w.data.mul_(2)
    y = u.mul_(2)
    return x * 2, y[1:], y, x.mean()


PROGRAMS = [by_out, of_several, beside_a_gradient, beside_a_turned_input, through_a_view]


def given(rows, trains):
    torch.manual_seed(0)
    x, w = torch.randn(rows, 6), torch.randn(6, 6)
    return [x.requires_grad_(trains), w.requires_grad_(trains), torch.randn(6), torch.randn(6)]


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_returned_inputs(program, trains, dynamic):
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic, options={"strict": True})
    for rows in (4, 5):
        own, eager = given(rows, trains), given(rows, trains)
        results, expected = compiled(*own), program(*eager)
        torch.testing.assert_close(results, expected)
        torch.testing.assert_close(own, eager)
        for result, other in zip(results, expected, strict=True):
            assert [result is x for x in own] == [other is x for x in eager]
        if trains:
            for outcome in (results, expected):
                sum(r.sin().sum() for r in outcome if r.requires_grad).backward()
            torch.testing.assert_close(own[0].grad, eager[0].grad)
